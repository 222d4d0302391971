"""Audit of delivery: compares the batches that trainers got with those that the plan gives them.

Rules: pure; a lap is one pass through an epoch. A trainer's own word is taken only for the number of rounds of a lap,
and for whether the lap ended.
"""

from __future__ import annotations

from collections import Counter
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
    """Return the discrepancies between the plan and the batches of all ranks of a world, lap by lap.

    Raise ValueError if the world is below 1 or exceeds a lap's group.
    """
    # By lap and number: each lap gives each number once, so the same number in two laps is no repetition.
    due, got = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for lap in laps:
        due.update((lap.lap, number) for number in _due(lap, world))
        got.update((lap.lap, number) for number in lap.numbers)
    return Discrepancies(lost=(due - got).total(), repeated=(got - due).total())


def _due(lap: Lap, world: int) -> list[int]:
    """Return the batch numbers that the plan gives this rank in the rounds it went; in all rounds if the lap ended.

    Raise ValueError if the world is below 1 or exceeds the lap's group.
    """
    # All rounds of an ended lap, however many it reports: a trainer that saw an early end has lost the others.
    planned = islice(rounds(0, lap.batches, lap.group, world), None if lap.ended else lap.rounds)
    places = [each_round.place(lap.rank) for each_round in planned]
    return [place.number for place in places if not place.empty]
