"""In queue mode: the evaluation that a trainer takes part in, and the sums over all its batches that it asks for.

Rules: pure. Sums come in pieces, each in the answer to a message; they are whole only if no piece is of another
generation, because then the evaluation began anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.wire.parts import MetricStates
from trainer_client.core import instructions as i

if TYPE_CHECKING:
    from shared.wire.parts import MetricSums

__all__ = ["NamedEvaluation"]


@dataclass(slots=True)
class NamedEvaluation:
    """`nbytes` is what the metric states of one batch take, and so their sums."""

    name: str
    nbytes: int
    out: list[i.Instruction]
    #: Who asks for the sums; None: nobody.
    asked: int | None = None
    _sums: bytearray = field(default_factory=bytearray)
    #: Whether the open message asks for them.
    _is_open: bool = False

    def ask(self, serial: int) -> None:
        """Somebody wants the sums, or to know that batches are still missing."""
        self.asked, self._is_open = serial, False
        self._sums.clear()

    def states(self, start: int, content: bytes, *, asks: bool) -> MetricStates:
        """Return what the next message says of the evaluation; it `asks` for sums once all that is done was told."""
        self._is_open = asks and self.asked is not None
        return MetricStates(self.name, self.nbytes, start, content, len(self._sums) if self._is_open else None)

    def receive(self, sums: MetricSums, *, is_new: bool) -> None:
        """Take in an answer; `is_new` if the evaluation began anew since the last one."""
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
