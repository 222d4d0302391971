"""The holder of each rank of a stream, and those before it.

Rules: pure. A later incarnation has the rank for good: the one before it may not come back, whichever of them a
restarted coordinator hears first. Each taking has a tenure above those of all earlier ones, and a trainer that comes
back shows its own. That tells an older incarnation from a newer one, however many came in between and even if the
journal lacks what could not be written. An incarnation that has not heard its tenure yet is known by its number. Only
the latest few of each rank are remembered, since an older one would have to outlive them all without an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Succession", "overlap"]

#: Limit of incarnations that are remembered for each rank.
_REMEMBERED = 16


class Succession:
    """The order in which incarnations took each rank of one stream; the last one holds it."""

    def __init__(self) -> None:
        #: By rank: the incarnations that took it, oldest first.
        self._orders: dict[int, tuple[int, ...]] = {}
        #: By incarnation: the ranks whose order contains it.
        self._ranks: dict[int, set[int]] = {}
        #: By rank: the tenure of the last taking.
        self._tenures: dict[int, int] = {}
        self._next_tenure = 1

    def holder(self, rank: int) -> int | None:
        """Return the incarnation that holds the rank; None if nobody does."""
        order = self._orders.get(rank)
        return order[-1] if order else None

    def is_known(self) -> bool:
        """Return whether anybody holds a rank."""
        return any(self._orders.values())

    def is_superseded(self, incarnation: int) -> bool:
        """Return whether a later incarnation has taken one of its ranks, as far as is remembered."""
        return any(self._orders[rank][-1] != incarnation for rank in self._ranks.get(incarnation, ()))

    def tenure(self, incarnation: int, rank: int) -> int | None:
        """Return the tenure of an incarnation that holds this rank; None if it does not."""
        return self._tenures[rank] if self.holder(rank) == incarnation else None

    def last_tenure(self, ranks: range) -> int:
        """Return the highest tenure of these ranks; 0 if nobody has taken one. Raise a ValueError for no ranks."""
        return max(self._tenures.get(rank, 0) for rank in ranks)

    def after(
        self, incarnation: int, ranks: range, shown: int | None = None
    ) -> Iterator[tuple[int, tuple[int, ...], int]]:
        """Yield the ranks of which order or tenure changes, with both, when an incarnation takes exactly these ranks.

        It gives up all other ranks that it held. It keeps the tenure that it shows or, if it holds all of these ranks
        already, has; otherwise it gets the next one. Orders have the latest 16 incarnations. Nothing is changed here:
        see `set_order`. ValueError of `last_tenure` passes through.
        """
        # A repeated attach must not raise the tenure: the trainer may have heard the first answer, and would then be
        # superseded by itself.
        has_all = all(self.holder(rank) == incarnation for rank in ranks)
        tenure = shown or (self.last_tenure(ranks) if has_all else self._next_tenure)
        for rank in sorted({*ranks, *self._ranks.get(incarnation, ())}):
            before = (self._orders.get(rank, ()), self._tenures.get(rank, 0))
            order = tuple(other for other in before[0] if other != incarnation)
            # It leaves the order of a rank that it gives up: on moving to another rank it must leave no ghost behind.
            after = ((*order, incarnation), tenure) if rank in ranks else (order, before[1])
            if after != before:
                yield rank, after[0][-_REMEMBERED:], after[1]

    def set_order(self, rank: int, order: tuple[int, ...], tenure: int) -> None:
        """Set the order of a rank, oldest incarnation first, and the tenure of its holder, which is the last."""
        for incarnation in self._orders.get(rank, ()):
            self._ranks[incarnation].discard(rank)
            if not self._ranks[incarnation]:
                del self._ranks[incarnation]
        self._orders[rank] = order
        for incarnation in order:
            self._ranks.setdefault(incarnation, set()).add(rank)
        self._tenures[rank] = tenure
        self._next_tenure = max(self._next_tenure, tenure + 1)


def overlap(ranks: range, others: range) -> bool:
    """Return whether two ranges of ranks have a rank in common; an empty one has to begin at 0."""
    return ranks.start < others.stop and others.start < ranks.stop
