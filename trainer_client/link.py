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
from shared.messages import Pushed
from shared.packing import Packing
from shared.sockets import connect_watched_dealer, connection_events, drained, send_now
from trainer_client.sealed import SealedPayloads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        self.packing = Packing()
        self._queued: list[bytes] = []
        #: Payloads under keys come on a connection of their own.
        self.sealed = SealedPayloads(context, endpoint) if keys is not None else None
        self.socket, self.monitor = connect_watched_dealer(context, endpoint, keys, secrets.token_bytes(16))

    def queue(self, message: Message) -> None:
        """Send it with the next `flush`."""
        self._queued.append(encode(message))

    def flush(self) -> bool:
        """Send what is queued, if the connection is up; else it is gone."""
        queued, self._queued = self._queued, []
        try:
            if queued:
                send_now(self.socket, queued)
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

    def read(self, take: Callable[[Pushed, memoryview], int]) -> Iterator[tuple[Message, int]]:
        """Messages, each with what `take` makes of its payload; -1: it has none."""
        for frames in drained(self.socket, _TURN):
            yield from self._read_all(iter(frames), take)

    def _read_all(
        self, frames: Iterator[zmq.Frame], take: Callable[[Pushed, memoryview], int]
    ) -> Iterator[tuple[Message, int]]:
        """The messages of one arrival; what follows one that is none is not looked into, for it may be a payload."""
        for frame in frames:
            try:
                message = decode(frame.buffer)
            except ProtocolError:
                self.garbage += 1
                return
            received = -1
            if isinstance(message, Pushed) and not message.in_slot:
                payload = next(frames, None)
                received = take(message, payload.buffer) if payload is not None else -1
            yield message, received

    def close(self) -> None:
        """Hang up."""
        if self.sealed is not None:
            self.sealed.close()
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close(linger=100)
