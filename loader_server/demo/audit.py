"""The demo's books: what was really trained on, held against the plan.

Rules: pure. A step is known by the samples (tags) that its batch held when the train step saw it; an epoch is settled
against the plan's own list, batch by batch and sample by sample, so that nothing lost or repeated can hide. Padding is
a share of all cells of the bucketed key, masked rows included.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Audit", "Settled", "Step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one train step was trained on."""

    tags: tuple[int, ...]
    shape: tuple[int, int]
    #: Cells of the bucketed key that hold data.
    filled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """One epoch, held against its plan."""

    batches: int
    #: Samples of the plan that no step saw, and those that steps saw too often.
    lost: int
    repeated: int
    in_plan_order: bool
    padding: float


class Audit:
    """Steps as they are told, epoch by epoch."""

    def __init__(self) -> None:
        self.shapes: set[tuple[int, int]] = set()
        self.lost = self.repeated = 0
        self._open: list[Step] = []
        self._cells = self._filled = 0

    @property
    def steps(self) -> int:
        """Steps of the epoch that is not yet settled."""
        return len(self._open)

    @property
    def padding(self) -> float:
        """Of all settled epochs."""
        return _padding(self._cells, self._filled)

    def trained(self, step: Step) -> None:
        """One more step of the epoch."""
        self._open.append(step)
        self.shapes.add(step.shape)

    def settle(self, planned: Sequence[Sequence[int]]) -> Settled:
        """The epoch is over; `planned` are the samples of each of its batches, in order."""
        steps, self._open = self._open, []
        wanted = Counter(tag for batch in planned for tag in batch)
        seen = Counter(tag for step in steps for tag in step.tags)
        cells, filled = sum(rows * length for rows, length in (s.shape for s in steps)), sum(s.filled for s in steps)
        settled = Settled(
            batches=len(steps),
            lost=(wanted - seen).total(),
            repeated=(seen - wanted).total(),
            in_plan_order=[sorted(batch) for batch in planned] == [sorted(step.tags) for step in steps],
            padding=_padding(cells, filled),
        )
        self.lost += settled.lost
        self.repeated += settled.repeated
        self._cells += cells
        self._filled += filled
        return settled


def _padding(cells: int, filled: int) -> float:
    return 1.0 - filled / cells if cells else 0.0
