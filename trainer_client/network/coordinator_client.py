"""The trainer's connection to the coordinator.

Rules: used in the receive thread only; the core decides what is said and when. What cannot be sent right now is
dropped, because the core will say it again.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from shared.errors import ProtocolError
from shared.sockets import connect_dealer, read_waiting, send_if_up
from shared.wire.codec import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    import zmq

    from shared.keys import ClientKeys
    from shared.wire.messages import Message

__all__ = ["CoordinatorClient"]


class CoordinatorClient:
    """One DEALER socket, which keeps its identity for as long as the trainer lives."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: ClientKeys | None) -> None:
        self.garbage = 0
        self._context = context
        self._endpoint = endpoint
        self._keys = keys
        self._identity = secrets.token_bytes(16)
        self.socket = self._connect()

    def _connect(self) -> zmq.Socket[bytes]:
        return connect_dealer(self._context, self._endpoint, self._keys, self._identity)

    def renew(self) -> None:
        """Replace the connection; zmq.ZMQError if that fails, and then the former one stays."""
        former, self.socket = self.socket, self._connect()
        former.close(linger=0)

    def read(self) -> Iterator[Message]:
        """Yield what the coordinator said."""
        for frames in read_waiting(self.socket):
            try:
                yield decode(frames[0].buffer)
            except ProtocolError:
                self.garbage += 1

    def send(self, message: Message) -> bool:
        """Send if the connection is up."""
        return send_if_up(self.socket, encode(message))

    def close(self) -> None:
        """Hang up; what was said last still gets a moment to leave."""
        self.socket.close(linger=100)
