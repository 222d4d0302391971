"""Lockstep rounds: how ranks share an epoch's batches, as a pure function of the cursor, without messages.

An epoch has `batches` batch numbers; `group` consecutive ones belong to one bucket. A round takes the next `world`
numbers at the cursor, but never crosses a group: its places past the group's end are empty batches of the group's
shape. Rounds start at the cursor, so the world may change to anything up to `group` at any round. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Place", "Round", "rounds", "rounds_left"]


@dataclass(frozen=True, slots=True)
class Place:
    """One rank's part of a round: batch `number`, or an empty batch of its shape."""

    number: int
    empty: bool


@dataclass(frozen=True, slots=True)
class Round:
    """Batch numbers `start` to `stop` (excluded), trained on in one step by all ranks."""

    start: int
    stop: int

    def place(self, rank: int) -> Place:
        """Return the place of `rank`: number `start + rank`, or from `stop` on an empty one, with number `start`."""
        number = self.start + rank
        return Place(number, empty=False) if number < self.stop else Place(self.start, empty=True)


def rounds(cursor: int, batches: int, group: int, world: int) -> Iterator[Round]:
    """Yield the rounds from `cursor` to the end of the epoch; nothing if the cursor is there or past it.

    Raise ValueError, at the first round, if the world is below 1 or exceeds the group.
    """
    # A larger world would leave some ranks an empty batch in each round.
    if not 1 <= world <= group:
        raise ValueError(f"a world of {world} needs a group of at least {world}, got {group}")
    while cursor < batches:
        stop = min(cursor + world, cursor - cursor % group + group, batches)
        yield Round(cursor, stop)
        cursor = stop


def rounds_left(cursor: int, batches: int, group: int, world: int) -> int:
    """Return the number of rounds from `cursor` to the end of the epoch; 0 if the cursor is there or past it.

    The world has to be one that `rounds` takes, which is not checked.
    """
    if cursor >= batches:
        return 0
    # The rest of the current group, the whole groups after it, and the last short group: each ends with a round of its
    # own, so each is rounded up to whole rounds.
    first_end = min(cursor - cursor % group + group, batches)
    whole, rest = divmod(batches - first_end, group)
    return -(-(first_end - cursor) // world) + whole * -(-group // world) + -(-rest // world)
