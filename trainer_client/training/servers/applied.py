"""The batches in the variables that parameter servers hold, as numbers of a stream in queue mode.

Rules: pure. A number counts once, however often and to whichever workers it was leased. Memory grows with the numbers
that are missing, not with those that are applied. What the coordinator knows to be settled is in the variables, or
given up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from shared.wire.message_parts import DoneSet, EpochDone

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AppliedBatches", "done_set_of", "merged"]


@dataclass(slots=True)
class _EpochApplied:
    """The applied numbers of one epoch: all below `fresh`, except those missing."""

    fresh: int = 0
    missing: set[int] = field(default_factory=set)

    def has(self, number: int) -> bool:
        return number < self.fresh and number not in self.missing

    def add(self, number: int) -> None:
        # A number beyond `fresh` leaves those in between missing: batches are applied in any order.
        self.missing.discard(number)
        self.missing.update(range(self.fresh, number))
        self.fresh = max(self.fresh, number + 1)

    def unite(self, other: _EpochApplied) -> None:
        # Missing in both is what neither has: one that is behind has nothing from its `fresh` on.
        self.missing = {
            number for number in self.missing | other.missing if not (self.has(number) or other.has(number))
        }
        self.fresh = max(self.fresh, other.fresh)


class AppliedBatches:
    """The applied batches of all epochs; one before `settled` that is not listed is whole."""

    def __init__(self, done: DoneSet) -> None:
        # On the wire, each missing number stands as its distance from the one before.
        self._epochs = {
            epoch.epoch: _EpochApplied(epoch.fresh, set(accumulate(epoch.missing))) for epoch in done.epochs
        }
        self._settled = max(self._epochs, default=0)

    def has(self, epoch: int, number: int) -> bool:
        """Return whether this batch is applied; of an epoch before `settled` that is not listed, every batch is."""
        return self._epochs[epoch].has(number) if epoch in self._epochs else epoch < self._settled

    def add(self, epoch: int, number: int) -> None:
        """Count this batch as applied to the variables here; again, it changes nothing in an epoch that is listed.

        In one that is whole all other batches would count as missing: ask `has` before.
        """
        self._epochs.setdefault(epoch, _EpochApplied()).add(number)

    def forget_before(self, epoch: int) -> None:
        """Drop what is known of earlier epochs: they are settled, so none of their numbers comes again.

        From then on all their batches count as applied.
        """
        self._settled = max(self._settled, epoch)
        for earlier in [earlier for earlier in self._epochs if earlier < epoch]:
            del self._epochs[earlier]

    def unite(self, other: AppliedBatches) -> None:
        """Count all that the other has as well: a batch is applied then if it is in either of them."""
        for at in self._epochs.keys() | other._epochs.keys():
            if self._is_whole(at) or other._is_whole(at):
                self._epochs.pop(at, None)
            elif at in other._epochs:
                self._epochs.setdefault(at, _EpochApplied()).unite(other._epochs[at])
        self._settled = max(self._settled, other._settled)

    def _is_whole(self, epoch: int) -> bool:
        return epoch < self._settled and epoch not in self._epochs

    def done_set(self) -> DoneSet:
        """Return the applied batches in the form in which they cross the wire and lie in checkpoints."""
        # An epoch before the last one that is not listed is whole, so all others have to be listed.
        listed = {*range(self._settled, max([*self._epochs, self._settled]) + 1), *self._epochs}
        return DoneSet(tuple(_packed(at, self._epochs.get(at, _EpochApplied())) for at in sorted(listed)))


def _packed(at: int, epoch: _EpochApplied) -> EpochDone:
    missing = sorted(epoch.missing)
    steps = (number - before for number, before in zip(missing, [0, *missing], strict=False))
    return EpochDone(at, epoch.fresh, tuple(steps))


def done_set_of(state: Mapping[str, Any]) -> DoneSet:
    """Return the batches that are done by a feed's state in queue mode, in the form in which they cross the wire."""
    return DoneSet(tuple(EpochDone(epoch, fresh, tuple(missing)) for epoch, fresh, missing in state["epochs"]))


def merged(settled: DoneSet, applied: DoneSet) -> DoneSet:
    """Return the batches that are done: those that the coordinator had settled, and those that are applied."""
    whole = AppliedBatches(settled)
    whole.unite(AppliedBatches(applied))
    return whole.done_set()
