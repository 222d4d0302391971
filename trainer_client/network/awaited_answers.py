"""Answers that a feed's consumers wait for, each in a future under the serial of its request.

Rules: serials grow, and each request has its own. Consumers register a future before they ask, or the answer could
overtake it; the receive thread resolves it. An answer without a future is dropped. Must not know what is asked,
sockets, or how long callers wait.
"""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.wire import messages as m
    from shared.wire.message_parts import DoneSet
    from trainer_client.core import instructions as i

__all__ = ["AwaitedAnswers"]


class AwaitedAnswers:
    """The awaited answers of one feed."""

    def __init__(self) -> None:
        self._serials = itertools.count(1)
        self._attaching: dict[int, Future[m.Attached]] = {}
        self._questions: dict[m.Message, list[Future[Any]]] = {}
        self._states: dict[int, Future[DoneSet]] = {}
        self._sums: dict[int, Future[i.AnswerSums]] = {}
        self._ends: dict[int, Future[bool]] = {}
        #: By the serial of a report of results: whether to wait for all ranks, and the future.
        self._results: dict[int, tuple[bool, Future[m.Aggregate]]] = {}

    # --- for consumers ---

    def expect_attached(self) -> tuple[int, Future[m.Attached]]:
        """Return the serial and the future of a new request to attach."""
        serial, answer = next(self._serials), Future[Any]()
        self._attaching[serial] = answer
        return serial, answer

    def expect_state(self) -> tuple[int, Future[DoneSet]]:
        """Return the serial and the future of a new question for the done-set."""
        serial, answer = next(self._serials), Future[Any]()
        self._states[serial] = answer
        return serial, answer

    def expect_sums(self) -> tuple[int, Future[i.AnswerSums]]:
        """Return the serial and the future of a new question for the sums of an evaluation."""
        serial, answer = next(self._serials), Future[Any]()
        self._sums[serial] = answer
        return serial, answer

    def expect_end(self) -> tuple[int, Future[bool]]:
        """Return the serial and the future of a new question or report about the work after training."""
        serial, answer = next(self._serials), Future[Any]()
        self._ends[serial] = answer
        return serial, answer

    def expect_results(self, *, whole: bool) -> tuple[int, Future[m.Aggregate]]:
        """Return the serial and the future of a new report of results.

        With `whole` the future is resolved by the answer that covers all ranks, otherwise by the first one.
        """
        serial, answer = next(self._serials), Future[Any]()
        self._results[serial] = (whole, answer)
        return serial, answer

    def expect_answer(self, question: m.Message) -> Future[Any]:
        """Return the future of a question to workers, which has no serial: equal questions share an answer."""
        answer = Future[Any]()
        self._questions.setdefault(question, []).append(answer)
        return answer

    # --- for the receive thread ---

    def take_attached(self, serial: int) -> Future[m.Attached] | None:
        """Remove and return the future of a request to attach, for the caller to resolve; None if there is none."""
        return self._attaching.pop(serial, None)

    def answer_state(self, serial: int, done: DoneSet) -> None:
        """Resolve the question for the done-set with this serial, if it is open."""
        answer = self._states.pop(serial, None)
        if answer is not None:
            answer.set_result(done)

    def answer_sums(self, sums: i.AnswerSums) -> None:
        """Resolve the question for sums of an evaluation, if it is open."""
        answer = self._sums.pop(sums.serial, None)
        if answer is not None:
            answer.set_result(sums)

    def answer_end(self, serial: int, *, is_ours: bool) -> None:
        """Resolve the question or report about the work after training, if it is open."""
        answer = self._ends.pop(serial, None)
        if answer is not None:
            answer.set_result(is_ours)

    def answer_results(self, aggregate: m.Aggregate) -> None:
        """Resolve a report of results, unless its caller waits for all ranks and the answer covers only some."""
        whole, answer = self._results.get(aggregate.serial, (False, None))
        if answer is not None and (aggregate.whole or not whole):
            del self._results[aggregate.serial]
            answer.set_result(aggregate)

    def answer_question(self, question: m.Message, answer: object) -> None:
        """Resolve all futures of this question to workers."""
        for asked in self._questions.pop(question, ()):
            asked.set_result(answer)

    def fail(self, error: BaseException) -> None:
        """Raise this error in callers that attach or wait for results, because no answer will come.

        Callers with other questions look at the feed's error themselves while they wait (`Receiver.wait_for`).
        """
        for attached in list(self._attaching.values()):
            attached.set_exception(error)
        for _, told in list(self._results.values()):
            told.set_exception(error)
        self._attaching.clear()
        self._results.clear()
