"""Messages about results of training and evaluation: trainers' own, and those over all ranks.

Rules: pure; as for all messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.bounds import FixedList, Many, Maybe, Number
from shared.wire.message_parts import COUNT, EPOCH, FLAG, ID, NAME, PIECE, PROSE, Message, message, wire

__all__ = ["LONGEST_NAME", "MOST_MEANS", "Aggregate", "Results"]

#: Most means in one message of a trainer, and the longest name of one.
MOST_MEANS = 64
LONGEST_NAME = NAME.longest

#: The name of a mean, and the mean; null: not a number.
_MEAN = FixedList((NAME, Maybe(Number())))


@message("Results", to="coordinator", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Results(Message):
    """Result of a trainer's part of an epoch, or of an evaluation: means over its rows."""

    stream: str = wire(NAME)
    incarnation: int = wire(ID)
    serial: int = wire(COUNT)
    epoch: int = wire(EPOCH)
    step: int = wire(COUNT)
    rows: int = wire(COUNT)
    values: tuple[tuple[str, float | None], ...] = wire(Many(_MEAN, MOST_MEANS))
    ended: str = wire(PROSE)
    aside: bool = wire(FLAG)
    evaluation: str = wire(NAME, "")
    part: int = wire(COUNT, 0)
    states: bytes = wire(PIECE, b"")


@message("Aggregate")
@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Message):
    """Answer to `Results`: the means over all ranks, once each has sent its own."""

    serial: int = wire(COUNT)
    whole: bool = wire(FLAG)
    rows: int = wire(COUNT)
    values: tuple[tuple[str, float | None], ...] = wire(Many(_MEAN, 256))
    parts: int = wire(COUNT, 0)
    trainers: int = wire(COUNT, 0)
    states: bytes = wire(PIECE, b"")
