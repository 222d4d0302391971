"""The demo's books: the samples that were trained on, checked against the plan.

Rules: pure. A step is known by the samples (tags) in its batch as the train step saw it; an epoch is compared with the
plan's own list, batch by batch and sample by sample, so that nothing lost or repeated can hide. Padding is a share of
all cells of the bucketed key, masked rows included.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Audit", "Settled", "Step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The batch that one train step saw."""

    tags: tuple[int, ...]
    shape: tuple[int, int]
    #: Cells of the bucketed key that hold data.
    filled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The comparison of one epoch with its plan."""

    batches: int
    #: The planned samples that no step saw, and the times that steps saw a sample too often.
    lost: int
    repeated: int
    in_plan_order: bool
    padding: float


class Audit:
    """The steps of each epoch, and their comparison with the plan."""

    def __init__(self) -> None:
        self.shapes: set[tuple[int, int]] = set()
        self.lost = self.repeated = 0
        self._open: list[Step] = []
        self._cells = self._filled = 0

    @property
    def steps(self) -> int:
        """Return the number of steps of the current epoch so far."""
        return len(self._open)

    @property
    def padding(self) -> float:
        """Return the share of cells that are padding in all settled epochs; 0 before the first."""
        return _padding(self._cells, self._filled)

    def add(self, step: Step) -> None:
        """Keep a step of the current epoch until `settle` compares it with the plan, and note its shape."""
        self._open.append(step)
        self.shapes.add(step.shape)

    def settle(self, planned: Sequence[Sequence[int]]) -> Settled:
        """End the epoch and compare its steps with `planned`, the samples of each of its batches in order.

        Return how many samples are missing or come too often, whether batches are in plan order, and the padding; add
        all to the sums of epochs.
        """
        steps, self._open = self._open, []
        expected = Counter(tag for batch in planned for tag in batch)
        seen = Counter(tag for step in steps for tag in step.tags)
        cells, filled = sum(math.prod(step.shape) for step in steps), sum(step.filled for step in steps)
        settled = Settled(
            batches=len(steps),
            lost=(expected - seen).total(),
            repeated=(seen - expected).total(),
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
