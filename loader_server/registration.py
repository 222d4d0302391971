"""A worker's talk with the coordinator: register, heartbeat, learn of samples that kill decoders.

Rules: used in the worker's poll loop only. A coordinator that is away is waited for, and told anew who we are when it
is back; trainers that are attached are served meanwhile. It answers every heartbeat. A connection on which nothing
comes may be one that only we still believe in, so it is made anew, after pauses that grow.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from typing import TYPE_CHECKING

import zmq

from shared import messages as m
from shared.codec import decode, encode
from shared.errors import ProtocolError, RefusedError
from shared.sockets import connect_dealer, drained

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.keys import ClientKeys

__all__ = ["Registration", "advertised"]

_EVERYWHERE = ("0.0.0.0", "*", "[::]")  # noqa: S104 - recognised here, bound only with keys or --insecure

#: An address that is reserved for documentation: the way to it is the way to the world.
_SOME_OTHER_HOST = "192.0.2.1"

_FIRST_PAUSE_S = 0.02
_PAUSE_S = 0.5

#: A silent connection is made anew at most this many heartbeat timeouts apart.
_LONGEST_SILENCE = 8


def advertised(endpoint: str, coordinator: str) -> str:
    """The endpoint that trainers can reach: a worker that listens everywhere names the address that it has towards the
    coordinator, or, where that is on this host, towards the world.
    """
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    if host not in _EVERYWHERE:
        return endpoint
    target = coordinator.partition("://")[2].rpartition(":")[0]
    local = target in _EVERYWHERE or target == "localhost" or target.startswith("127.")
    return f"{scheme}://{_address_towards(_SOME_OTHER_HOST if local else target)}:{port}"


def _address_towards(host: str) -> str:
    """Our address on the way there; connecting a datagram socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
            address: str = probe.getsockname()[0]
        except OSError:  # no way out of this host
            return "127.0.0.1"
        return address


class Registration:
    """One DEALER to the coordinator; `socket` changes when it is made anew."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], coordinator: str, keys: ClientKeys | None, register: m.Register
    ) -> None:
        #: The job's, once registered.
        self.heartbeat_timeout_s = 2.0
        self.registered = False
        self._context = context
        self._coordinator = coordinator
        self._keys = keys
        self._register = register
        self.socket = self._connect()
        self._due_s = 0.0
        #: Since when nothing was heard, and how many heartbeat timeouts of that are borne.
        self._silent_s: float | None = None
        self._patience = 1
        self._left = False
        self._untold: list[m.Culprit] = []

    def _connect(self) -> zmq.Socket[bytes]:
        return connect_dealer(self._context, self._coordinator, self._keys, secrets.token_bytes(16))

    def due_s(self) -> float:
        """When to turn again at the latest."""
        return self._due_s

    def turn(self, now_s: float, load: Callable[[], m.Beat], *, spoken_to: bool) -> list[m.Culprits]:
        """Say what is due, take in what was said; the culprits that were told of."""
        culprits: list[m.Culprits] = []
        for frames in drained(self.socket) if spoken_to else ():
            self._silent_s, self._patience = now_s, 1
            with contextlib.suppress(ProtocolError):
                culprits += self._take_in(decode(frames[0].buffer), now_s)
        self._renew(now_s)
        if now_s >= self._due_s and not self._left:  # a heartbeat after leaving would register us anew
            sent = self._send(load() if self.registered else self._register)
            beat_s = self.heartbeat_timeout_s / 4
            self._due_s = now_s + ((beat_s if self.registered else _PAUSE_S) if sent else _FIRST_PAUSE_S)
        self._untold = [culprit for culprit in self._untold if not self._send(culprit)]
        return culprits

    def _renew(self, now_s: float) -> None:
        """Make a silent connection anew, and register on it: the coordinator has to know where to find us."""
        if self._silent_s is None:
            self._silent_s = now_s
        if self._left or now_s - self._silent_s <= self._patience * self.heartbeat_timeout_s:
            return
        self.socket.close(linger=0)
        self.socket = self._connect()
        self._silent_s, self._patience = now_s, min(2 * self._patience, _LONGEST_SILENCE)
        self.registered, self._due_s = False, now_s

    def _take_in(self, message: m.Message, now_s: float) -> list[m.Culprits]:
        if isinstance(message, m.Registered):
            self.heartbeat_timeout_s = message.heartbeat_timeout_ms / 1000
            self.registered = True
            self._due_s = now_s
        if isinstance(message, m.Culprits):
            return [message]
        if isinstance(message, m.Refused) and message.code == "unknown":
            self.registered, self._due_s = False, now_s
        elif isinstance(message, m.Refused):
            raise RefusedError(
                code=message.code,
                expected=message.expected,
                got=message.got,
                where=f"coordinator at {self._coordinator}",
                remedy=message.remedy,
            )
        return []

    def tell(self, culprit: m.Culprit) -> None:
        """A sample kills decoders: said until it could be sent."""
        self._untold.append(culprit)

    def leave(self) -> None:
        """No new wants for us; said once."""
        if not self._left:
            self._left = self._send(m.Leave(worker=self._register.worker, incarnation=self._register.incarnation))

    def _send(self, message: m.Message) -> bool:
        try:
            self.socket.send(encode(message), zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Hang up."""
        self.socket.close(linger=100)
