"""The answers that a feed's consumers wait for, each in a future under the number of its request.

Rules: numbers grow, and each request has its own. Consumers expect an answer before they ask; the receive thread gives
it. An answer that nobody expects any more is dropped. It must not know what is asked, sockets, or who waits how long.
"""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.wire import messages as m
    from shared.wire.parts import DoneSet
    from trainer_client.core import instructions as i

__all__ = ["AwaitedAnswers"]


class AwaitedAnswers:
    """Those of one feed."""

    def __init__(self) -> None:
        self._serials = itertools.count(1)
        self._attaching: dict[int, Future[m.Attached]] = {}
        self._questions: dict[m.Message, list[Future[Any]]] = {}
        self._states: dict[int, Future[DoneSet]] = {}
        self._sums: dict[int, Future[i.AnswerSums]] = {}
        self._ends: dict[int, Future[bool]] = {}
        #: Results that were reported: whether to wait for all ranks, and who waits.
        self._results: dict[int, tuple[bool, Future[m.Aggregate]]] = {}

    # --- for consumers ---

    def expect_attached(self) -> tuple[int, Future[m.Attached]]:
        """Return the number and the future answer of a request to attach."""
        serial, answer = next(self._serials), Future[Any]()
        self._attaching[serial] = answer
        return serial, answer

    def expect_state(self) -> tuple[int, Future[DoneSet]]:
        """Return the number and the future answer of a question for what is done."""
        serial, answer = next(self._serials), Future[Any]()
        self._states[serial] = answer
        return serial, answer

    def expect_sums(self) -> tuple[int, Future[i.AnswerSums]]:
        """Return the number and the future answer of a question for the sums of an evaluation."""
        serial, answer = next(self._serials), Future[Any]()
        self._sums[serial] = answer
        return serial, answer

    def expect_end(self) -> tuple[int, Future[bool]]:
        """Return the number and the future answer of a word about the work that comes once after training."""
        serial, answer = next(self._serials), Future[Any]()
        self._ends[serial] = answer
        return serial, answer

    def expect_results(self, *, whole: bool) -> tuple[int, Future[m.Aggregate]]:
        """Return the number and the future answer of a report: the first answer, or the one about all ranks."""
        serial, answer = next(self._serials), Future[Any]()
        self._results[serial] = (whole, answer)
        return serial, answer

    def expect_answer(self, question: m.Message) -> Future[Any]:
        """Return the future answer of a question to workers, which has no number: equal questions have one answer."""
        answer = Future[Any]()
        self._questions.setdefault(question, []).append(answer)
        return answer

    # --- for the receive thread ---

    def take_attached(self, serial: int) -> Future[m.Attached] | None:
        """Return who waits for this answer, for the caller to give it; None if nobody does."""
        return self._attaching.pop(serial, None)

    def answer_state(self, serial: int, done: DoneSet) -> None:
        """Give the answer of a question for what is done."""
        answer = self._states.pop(serial, None)
        if answer is not None:
            answer.set_result(done)

    def answer_sums(self, sums: i.AnswerSums) -> None:
        """Give the answer of a question for the sums of an evaluation."""
        answer = self._sums.pop(sums.serial, None)
        if answer is not None:
            answer.set_result(sums)

    def answer_end(self, serial: int, *, is_ours: bool) -> None:
        """Give the answer of a word about the work that comes once after training."""
        answer = self._ends.pop(serial, None)
        if answer is not None:
            answer.set_result(is_ours)

    def answer_results(self, aggregate: m.Aggregate) -> None:
        """Give the answer of a report, unless it is about some ranks and all are waited for."""
        whole, answer = self._results.get(aggregate.serial, (False, None))
        if answer is not None and (aggregate.whole or not whole):
            del self._results[aggregate.serial]
            answer.set_result(aggregate)

    def answer_question(self, question: m.Message, answer: object) -> None:
        """Give the answer of a question to workers."""
        for asked in self._questions.pop(question, ()):
            asked.set_result(answer)

    def fail(self, error: BaseException) -> None:
        """Raise this where answers of the coordinator are waited for: none will come."""
        for attached in list(self._attaching.values()):
            attached.set_exception(error)
        for _, told in list(self._results.values()):
            told.set_exception(error)
        self._attaching.clear()
        self._results.clear()
