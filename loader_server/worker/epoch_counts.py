"""The number of batches of an epoch, for trainers that ask: counted in a thread, as planning may take seconds.

Rules: `ask` and `take_answers` are for the poll loop, which never waits here. A question that is being answered is not
queued a second time. Open questions are bounded for each trainer and for all together, because anybody may call itself
by ever new names: further ones are dropped, and the trainer asks again.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shared.logs import Log

__all__ = ["EpochCounts", "EpochQuestion"]

#: Limit for one trainer; it may ask about the next epoch in two groupings, for two streams.
_MOST_OPEN = 4
#: Limits of open questions of all trainers, and of trainers that wait for one answer.
_MOST_QUESTIONS, _MOST_ASKERS = 64, 4096

#: Limit of answers that are remembered.
_KEPT = 256


@dataclass(frozen=True, slots=True)
class EpochQuestion:
    """The epoch that a trainer asks about."""

    stream: str
    epoch: int
    group: int


class EpochCounts:
    """Counts of batches, made by a thread.

    `count` has, for each stream, a function from epoch and group to the number of batches, which may be slow; `wake` is
    called after each answer.
    """

    def __init__(self, count: Mapping[str, Callable[[int, int], int]], log: Log, wake: Callable[[], None]) -> None:
        self._count = count
        self._log = log
        self._wake = wake
        self._known: dict[EpochQuestion, int] = {}
        #: Questions that could not be answered, by stream; counted in the thread.
        self.failed: Counter[str] = Counter()
        #: The trainers that wait for each answer.
        self._askers: dict[EpochQuestion, set[int]] = {}
        self._asked: SimpleQueue[EpochQuestion | None] = SimpleQueue()
        self._counted: deque[tuple[EpochQuestion, int | None]] = deque()
        # A daemon thread, because the end of the process must not wait for a plan.
        threading.Thread(target=self._run, name="stoker-count", daemon=True).start()

    def ask(self, trainer: int, question: EpochQuestion) -> int | None:
        """Return the number if it is known; otherwise None, and `take_answers` will return it later.

        If there are too many open questions, of this trainer or of all, it is dropped, and the trainer has to ask
        again.
        """
        if question in self._known:
            return self._known[question]
        if sum(trainer in askers for askers in self._askers.values()) < _MOST_OPEN:
            self._note(trainer, question)
        return None

    def _note(self, trainer: int, question: EpochQuestion) -> None:
        if question not in self._askers:
            if len(self._askers) >= _MOST_QUESTIONS:
                return
            self._askers[question] = set()
            self._asked.put(question)
        if len(self._askers[question]) < _MOST_ASKERS:
            self._askers[question].add(trainer)

    def take_answers(self) -> list[tuple[int, EpochQuestion, int]]:
        """Return the answers that came since the last call: trainer, question, number of batches.

        A question whose count failed has none: its trainers ask again.
        """
        answers = []
        while self._counted:
            question, batches = self._counted.popleft()
            askers = self._askers.pop(question)
            if batches is not None:
                self._remember(question, batches)
                answers += [(trainer, question, batches) for trainer in sorted(askers)]
        return answers

    def _remember(self, question: EpochQuestion, batches: int) -> None:
        if len(self._known) >= _KEPT:
            del self._known[next(iter(self._known))]
        self._known[question] = batches

    def close(self) -> None:
        """End the thread once it has answered the questions in the queue."""
        self._asked.put(None)

    def _run(self) -> None:
        while (question := self._asked.get()) is not None:
            batches = None
            try:
                batches = self._count[question.stream](question.epoch, question.group)
            except Exception as error:  # the trainer asks again, so only a stream's first is logged
                self.failed[question.stream] += 1
                if self.failed[question.stream] == 1:
                    self._log.error("batches of an epoch cannot be counted", stream=question.stream, error=repr(error))
            self._counted.append((question, batches))
            self._wake()
