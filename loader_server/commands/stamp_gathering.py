"""Stamps of a running job's processes, gathered by way of its coordinator.

Rules: a few questions a moment, as the coordinator hears no more of one peer; a question that is not answered is
repeated, and a process that stays silent is named and left out. No wait is longer than the time that is given.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from loader_server.tracing.process_stamps import ProcessStamps
from shared.commands import LONGEST_WAIT_S
from shared.errors import LostError, ProtocolError
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.refusing import error_of
from shared.wire.topics.trace_messages import MOST_ASKED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["StampGathering", "StampQuestion"]

#: The coordinator hears eight messages of a peer in a tenth of a second; fewer, so that none is lost.
_AT_ONCE = 6
_MOMENT_S = 0.11

#: When to repeat a question that was not answered.
_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StampQuestion:
    """Which stamps are wanted: of the last seconds (0: all), of one batch (None: of all)."""

    last_s: float = 0.0
    stream: str = ""
    epoch: int | None = None
    number: int | None = None

    def query(self, serial: int, processes: tuple[int, ...], first_row: int) -> m.TraceQuery:
        """Return the message that asks these processes for it, under this serial, from row `first_row` on."""
        return m.TraceQuery(
            serial=serial,
            processes=processes,
            first_row=first_row,
            last_ms=int(1000 * self.last_s),
            stream=self.stream,
            epoch=self.epoch,
            number=self.number,
        )


@dataclass(slots=True)
class _OpenQuery:
    question: StampQuestion
    first_row: int
    waiting: set[int]
    sent_s: float


class StampGathering:
    """The processes of a job and the stamps that came of them so far, over a connection to its coordinator."""

    def __init__(self, dealer: zmq.Socket[bytes], endpoint: str, timeout_s: float) -> None:
        self._dealer = dealer
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._serial = 0
        self._sent_s: deque[float] = deque(maxlen=_AT_ONCE)
        self._open: dict[int, _OpenQuery] = {}
        #: The job's processes by incarnation.
        self.processes: dict[int, ProcessStamps] = {}
        #: How many processes the coordinator's list left out.
        self.left_out = 0

    def find_processes(self) -> None:
        """Ask which processes there are, and set `processes` and `left_out`.

        Raise LostError if no answer comes in time, and RefusedError, or what else `error_of` gives, for a refusal.
        """
        until_s = time.monotonic() + self._timeout_s
        query = StampQuestion().query(0, (), 0)
        again_s = 0.0
        while (now_s := time.monotonic()) < until_s:
            if now_s >= again_s:
                again_s = now_s + _AGAIN_S
                self._send(query, until_s)
            for message in self._read(min(again_s, until_s)):
                if isinstance(message, m.TraceProcesses):
                    self.processes = {process.incarnation: ProcessStamps(process) for process in message.processes}
                    self.left_out = message.left_out
                    return
        raise LostError(
            expected=f"a coordinator that answers within {self._timeout_s:g} s",
            got="no answer",
            where=self._endpoint,
            remedy="Start it with `loader-server run job.toml`, correct the endpoint, or update its release.",
        )

    def ask(self, question: StampQuestion, processes: Iterable[int]) -> None:
        """Ask these processes, all pages; those that are silent for the whole time have a `problem` afterwards.

        A process that is not known is passed over. RefusedError of the coordinator is raised.
        """
        self.ask_all([(question, tuple(processes))])

    def ask_all(self, questions: Iterable[tuple[StampQuestion, tuple[int, ...]]]) -> None:
        """Ask several questions at the same time, each of its own processes, as `ask` does."""
        for question, processes in questions:
            known = [process for process in processes if process in self.processes]
            for start in range(0, len(known), MOST_ASKED):
                self._ask_page(question, set(known[start : start + MOST_ASKED]), 0)
        heard_s = time.monotonic()
        while self._open and time.monotonic() < heard_s + self._timeout_s:
            soon_s = min(query.sent_s for query in self._open.values()) + _AGAIN_S
            for message in self._read(min(soon_s, heard_s + self._timeout_s)):
                if isinstance(message, m.TracePage) and self._take_page(message):
                    heard_s = time.monotonic()
            self._repeat(time.monotonic())
        for query in self._open.values():
            for process in query.waiting:
                self.processes[process].problem = f"no answer within {self._timeout_s:g} s"
        self._open.clear()

    def _ask_page(self, question: StampQuestion, processes: set[int], first_row: int) -> None:
        self._serial += 1
        self._open[self._serial] = _OpenQuery(question, first_row, processes, 0.0)
        self._send_query(self._serial)

    def _send_query(self, serial: int) -> None:
        query = self._open[serial]
        query.sent_s = time.monotonic()
        message = query.question.query(serial, tuple(sorted(query.waiting)), query.first_row)
        self._send(message, query.sent_s + self._timeout_s)

    def _repeat(self, now_s: float) -> None:
        for serial, query in list(self._open.items()):
            if now_s >= query.sent_s + _AGAIN_S:
                self._send_query(serial)

    def _take_page(self, page: m.TracePage) -> bool:
        """Take in a page and ask for the next one, if any; return False if it was not awaited."""
        query = self._open.get(page.serial)
        if query is None or page.process not in query.waiting:
            return False
        query.waiting.discard(page.process)
        if not query.waiting:
            del self._open[page.serial]
        self.processes[page.process].add(page)
        if page.next_row is not None:
            self._ask_page(query.question, {page.process}, page.next_row)
        return True

    def _send(self, message: m.Message, until_s: float) -> None:
        """Send a message, a little later if too many were sent just now; drop it if that is not possible in time."""
        if len(self._sent_s) == _AT_ONCE:
            time.sleep(max(0.0, self._sent_s[0] + _MOMENT_S - time.monotonic()))
        self._sent_s.append(time.monotonic())
        if self._wait(zmq.POLLOUT, until_s):
            self._dealer.send(encode(message))

    def _read(self, until_s: float) -> Iterator[m.Message]:
        """Wait for messages until this time at most; yield those that have come and can be read.

        Raise what `error_of` gives for a refusal, mostly RefusedError.
        """
        if not self._wait(zmq.POLLIN, until_s):
            return
        while self._dealer.poll(0):
            try:
                message = decode(self._dealer.recv())
            except ProtocolError:  # of another release; what it was the answer to is asked again
                continue
            if isinstance(message, m.Refused):
                raise error_of(message, f"coordinator at {self._endpoint}")
            yield message

    def _wait(self, event: int, until_s: float) -> bool:
        """Wait, at most until this time, and return whether the socket can be sent on or read from."""
        # In short waits, because Python misses a signal that arrives just as it begins to wait (see shared.commands).
        while True:
            left_s = until_s - time.monotonic()
            if self._dealer.poll(max(0, int(1000 * min(left_s, LONGEST_WAIT_S)) + 1), event):
                return True
            if left_s <= 0:
                return False
