"""The trainer's connection to the coordinator.

Rules: used in the receive thread only; the core decides what is said and when. What cannot be sent right now is
dropped, because the core will say it again. A coordinator that is named by a file is followed: while nothing is heard
of it, the file is looked at with each message, and the connection is made anew if it says another address. So `socket`
may be another one after each call.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING

import zmq

from shared.errors import ProtocolError
from shared.sockets import connect_dealer, read_waiting, send_if_up
from shared.system.endpoint_file import FollowedEndpoint
from shared.wire.codec import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.keys import ClientKeys
    from shared.wire.messages import Message

__all__ = ["CoordinatorClient"]


class CoordinatorClient:
    """One DEALER socket, which keeps its identity for as long as the trainer lives."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: ClientKeys | None) -> None:
        self.garbage = 0
        self._context = context
        self._followed = FollowedEndpoint(endpoint, encrypted=keys is not None)
        #: The address that we are connected to, and when something came from there last.
        self._connected = ""
        self._heard_s = time.monotonic()
        self._keys = keys
        self._identity = secrets.token_bytes(16)
        self.socket = self._connect()

    def _connect(self) -> zmq.Socket[bytes]:
        address = self._followed.address
        socket = connect_dealer(self._context, address, self._keys, self._identity)
        self._connected = address
        return socket

    @property
    def problem(self) -> str:
        """Why no address is known, if the coordinator is named by a file."""
        return self._followed.problem

    def renew(self) -> None:
        """Replace the connection; zmq.ZMQError if that fails, and then the former one stays."""
        self._followed.look()
        former, self.socket = self.socket, self._connect()
        former.close(linger=0)

    def _follow(self) -> None:
        """Connect to where the coordinator is now, if nothing is heard of it where it was."""
        now_s = time.monotonic()
        if self._followed.has_moved(self._connected, now_s - self._heard_s, now_s):
            with contextlib.suppress(zmq.ZMQError):  # no descriptor is left, say: tried again with a later message
                self.renew()

    def read(self) -> Iterator[Message]:
        """Yield what the coordinator said."""
        for frames in read_waiting(self.socket):
            self._heard_s = time.monotonic()
            try:
                yield decode(frames[0].buffer)
            except ProtocolError:
                self.garbage += 1

    def send(self, message: Message) -> bool:
        """Send if the connection is up."""
        self._follow()
        return send_if_up(self.socket, encode(message))

    def close(self) -> None:
        """Hang up; what was said last still gets a moment to leave."""
        self.socket.close(linger=100)
