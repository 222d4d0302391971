"""Questions that any worker can answer: how many batches an epoch has, and the name of a sample.

Rules: pure. A question goes to a few workers at a time, in turn, until one answers; a worker that does not know does
not answer.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from shared.wire import messages as m
from trainer_client.core import instructions as i

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_client.core.stream_spec import StreamSpec

__all__ = ["Questions"]

#: Pause before an unanswered question is sent to the next workers.
_PAUSE_S = 0.2

#: How many workers are asked at a time.
_AT_A_TIME = 3


class Questions:
    """The open questions, each with the time at which it is sent (again)."""

    def __init__(self, spec: StreamSpec, out: list[i.Instruction]) -> None:
        self._spec = spec
        self._out = out
        self._asked: dict[m.EpochQuery | m.NameQuery, float] = {}
        self._turns = itertools.count()

    @property
    def due_s(self) -> float:
        """Return when the next question is due; infinity if none is open."""
        return min(self._asked.values(), default=float("inf"))

    def ask(self, question: m.EpochQuery | m.NameQuery, now_s: float) -> None:
        """Send a question with the next `tick`, unless it is open already."""
        self._asked.setdefault(question, now_s)

    def tick(self, connection_ids: Sequence[int], now_s: float) -> None:
        """Send each due question to the next three of these workers, in turn, or to all if they are fewer.

        A question is due again 0.2 s later, also if there was no worker to send it to.
        """
        for question, due_s in self._asked.items():
            if now_s < due_s:
                continue
            self._asked[question] = now_s + _PAUSE_S
            # In turn, because a worker that does not know says nothing: the same few might be asked for ever.
            for _ in range(min(_AT_A_TIME, len(connection_ids))):
                self._out.append(i.ToWorker(connection_ids[next(self._turns) % len(connection_ids)], question))

    def answer(self, answer: m.EpochAnswer | m.NameAnswer) -> None:
        """Close the question that a worker answered and pass the answer on; drop an answer to no open question."""
        # Answers have no serial: they repeat what was asked, so the same question of several callers is answered once,
        # and the second answer of three asked workers finds it closed.
        digest = self._spec.plan_digest
        question: m.EpochQuery | m.NameQuery
        content: int | str | None
        if isinstance(answer, m.EpochAnswer):
            question = m.EpochQuery(stream=answer.stream, plan_digest=digest, epoch=answer.epoch, group=answer.group)
            content = answer.batches
        else:
            question = m.NameQuery(stream=answer.stream, plan_digest=digest, sample=answer.sample)
            content = answer.name
        if self._asked.pop(question, None) is not None:
            self._out.append(i.AnswerQuestion(question, content))
