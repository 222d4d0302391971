"""Whether every batch was given out once: compares what trainers got with what the plan says they should get.

Rules: pure; a lap is one pass through an epoch; the only claims of a trainer's that are believed are how many rounds of
a lap it went, and whether the lap ended.
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
    """What one rank got in one lap: the `numbers` of its batches that were not empty, in `rounds` rounds."""

    rank: int
    lap: int
    batches: int
    group: int
    rounds: int
    ended: bool
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Discrepancies:
    """How many batches nobody got, and how many were given out more often than the plan says."""

    lost: int
    repeated: int


def audited(laps: Iterable[Lap], world: int) -> Discrepancies:
    """Compare what all ranks of a world got, lap by lap, with the plan."""
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
    """The batch numbers that the plan gives this rank in the rounds it went; all rounds, if the lap ended."""
    way = rounds(0, lap.batches, lap.group, world)
    places = (one.place(lap.rank) for one in (way if lap.ended else islice(way, lap.rounds)))
    return [place.number for place in places if not place.empty]
