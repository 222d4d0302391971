"""The instructions of a parameter server's state, which `service` and the store carry out. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.wire.message_parts import Lease, VariablePart

if TYPE_CHECKING:
    from shared.wire.message_parts import Message
    from shared.wire.topics import server_messages as m

__all__ = [
    "Adopt", "Answer", "Apply", "ApplyHeld", "AssignRate", "Cut", "Drop", "Hold", "Instruction", "KeepOffered", "Key",
    "Tell",
]  # fmt: skip

#: Gradients of one trainer for one batch.
Key = tuple[int, Lease]


@dataclass(frozen=True, slots=True)
class Answer:
    """An instruction: send this to the asker, with a frame.

    The frame has the `values` of the share, all of the cut of this number, or with both the values of that cut. With
    `asked` it has the rows that were asked for.
    """

    to: bytes
    message: Message
    values: bool = False
    cut: int | None = None
    asked: m.PullRows | m.SaveRows | None = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """An instruction: hold this share, with the values that came along, in place of all there was."""

    parts: tuple[VariablePart, ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """An instruction: keep the gradients that came along."""

    key: Key


@dataclass(frozen=True, slots=True)
class Apply:
    """An instruction: apply the gradients that came along."""

    key: Key


@dataclass(frozen=True, slots=True)
class ApplyHeld:
    """An instruction: apply these gradients, which are held."""

    key: Key


@dataclass(frozen=True, slots=True)
class Drop:
    """An instruction: forget these gradients."""

    key: Key


@dataclass(frozen=True, slots=True)
class AssignRate:
    """An instruction: use this learning rate from now on."""

    rate: float


@dataclass(frozen=True, slots=True)
class Cut:
    """An instruction: copy the whole share, in place of the last copy."""

    number: int


@dataclass(frozen=True, slots=True)
class KeepOffered:
    """An instruction: keep what came with the chief's offer of an evaluation, in place of the last."""


@dataclass(frozen=True, slots=True)
class Tell:
    """An instruction: send this to the other servers."""

    message: m.Order


Instruction = Answer | Adopt | Hold | Apply | ApplyHeld | Drop | AssignRate | Cut | KeepOffered | Tell
