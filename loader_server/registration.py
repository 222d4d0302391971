"""A worker's talk with the coordinator: register, heartbeat, learn of samples that kill decoders.

Rules: used in the worker's poll loop only. A coordinator that is away is waited for, and told anew who we are when it
is back; trainers that are attached are served meanwhile.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

import zmq

from shared import messages as m
from shared.codec import decode, encode
from shared.errors import ProtocolError, RefusedError
from shared.sockets import connect_dealer, drained

if TYPE_CHECKING:
    from shared.keys import ClientKeys

__all__ = ["Registration"]

_FIRST_PAUSE_S = 0.02
_PAUSE_S = 0.5


class Registration:
    """One DEALER to the coordinator."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], coordinator: str, keys: ClientKeys | None, register: m.Register
    ) -> None:
        #: The job's, once registered.
        self.heartbeat_timeout_s = 2.0
        self.registered = False
        self.socket = connect_dealer(context, coordinator, keys, secrets.token_bytes(16))
        self._coordinator = coordinator
        self._register = register
        self._due_s = 0.0
        self._left = False
        self._untold: list[m.Culprit] = []

    def due_s(self) -> float:
        """When to turn again at the latest."""
        return self._due_s

    def turn(self, now_s: float, load: m.Beat) -> tuple[m.CulpritSample, ...] | None:
        """Say what is due, take in what was said; the culprits if some were told."""
        culprits = None
        for frames in drained(self.socket):
            with contextlib.suppress(ProtocolError):
                culprits = self._take_in(decode(frames[0].buffer), now_s) or culprits
        if now_s >= self._due_s and not self._left:  # a heartbeat after leaving would register us anew
            sent = self._send(load if self.registered else self._register)
            beat_s = self.heartbeat_timeout_s / 4
            self._due_s = now_s + ((beat_s if self.registered else _PAUSE_S) if sent else _FIRST_PAUSE_S)
        self._untold = [culprit for culprit in self._untold if not self._send(culprit)]
        return culprits

    def _take_in(self, message: m.Message, now_s: float) -> tuple[m.CulpritSample, ...] | None:
        if isinstance(message, m.Registered):
            self.heartbeat_timeout_s = message.heartbeat_timeout_ms / 1000
            self.registered = True
            self._due_s = now_s
            return message.culprits
        if isinstance(message, m.Culprits):
            return message.culprits
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
        return None

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
