"""The trainer's connection to one worker: hello, wants out, answers in.

Rules: used in the receive thread only. The socket survives the worker's restarts; who answers is told by the
incarnation in `Welcome`. A payload frame is received into the slot that its ticket names, or thrown away if the
ticket is not current.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import zmq

from shared.codec import decode, encode
from shared.errors import ProtocolError
from shared.messages import Pushed
from shared.sockets import connect_watched_dealer, connection_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shared.keys import ClientKeys
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
        self.socket, self.monitor = connect_watched_dealer(context, endpoint, keys, secrets.token_bytes(16))

    def send(self, message: Message) -> bool:
        """Send if the connection is up."""
        try:
            self.socket.send(encode(message), zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def changes(self) -> Iterator[bool]:
        """The connection came up (true) or went (false)."""
        for event in connection_events(self.monitor):
            self.connected = event.up
            yield event.up

    def read(self, place: Callable[[Pushed], NDArray[np.uint8] | None]) -> Iterator[tuple[Message, int]]:
        """Messages with the number of payload bytes received into `place(header)`; -1: the payload was not wanted."""
        for _ in range(_TURN):
            try:
                frame = self.socket.recv(zmq.DONTWAIT)
            except zmq.Again:
                return
            try:
                message = decode(frame)
            except ProtocolError:
                self.garbage += 1
                self._skip_payload()
                continue
            received = -1
            if isinstance(message, Pushed) and self.socket.rcvmore:
                buffer = place(message)
                if buffer is not None:
                    received = self.socket.recv_into(buffer.data)
            self._skip_payload()
            yield message, received

    def _skip_payload(self) -> None:
        while self.socket.rcvmore:
            self.socket.recv(copy=False)

    def close(self) -> None:
        """Hang up."""
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close(linger=100)
