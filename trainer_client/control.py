"""The trainer's talk with the coordinator: attach, heartbeat with progress, members.

Rules: used in the receive thread only. A lost coordinator is no error once attached: training in lockstep goes on,
and when it is back it is told again who we are. Before that, attaching is retried with growing pauses.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from shared.codec import decode, encode
from shared.errors import ProtocolError
from shared.messages import (
    Attach,
    Attached,
    Cursor,
    Detach,
    Members,
    Message,
    NotAttached,
    Progress,
    Refused,
    Wait,
)
from shared.sockets import connect_dealer, drained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.keys import ClientKeys
    from trainer_client.course import Seat

__all__ = ["Control", "Identity"]

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this trainer is to the coordinator."""

    job: str
    stream: str
    seat: Seat
    incarnation: int
    name: str


class Control:
    """One DEALER; `attaching` holds the cursor to attach with until the answer is there."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: ClientKeys | None, identity: Identity
    ) -> None:
        self.endpoint = endpoint
        self.heard = "no answer"
        self._identity = identity
        self.socket = connect_dealer(context, endpoint, keys, secrets.token_bytes(16))
        self._cursor: Cursor | None = None
        self._serial = 0
        self._attaching = False
        self._again_s = 0.0
        self._pause_s = _FIRST_PAUSE_S

    @property
    def attaching(self) -> bool:
        """Whether an answer to Attach is awaited."""
        return self._attaching

    def attach(self, cursor: Cursor | None, now_s: float) -> None:
        """Start to attach at this cursor (None: at the beginning)."""
        self._cursor, self._attaching = cursor, True
        self._serial += 1
        self._again_s, self._pause_s = now_s, _FIRST_PAUSE_S

    def turn(self, now_s: float) -> float | None:
        """Ask again if it is time; when it is time next."""
        if not self._attaching:
            return None
        if now_s >= self._again_s:
            seat = self._identity.seat
            sent = self._send(
                Attach(
                    serial=self._serial,
                    job=self._identity.job,
                    stream=self._identity.stream,
                    rank=seat.rank,
                    replicas=seat.replicas,
                    world=seat.world,
                    incarnation=self._identity.incarnation,
                    name=self._identity.name,
                    cursor=self._cursor,
                )
            )
            # While the connection is being made, look again soon: a start should not wait for a pause to end.
            self._again_s = now_s + (max(self._pause_s, 0.5) if sent else _FIRST_PAUSE_S / 5)
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return self._again_s

    def beat(self, epoch: int, number: int) -> None:
        """Tell how far training is."""
        who = self._identity
        if not self._attaching:
            self._send(
                Progress(
                    stream=who.stream,
                    rank=who.seat.rank,
                    incarnation=who.incarnation,
                    epoch=epoch,
                    number=number,
                    read_epoch=epoch,
                    read_number=number,
                    waited_permille=0,
                    members=0,
                )
            )

    def detach(self) -> None:
        """Leave in good order."""
        who = self._identity
        self._send(Detach(stream=who.stream, rank=who.seat.rank, incarnation=who.incarnation))

    def read(self, now_s: float) -> Iterator[Attached | Members | Refused]:
        """What the coordinator said."""
        for frames in drained(self.socket):
            with contextlib.suppress(ProtocolError):
                message = decode(frames[0].buffer)
                if isinstance(message, Wait):
                    self.heard = message.reason
                    self._again_s = now_s + message.retry_ms / 1000
                elif isinstance(message, NotAttached):
                    self._attaching = False
                    yield Refused(code=message.code, expected=message.expected, got=message.got, remedy=message.remedy)
                elif isinstance(message, Attached | Refused | Members):
                    self._attaching = self._attaching and isinstance(message, Members)
                    yield message

    def _send(self, message: Message) -> bool:
        try:
            self.socket.send(encode(message), zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Hang up; what was said last still has a moment to leave."""
        self.socket.close(linger=100)
