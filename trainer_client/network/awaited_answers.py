"""Answers that a feed's consumers wait for, each in a future, and for how long a silent coordinator is waited for.

Rules: serials grow, and each request has its own. Consumers register a future before they ask, or the answer could
overtake it; the receive thread resolves it. An answer without a future is dropped. Must not know what is asked, or
sockets.
"""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from shared.errors import LostError

if TYPE_CHECKING:
    from shared.wire import messages as m

__all__ = ["AwaitedAnswers", "SilentWait"]


class AwaitedAnswers:
    """The awaited answers of one feed."""

    def __init__(self) -> None:
        self._serials = itertools.count(1)
        self._answers: dict[int, Future[Any]] = {}
        #: Serials of reports of results whose callers wait until the answer covers all ranks.
        self._for_all_ranks: set[int] = set()
        self._questions: dict[m.Message, list[Future[Any]]] = {}

    # --- for consumers ---

    def expect(self, *, of_all: bool = False) -> tuple[int, Future[Any]]:
        """Return the serial and the future of a new request.

        Of a report of results, the future is resolved by the first answer, or with `of_all` by the one that covers all
        ranks.
        """
        serial, answer = next(self._serials), Future[Any]()
        self._answers[serial] = answer
        if of_all:
            self._for_all_ranks.add(serial)
        return serial, answer

    def expect_answer(self, question: m.Message) -> Future[Any]:
        """Return a new future for a question to workers, which has no serial: equal questions get the same answer."""
        answer = Future[Any]()
        self._questions.setdefault(question, []).append(answer)
        return answer

    # --- for the receive thread ---

    def take(self, serial: int) -> Future[Any] | None:
        """Remove and return the future of a request, for the caller to resolve; None if it is not open.

        It may be closed already: a coordinator that repeats an answer cannot know that the first one arrived.
        """
        self._for_all_ranks.discard(serial)
        return self._answers.pop(serial, None)

    def answer(self, serial: int, content: object) -> None:
        """Resolve the request with this serial; do nothing if it is not open."""
        answer = self.take(serial)
        if answer is not None:
            answer.set_result(content)

    def answer_results(self, aggregate: m.Aggregate) -> None:
        """Resolve a report of results, unless its caller waits for all ranks and the answer covers only some.

        Do nothing if the report is not open.
        """
        if aggregate.whole or aggregate.serial not in self._for_all_ranks:
            self.answer(aggregate.serial, aggregate)

    def answer_question(self, question: m.Message, content: object) -> None:
        """Resolve all futures of this question to workers; do nothing if nobody waits for it."""
        for answer in self._questions.pop(question, ()):
            answer.set_result(content)

    def fail(self, error: BaseException) -> None:
        """Raise this error in callers that wait for an answer to a request, because none will come.

        Callers with questions to workers look at the feed's error themselves while they wait (`Receiver.wait_for`).
        """
        # Swapped first: a consumer's thread may add a request meanwhile, which then finds the feed's error by itself.
        answers, self._answers = self._answers, {}
        for answer in list(answers.values()):
            answer.set_exception(error)


class SilentWait:
    """A consumer's wait for other ranks; `patience_s` is how long the coordinator may be silent meanwhile."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._heard_s = -1.0
        self._waited_s = 0.0

    def look(self, heard_s: float, looked_for_s: float, endpoint: str) -> None:
        """Raise LostError if the coordinator has been silent for more than `patience_s` of looking.

        `heard_s` is the time of its last message, `looked_for_s` how long this look has waited. A new message starts
        the sum of looks again.
        """
        # The sum of the looks and not clock time: a process that was stopped must not blame the coordinator for it.
        self._waited_s = self._waited_s + looked_for_s if heard_s == self._heard_s else 0.0
        self._heard_s = heard_s
        if self._waited_s > self._patience_s:
            raise LostError(
                expected=f"a word of the coordinator within {self._patience_s:g} s, while all ranks are waited for",
                got="none",
                where=endpoint,
                remedy="Start the loaders again, or allow more time with lost_timeout_s.",
            )
