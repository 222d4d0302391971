"""Plan of reading an epoch again in parts: cut at random places, each part resumed there by another world.

Rules: pure; the caller brings the randomness. A part ends where a round of its world ends, so the next one resumes
where a trainer of that world could have saved its cursor. Together the parts have every batch exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.rounds import rounds

if TYPE_CHECKING:
    from random import Random

__all__ = ["CutPart", "cut_plan"]


@dataclass(frozen=True, slots=True)
class CutPart:
    """Batches `start` to `stop` (excluded), read in rounds by a world of `world` ranks."""

    start: int
    stop: int
    world: int


def cut_plan(batches: int, group: int, cuts: int, draws: Random) -> list[CutPart]:
    """Return the parts of the first `batches` batches.

    There are `cuts` cuts, or fewer where rounds leave no room for them.
    """
    inner = range(1, batches)
    stops = [*sorted(draws.sample(inner, min(cuts, len(inner)))), batches]
    parts: list[CutPart] = []
    start = 0
    for wanted in stops:
        if wanted <= start:  # the round that an earlier cut fell into reaches past this one
            continue
        world = draws.randint(1, group)
        # The last batches of a limited reading may end within a group, and rounds go by whole groups.
        end = -(-batches // group) * group
        stop = next(each.stop for each in rounds(start, end, group, world) if each.stop >= wanted)
        parts.append(CutPart(start, min(stop, batches), world))
        start = stop
        if start >= batches:
            break
    return parts
