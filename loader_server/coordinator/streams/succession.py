"""Who holds each rank of a stream, and who held it before.

Rules: pure. An incarnation that came later has a rank for good: the one before it may not come back, whichever of them
a restarted coordinator hears first. So the order in which incarnations came to a rank is kept in the journal. It is
bounded: only the latest of each rank are remembered, since an older one would have to outlive them all to come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Succession"]

#: How many incarnations of each rank are remembered.
_REMEMBERED = 16


class Succession:
    """The order in which incarnations came to each rank of one stream; the last one has it."""

    def __init__(self) -> None:
        self._orders: dict[int, tuple[int, ...]] = {}
        #: The ranks whose order names an incarnation.
        self._ranks: dict[int, set[int]] = {}

    def holder(self, rank: int) -> int | None:
        """The incarnation that has the rank."""
        order = self._orders.get(rank)
        return order[-1] if order else None

    def is_superseded(self, incarnation: int) -> bool:
        """Whether a later incarnation has one of its ranks."""
        return any(self._orders[rank][-1] != incarnation for rank in self._ranks.get(incarnation, ()))

    def after(self, incarnation: int, ranks: range) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The orders that change when an incarnation takes these ranks and leaves all others that it had."""
        for rank in sorted({*ranks, *self._ranks.get(incarnation, ())}):
            before = self._orders.get(rank, ())
            others = tuple(one for one in before if one != incarnation)
            order = (*others, incarnation) if rank in ranks else others
            if order != before:
                yield rank, order[-_REMEMBERED:]

    def set_order(self, rank: int, order: tuple[int, ...]) -> None:
        """Set the order of a rank."""
        for one in self._orders.get(rank, ()):
            self._ranks[one].discard(rank)
            if not self._ranks[one]:
                del self._ranks[one]
        self._orders[rank] = order
        for one in order:
            self._ranks.setdefault(one, set()).add(rank)
