"""What is known of each worker: one incarnation, its pace, its silence, and the tickets that it holds.

Rules: pure records; what is to be done about them is decided in `wants` and `connections`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.messages import Ticket

__all__ = ["QUICKEST_S", "Ask", "Worker"]

#: Differences of pace below this do not count: of two quick workers the one with less to do is asked.
QUICKEST_S = 0.001


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
    #: Its answer is here, and is being looked at.
    arrived: bool = False


@dataclass(slots=True, eq=False)
class Worker:
    """One incarnation of a worker, as it looks from here."""

    incarnation: int
    name: str
    #: The connection over which it is reached; None once another incarnation answers there.
    link: int | None
    #: Breaks ties: another order of workers for each trainer.
    rank: int
    in_slot: bool
    lock_byte: int
    heard_s: float
    pinged_s: float
    #: About how long it takes for one want, and when its last answer came.
    service_s: float = 0.0
    answered_s: float = 0.0
    #: Nothing came from it for too long, or its connection is gone.
    silent: bool = False
    #: It takes nothing new.
    leaving: bool = False
    #: It said that it drains: when it is gone it did not crash.
    in_good_order: bool = False
    #: It asked to be left alone until then.
    busy_until_s: float = 0.0
    #: Its connection broke: it may hold tickets that are void here.
    unlisted: bool = False
    asks: dict[Ticket, Ask] = field(default_factory=dict)

    def in_hand_s(self, ask: Ask, now_s: float) -> float:
        """Seconds since it could begin with this."""
        return now_s - max(ask.sent_s, self.answered_s)

    def serve(self, service_s: float, now_s: float) -> None:
        """Note that it took so long for a want."""
        self.service_s += 0.3 * (service_s - self.service_s) if self.service_s else service_s
        self.answered_s = now_s

    def is_in_doubt(self, since_s: float) -> bool:
        """Whether there is something to ask it: it was not heard since then, or has had a want for longer."""
        return self.unlisted or self.heard_s <= since_s or any(ask.sent_s <= since_s for ask in self.asks.values())

    def pace_s(self, now_s: float) -> float:
        """Seconds a want, counting how long the one in hand takes already."""
        pace_s = max(self.service_s, QUICKEST_S)
        if self.asks:  # tickets are held in the order in which they were sent: the first is the oldest
            oldest = next(iter(self.asks.values()))
            pace_s = max(pace_s, self.in_hand_s(oldest, now_s))
        return pace_s

    def is_live(self, now_s: float) -> bool:
        """Whether it gets wants."""
        return not (self.silent or self.leaving or now_s < self.busy_until_s)

    def could_write(self) -> bool:
        """Whether it holds tickets for writing in place."""
        return any(ask.in_slot for ask in self.asks.values())
