"""Where a trainer's batches lie ahead: the endless sequence of its places, lap after lap.

Rules: pure. A lap is one pass from a cursor to the end of its epoch; after it comes the next epoch from its
beginning, or, in an evaluation stream, the same pass again. How many batches an epoch has is learnt from outside; the
course goes as far as it knows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shared.rounds import rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Course", "Position", "Seat", "Target"]


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two rounds: the first batch number not yet passed, and the group that numbers count in."""

    epoch: int
    number: int
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Which ranks of the world this trainer occupies."""

    rank: int
    replicas: int
    world: int


@dataclass(frozen=True, slots=True)
class Target:
    """One batch that this trainer gets: `position` is where its round starts, `replica` which of our ranks it is for.

    `last` says that its lap ends after it.
    """

    position: Position
    replica: int
    lap: int
    number: int
    empty: bool
    last: bool = False


class Course:
    """The targets from `start` on; `next_group` is the group of later epochs."""

    def __init__(self, start: Position, seat: Seat, *, next_group: int, repeats: bool) -> None:
        self._seat = seat
        self._start = start
        self._next_group = next_group
        self._repeats = repeats
        self._at = start
        self._lap = 0
        self._batches: dict[tuple[int, int], int] = {}
        self._lap_targets: Iterator[Target] | None = None

    def learn(self, epoch: int, group: int, batches: int) -> None:
        """An epoch has so many batches."""
        self._batches[epoch, group] = batches

    def lap_ahead(self) -> tuple[Position, int] | None:
        """The position and number of the lap that starts next; None in the midst of one."""
        return (self._at, self._lap) if self._lap_targets is None else None

    def missing(self) -> tuple[int, int] | None:
        """The (epoch, group) whose number of batches must be learnt before the course goes on."""
        key = (self._at.epoch, self._at.group)
        return None if self._lap_targets is not None or key in self._batches else key

    def advance(self) -> Target | None:
        """The next target; None while `missing` something, or where there is nothing to repeat."""
        while True:
            if self._lap_targets is None:
                if self.missing() is not None or (self._repeats and self._is_at_the_end()):
                    return None
                self._lap_targets = self._one_lap()
            target = next(self._lap_targets, None)
            if target is not None:
                return target
            self._finish_lap()

    def _is_at_the_end(self) -> bool:
        return self._at.number >= self._batches[self._at.epoch, self._at.group]

    def _finish_lap(self) -> None:
        self._lap += 1
        self._lap_targets = None
        self._at = self._start if self._repeats else Position(self._at.epoch + 1, 0, self._next_group)

    def _one_lap(self) -> Iterator[Target]:
        """One target behind the rounds, so that the last one is known as such; an epoch without batches has none."""
        at, seat = self._at, self._seat
        batches = self._batches[at.epoch, at.group]
        previous: Target | None = None
        for one in rounds(at.number, batches, at.group, seat.world):
            start = replace(at, number=one.start)
            for replica in range(seat.replicas):
                place = one.place(seat.rank + replica)
                if previous is not None:
                    yield previous
                previous = Target(start, replica, self._lap, place.number, place.empty)
        if previous is not None:
            yield replace(previous, last=True)
