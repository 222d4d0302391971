"""What `Wants` knows: of each worker, of each ticket that it asked for, of each batch of the line; settings and counts.

Records only, pure: what is to be done about them is decided in `wants`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.errors import StokerError
    from shared.messages import Ticket
    from trainer_client.course import Target

__all__ = ["QUICKEST_S", "Ask", "Entry", "WantCounts", "WantSettings", "Worker"]

#: Differences of pace below this do not count: of two quick workers the one with less to do is asked.
QUICKEST_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class WantSettings:
    """How far ahead, and how patient."""

    prefetch: int
    heartbeat_timeout_s: float
    #: Without any live worker for so long, the feed stops with an error.
    lost_timeout_s: float
    #: A head that waits so long, and three times the usual answer, is hedged.
    hedge_floor_s: float = 0.25


@dataclass(slots=True)
class Ask:
    """A ticket that a worker holds, or held when it was last heard."""

    seq: int
    in_slot: bool
    sent_s: float
    #: The last ping that was sent before this want: an answer to a later one must list it.
    after_ping: int
    #: Its batch is already held to be one that may kill.
    blamed: bool = False


@dataclass(slots=True)
class Worker:
    """One incarnation of a worker, as it looks from here."""

    name: str
    in_slot: bool
    heard_s: float
    pinged_s: float
    #: About how long it takes for one want, and when its last answer came.
    service_s: float = 0.0
    answered_s: float = 0.0
    #: Nothing came from it for too long, or its connection is gone.
    silent: bool = False
    #: It takes nothing new.
    leaving: bool = False
    #: Its connection broke: it may hold tickets that are void here.
    unlisted: bool = False
    asks: dict[Ticket, Ask] = field(default_factory=dict)

    def in_hand_s(self, ask: Ask, now_s: float) -> float:
        """Seconds since it could begin with this."""
        return now_s - max(ask.sent_s, self.answered_s)

    def served(self, service_s: float, now_s: float) -> None:
        """It took so long for a want."""
        self.service_s += 0.3 * (service_s - self.service_s) if self.service_s else service_s
        self.answered_s = now_s

    def is_in_doubt(self, since_s: float) -> bool:
        """Whether there is something to ask it: it was not heard since then, or has had a want for longer."""
        return self.unlisted or self.heard_s <= since_s or any(ask.sent_s <= since_s for ask in self.asks.values())

    def pace_s(self, now_s: float) -> float:
        """Seconds a want, counting how long the one in hand takes already."""
        oldest_s = max((self.in_hand_s(ask, now_s) for ask in self.asks.values()), default=0.0)
        return max(self.service_s, oldest_s, QUICKEST_S)

    @property
    def live(self) -> bool:
        """Whether it gets wants."""
        return not self.silent and not self.leaving


@dataclass(slots=True)
class Entry:
    """A batch of the line."""

    target: Target
    attempt: int = 0
    ready: bool = False
    hedged: bool = False
    #: Asked elsewhere because of silence no earlier than this; moves out by doubling.
    again_s: float = 0.0
    patience_s: float = 0.0
    refused: dict[int, StokerError] = field(default_factory=dict)
    #: Workers that hold a ticket for it.
    askers: set[int] = field(default_factory=set)


@dataclass(slots=True)
class WantCounts:
    """What happened so far, for metrics and tests."""

    asked: int = 0
    asked_again: int = 0
    hedged: int = 0
    stale: int = 0
    rejected: int = 0
    lost_on_the_way: int = 0
    retracted: int = 0
    taken_over: int = 0
    suspected: int = 0
