"""The trainer's connection to one worker: hello, wants out, answers in.

Rules: used in the receive thread only. The socket survives the worker's restarts; who answers is told by the
incarnation in `Welcome`. Where a payload belongs, and whether anywhere, is asked of whoever reads.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import zmq

from shared.codec import decode, encode
from shared.errors import ProtocolError
from shared.messages import Pong, Pushed, Seal
from shared.packing import Packing, unpack
from shared.sealing import Opener
from shared.sockets import at_port, connect_dealer, connect_watched_dealer, connection_events, drained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shared.keys import ClientKeys
    from shared.layout import Layout
    from shared.messages import Message

__all__ = ["Link"]

#: Messages taken from one worker before the others have their turn.
_TURN = 64


class Link:
    """A DEALER and the watch on its connection; `incarnation` is None until the worker said Welcome."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: ClientKeys | None, lock_byte: int
    ) -> None:
        self.endpoint = endpoint
        self.lock_byte = lock_byte
        self.name = endpoint
        self.incarnation: int | None = None
        self.connected = False
        #: When to say Hello (again); it is answered by Welcome.
        self.hello_s = float("inf")
        self.shared = False
        self.left = False
        self.garbage = 0
        self.packing = Packing()
        self._queued: list[bytes] = []
        self._context = context
        self._keys = keys
        self._opener: Opener | None = None
        self._sealed_identity = secrets.token_bytes(16)
        #: Where sealed payloads come; None until the worker says where it sends them from.
        self.sealed: zmq.Socket[bytes] | None = None
        self._sealed_port = 0
        #: A Pong that went before payloads that it counts, and since when it waits for them.
        self.early_pong: Pong | None = None
        self.early_since_s = 0.0
        self.socket, self.monitor = connect_watched_dealer(context, endpoint, keys, secrets.token_bytes(16))

    def queue(self, message: Message) -> None:
        """Send it with the next `flush`."""
        self._queued.append(encode(message))

    def flush(self) -> bool:
        """Send what is queued, if the connection is up; else it is gone."""
        queued, self._queued = self._queued, []
        try:
            if queued:
                self.socket.send_multipart(queued, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def send(self, message: Message) -> bool:
        """Send if the connection is up."""
        self.queue(message)
        return self.flush()

    def changes(self) -> Iterator[bool]:
        """The connection came up (true) or went (false)."""
        for event in connection_events(self.monitor):
            self.connected = event.up
            yield event.up

    def read(self, take: Callable[[Link, Pushed, memoryview], int]) -> Iterator[tuple[Message, int]]:
        """Messages, each with what `take` makes of its payload; -1: it has none."""
        for _ in range(_TURN):
            try:
                frame = self.socket.recv(zmq.DONTWAIT)
            except zmq.Again:
                return
            yield from self._read_all(frame, take)

    def _read_all(self, frame: bytes, take: Callable[[Link, Pushed, memoryview], int]) -> Iterator[tuple[Message, int]]:
        """The messages of one arrival; what follows one that is none is not looked into, for it may be a payload."""
        while True:
            try:
                message = decode(frame)
            except ProtocolError:
                self.garbage += 1
                while self.socket.rcvmore:
                    self.socket.recv(copy=False)
                return
            received, more = -1, self.socket.rcvmore
            if isinstance(message, Pushed) and not message.in_slot and more:
                received = take(self, message, self.socket.recv(copy=False).buffer)
                more = self.socket.rcvmore
            yield message, received
            if not more:
                return
            frame = self.socket.recv()

    # --- sealed payloads, on a connection of their own ---

    def new_seal(self) -> Seal | None:
        """A key for the next Hello; it must not meet the numbers of another."""
        if self._keys is None:
            return None
        self._opener = Opener()
        return Seal(self._opener.key, self._sealed_identity)

    def expect_sealed(self, port: int) -> None:
        """Connect to where the worker sends sealed payloads from; 0: it sends none."""
        if port == self._sealed_port:
            return
        self.close_sealed()
        self._sealed_port = port
        if port:
            endpoint = at_port(self.endpoint, port)
            self.sealed = connect_dealer(self._context, endpoint, None, self._sealed_identity)

    def read_sealed(self, take: Callable[[Link, Pushed, memoryview], int]) -> Iterator[tuple[Pushed, int]]:
        """As `read`; what does not open is thrown away and counted."""
        assert self.sealed is not None
        for frames in drained(self.sealed, _TURN):
            header = self._opened(frames[0].bytes)
            if header is None or len(frames) != 2:
                self.garbage += 1
            else:
                yield header, take(self, header, frames[1].buffer)

    def _opened(self, frame: bytes) -> Pushed | None:
        opened = self._opener.header(frame) if self._opener is not None else None
        try:
            message = decode(opened) if opened is not None else None
        except ProtocolError:
            return None
        return message if isinstance(message, Pushed) and not message.in_slot else None

    def unseal(self, frame: memoryview, layout: Layout, place: NDArray[np.uint8]) -> bool:
        """Write the payload of the last header where it belongs; false if it is another, or was changed."""
        if self._opener is None:
            return False
        if self.packing.plain:
            return self._opener.payload_into(frame, place)
        opened = self._opener.payload(frame)
        if opened is not None:
            unpack(memoryview(opened), layout, self.packing, place)
        return opened is not None

    def is_behind(self, pong: Pong) -> bool:
        """Whether payloads that the worker sent before this are still on their way."""
        return self._opener is not None and self._opener.number < pong.sealed

    def close_sealed(self) -> None:
        """No more of them."""
        if self.sealed is not None:
            self.sealed.close(linger=0)
        self.sealed, self._sealed_port = None, 0

    def close(self) -> None:
        """Hang up."""
        self.close_sealed()
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close(linger=100)
