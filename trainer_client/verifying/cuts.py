"""Plan of reading an epoch again in parts: cut at random places, each part resumed there by another world.

Rules: pure; the caller brings the randomness. A part ends where a round of its world ends, so the next one resumes
where a trainer of that world could have saved its cursor. Together the parts have every batch exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shared.rounds import rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CutPart", "cut_plan"]


class Draws(Protocol):
    """Source of random numbers, such as `random.Random`."""

    def randint(self, a: int, b: int) -> int:
        """Return a number from `a` to `b`, both included."""

    def sample(self, population: range, k: int) -> Sequence[int]:
        """Return `k` different members."""


@dataclass(frozen=True, slots=True)
class CutPart:
    """Batches `start` to `stop` (excluded), read in rounds by a world of `world` ranks."""

    start: int
    stop: int
    world: int


def cut_plan(batches: int, group: int, cuts: int, draws: Draws) -> list[CutPart]:
    """Return the parts of the first `batches` batches.

    There are `cuts` cuts, or fewer where rounds leave no room for them.
    """
    inner = range(1, batches)
    stops = [*sorted(draws.sample(inner, min(cuts, len(inner)))), batches]
    parts: list[CutPart] = []
    start = 0
    for wanted in stops:
        if wanted <= start:
            continue
        world = draws.randint(1, group)
        # The last batches of a limited reading may end within a group, and rounds go by whole groups.
        end = -(-batches // group) * group
        stop = next(one.stop for one in rounds(start, end, group, world) if one.stop >= wanted)
        parts.append(CutPart(start, min(stop, batches), world))
        start = stop
        if start >= batches:
            break
    return parts
