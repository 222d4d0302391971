"""How ranks share the batches of an epoch in lockstep: a pure function of the cursor, with no messages.

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
    """What one rank gets in one round: batch `number`, or an empty batch shaped like it."""

    number: int
    empty: bool


@dataclass(frozen=True, slots=True)
class Round:
    """The batch numbers `start` to `stop` (excluded), trained on in one step by all ranks."""

    start: int
    stop: int

    def place(self, rank: int) -> Place:
        """The place of `rank`; past the group's end it is empty and borrows the round's first shape."""
        number = self.start + rank
        return Place(number, empty=False) if number < self.stop else Place(self.start, empty=True)


def rounds(cursor: int, batches: int, group: int, world: int) -> Iterator[Round]:
    """The rounds from `cursor` to the end of the epoch."""
    if not 1 <= world <= group:
        raise ValueError(f"a world of {world} needs a group of at least {world}, got {group}")
    while cursor < batches:
        stop = min(cursor + world, cursor - cursor % group + group, batches)
        yield Round(cursor, stop)
        cursor = stop


def rounds_left(cursor: int, batches: int, group: int, world: int) -> int:
    """How many rounds there are from `cursor` to the end of the epoch."""
    if cursor >= batches:
        return 0
    first_end = min(cursor - cursor % group + group, batches)
    whole, rest = divmod(batches - first_end, group)
    return -(-(first_end - cursor) // world) + whole * -(-group // world) + -(-rest // world)
