"""A trainer's connection to the coordinator.

Rules: used in one thread only; the caller decides what to send and when. A message that cannot be sent right now is
dropped, because the caller will repeat it. A coordinator whose address is in a file is followed: while it is silent,
the file is checked with each message, and the connection is replaced if the address has changed. So `socket` may be
another one after each call.
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
    """A DEALER socket to the coordinator; its identity survives replacing the socket."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: ClientKeys | None) -> None:
        #: How many frames were not valid messages.
        self.garbage = 0
        self._context = context
        self._followed = FollowedEndpoint(endpoint, encrypted=keys is not None)
        #: The address of the present connection, and when the last message came from there.
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
        """Return why no address is known, if the coordinator's address is in a file; empty if there is no problem."""
        return self._followed.problem

    def renew(self) -> None:
        """Replace the connection; raise zmq.ZMQError if that fails, and keep the former one."""
        self._followed.look()
        former, self.socket = self.socket, self._connect()
        former.close(linger=0)

    def _follow(self) -> None:
        """Connect to the coordinator's new address, if it is silent and its file names another one."""
        now_s = time.monotonic()
        if self._followed.has_moved(self._connected, now_s - self._heard_s, now_s):
            with contextlib.suppress(zmq.ZMQError):  # perhaps no descriptor is left: a later message tries again
                self.renew()

    def read(self) -> Iterator[Message]:
        """Yield the messages that have arrived; count and skip invalid ones."""
        for frames in read_waiting(self.socket):
            self._heard_s = time.monotonic()
            try:
                yield decode(frames[0].buffer)
            except ProtocolError:
                self.garbage += 1

    def send(self, message: Message) -> bool:
        """Send a message if the connection is up, else drop it; return whether it was sent."""
        self._follow()
        return send_if_up(self.socket, encode(message))

    def close(self) -> None:
        """Close the socket; queued messages get 100 ms to leave."""
        self.socket.close(linger=100)
