"""Audit of delivery: compares the batches that trainers got with those that the plan gives them.

Rules: pure; a lap is one pass through an epoch. A trainer's own word is taken only for the number of rounds of a lap,
and for whether the lap ended.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from shared.rounds import rounds

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Discrepancies", "Lap", "audited"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """One rank's lap: the `numbers` of its batches that were not empty, in `rounds` rounds."""

    rank: int
    lap: int
    batches: int
    group: int
    rounds: int
    ended: bool
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Discrepancies:
    """Numbers of batches that nobody got, and that were delivered more often than the plan says."""

    lost: int
    repeated: int


def audited(laps: Iterable[Lap], world: int) -> Discrepancies:
    """Return the discrepancies between the plan and the batches of all ranks of a world, lap by lap."""
    together: defaultdict[int, list[Lap]] = defaultdict(list)
    for lap in laps:
        together[lap.lap].append(lap)
    lost = repeated = 0
    for same in together.values():
        due = Counter(number for lap in same for number in _due(lap, world))
        got = Counter(number for lap in same for number in lap.numbers)
        lost += sum((due - got).values())
        repeated += sum((got - due).values())
    return Discrepancies(lost, repeated)


def _due(lap: Lap, world: int) -> list[int]:
    """Return the batch numbers that the plan gives this rank in the rounds it went; in all rounds if the lap ended."""
    way = rounds(0, lap.batches, lap.group, world)
    places = (one.place(lap.rank) for one in (way if lap.ended else islice(way, lap.rounds)))
    return [place.number for place in places if not place.empty]
