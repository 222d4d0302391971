"""One trainer as its lease table knows it: its leases, since when it works on the first of them, and its deadline.

Rules: a lease's deadline starts when its batch is first in its trainer's hands; what waits behind it is held as long as
the trainer is heard, and is given back with it: a trainer that is stuck on one batch would be stuck on each. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.wire.message_parts import Lease

__all__ = ["Key", "LeaseTrainer", "Pace"]

#: An epoch, and a batch number in it.
Key = tuple[int, int]

#: The number of deadlines for which a batch is held that the consumer has not taken, if its trainer is heard.
_HOLDS = 10

#: The number of latest durations that count for a deadline, and the multiple of the slowest of them that it is.
_RECENT = 64
_TIMES = 3


@dataclass(slots=True)
class LeaseTrainer:
    """A trainer and its leases."""

    heard_s: float
    #: The serial of its last report; -1 before the first.
    serial: int = -1
    #: The leases, in the order in which they were given.
    leases: dict[Key, None] = field(default_factory=dict)
    #: The first lease, whether the consumer has taken its batch, and since when both are so.
    at_head: Key | None = None
    in_hand: bool = False
    since_s: float = 0.0
    #: Whether it asked for more leases than it got.
    hungry: bool = False
    #: Whether it was called, because its leases changed or numbers became free, and has not reported since.
    called: bool = False

    def first(self) -> Key | None:
        """Return the lease that the trainer works on, its oldest; None if it has none."""
        return next(iter(self.leases), None)

    def is_at(self, lease: Lease | None) -> bool:
        """Return whether this is the lease that the trainer works on; False for None."""
        return lease is not None and (lease.epoch, lease.number) == self.first()

    def note_hand(self, now_s: float, *, in_hand: bool) -> None:
        """Record whether the first batch is in hand; restart the clock if that has changed, or another batch is first.

        Without leases nothing counts as in hand.
        """
        # Without leases nothing is in hand: a trainer that still has what it lost must run into no deadline for it.
        state = (self.first(), in_hand and bool(self.leases))
        if state != (self.at_head, self.in_hand):
            self.since_s = now_s
        self.at_head, self.in_hand = state

    def has_taken_too_long(self, now_s: float, deadline_s: float) -> bool:
        """Return whether the first lease is past its deadline, ten times as long if its batch is not in hand yet.

        Return False without leases.
        """
        # With the simple deadline a batch that waits for its data, or behind other batches, would expire unread.
        return bool(self.leases) and now_s - self.since_s > deadline_s * (1 if self.in_hand else _HOLDS)

    def lose_all(self) -> None:
        """Drop all leases, which are void; nothing counts as in hand any more."""
        self.leases.clear()
        self.in_hand, self.at_head = False, None


class Pace:
    """Recent durations of batches in trainers' hands, and the deadline that follows; `floor_s` is the shortest."""

    def __init__(self, floor_s: float) -> None:
        self._floor_s = floor_s
        self._recent_s: deque[float] = deque(maxlen=_RECENT)
        #: The present deadline.
        self.deadline_s = floor_s

    def add(self, took_s: float) -> None:
        """Add the time from taking a batch to reporting it, and update the deadline.

        The deadline is three times the longest of the last 64 durations, but at least the shortest deadline.
        """
        self._recent_s.append(took_s)
        self.deadline_s = max(self._floor_s, _TIMES * max(self._recent_s))
