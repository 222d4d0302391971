"""One trainer as its lease table knows it: its leases, and since when it works on the first of them.

Rules: a lease's deadline starts when its batch is first in its trainer's hands; what waits behind it is held as long as
the trainer is heard, and is given back with it: a trainer that is stuck on one batch would be stuck on each. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.wire.message_parts import Lease

__all__ = ["Key", "LeaseTrainer"]

#: An epoch, and a batch number in it.
Key = tuple[int, int]

#: The number of deadlines for which a batch is held that the consumer has not taken, if its trainer is heard.
_HOLDS = 10


@dataclass(slots=True)
class LeaseTrainer:
    """A trainer and its leases."""

    heard_s: float
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
        """Return the lease that the trainer works on, or None."""
        return next(iter(self.leases), None)

    def is_at(self, lease: Lease | None) -> bool:
        """Return whether this is the lease that the trainer works on."""
        return lease is not None and (lease.epoch, lease.number) == self.first()

    def note_hand(self, now_s: float, *, in_hand: bool) -> None:
        """Restart the clock if another batch is first, or the consumer has taken it since."""
        in_hand = in_hand and bool(self.leases)
        first = self.first()
        if in_hand != self.in_hand or first != self.at_head:
            self.since_s = now_s
        self.in_hand, self.at_head = in_hand, first

    def has_taken_too_long(self, now_s: float, deadline_s: float) -> bool:
        """Return whether the first lease is past its deadline; that is longer if the consumer has not the batch yet."""
        # What waits for its data or behind other batches would expire unread with the simple deadline.
        return bool(self.leases) and now_s - self.since_s > deadline_s * (1 if self.in_hand else _HOLDS)

    def lose_all(self) -> None:
        """Drop all leases, which are void."""
        self.leases.clear()
        self.in_hand, self.at_head = False, None
