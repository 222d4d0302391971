"""In queue mode: the named evaluation that a trainer takes part in, and the sums over all its batches.

Rules: pure. Sums come in pieces, each in the answer to a message; they are complete only if all pieces have the same
generation, because a new generation means that the evaluation began anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.wire.message_parts import MetricStates
from trainer_client.core import instructions as i

if TYPE_CHECKING:
    from shared.wire.message_parts import MetricSums

__all__ = ["NamedEvaluation"]


@dataclass(slots=True)
class NamedEvaluation:
    """A named evaluation; `nbytes` is the size of one batch's metric states, and so of their sums."""

    name: str
    nbytes: int
    out: list[i.Instruction]
    #: Serial of the caller that asks for the sums; None if none does.
    asked: int | None = None
    _sums: bytearray = field(default_factory=bytearray)
    #: Whether the open message asks for the sums.
    _is_open: bool = False

    def ask(self, serial: int) -> None:
        """Ask for the sums with the next messages; the answer may also be that batches are still missing."""
        self.asked, self._is_open = serial, False
        self._sums.clear()

    def states(self, start: int, content: bytes, *, asks: bool) -> MetricStates:
        """Return the evaluation's part of the next message: states of done batches, and which piece of sums to send.

        The caller sets `asks` once all done batches are reported, so that the sums include them.
        """
        self._is_open = asks and self.asked is not None
        return MetricStates(self.name, self.nbytes, start, content, len(self._sums) if self._is_open else None)

    def receive(self, sums: MetricSums, *, is_new: bool) -> None:
        """Add a piece of sums, and answer the caller when they are complete.

        The caller gets None if batches are not settled yet, or if the evaluation began anew (`is_new`). An answer to a
        message that did not ask is ignored.
        """
        if self.asked is None or not (self._is_open or is_new):
            return
        if is_new or not sums.settled:
            self._answer(self.asked, None, 0)
            return
        self._sums += sums.content
        if len(self._sums) >= self.nbytes:
            self._answer(self.asked, bytes(self._sums), sums.given_up)

    def _answer(self, serial: int, sums: bytes | None, given_up: int) -> None:
        self.out.append(i.AnswerSums(serial, sums, given_up))
        self.asked = None
