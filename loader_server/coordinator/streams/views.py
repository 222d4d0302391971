"""The coordinator's view of a stream, and the thread that counts its batches.

Rules: counting takes seconds if every sample has to be placed (millions of packed ones). The poll loop must not take
that long, or every peer would find the coordinator silent. So an unknown count is queued, waited for only a moment, and
asked for again. The number of counts is bounded, because trainers choose the epoch.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from loader_server.leases.lease_table import LeaseRules
from loader_server.processor.native_code import warn_of_unproved_code
from shared.logs import Log
from shared.wire.message_parts import WireField, WireShape

if TYPE_CHECKING:
    from collections.abc import Callable

    from loader_server.stream import Stream

__all__ = ["CountingThread", "View"]

#: How long to wait for a new count: most take less, so the first request is answered at once.
_MOMENT_S = 0.02

#: Limit of counts that are kept for a stream.
_MOST_COUNTS = 256


class CountingThread:
    """A thread that counts in the order of requests; it ends with the process."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[int], Callable[[], int]]] = SimpleQueue()
        # A daemon thread, because a long count must not delay the end of the process.
        threading.Thread(target=self._run, name="counting", daemon=True).start()

    def ask(self, count: Callable[[], int]) -> Future[int]:
        """Queue a count; return its future, which gets the result, or the exception that counting raised."""
        future: Future[int] = Future()
        self._asked.put((future, count))
        return future

    def _run(self) -> None:
        while True:
            future, count = self._asked.get()
            try:
                future.set_result(count())
            except BaseException as error:  # `batches` logs it, and counts again
                future.set_exception(error)


class View:
    """The coordinator's view of an opened stream; see `StreamView`."""

    def __init__(self, stream: Stream, counting: CountingThread) -> None:
        self._plan = stream.plan
        self._counting = counting
        self._counts: dict[tuple[int, int], Future[int]] = {}
        # Remembered, because each call takes 20 ms at a billion samples, and every rank that attaches asks the same.
        self.most_batches = lru_cache(maxsize=_MOST_COUNTS)(self._plan.most_batches)
        self.objection = lru_cache(maxsize=_MOST_COUNTS)(self._plan.objection)
        self._log = Log("coordinator", stream=stream.name)
        self.native_code = stream.unproved_code
        warn_of_unproved_code(self.native_code, self._log)
        self.digest = stream.digest
        self.evaluation = stream.settings.evaluation
        self.carries = stream.carries
        self.samples = stream.samples
        #: Samples that are left out, by reason.
        self.left_out = stream.bad_rows | stream.plan.dropped
        self.fields = tuple(map(WireField.of, stream.fields))
        self.shapes = tuple(map(WireShape.of, stream.shapes))
        self.producers = stream.producers
        self.base_fields = tuple(map(WireField.of, stream.base_fields))
        settings = stream.settings
        self.leases = (
            LeaseRules(floor_s=settings.lease_timeout, tries=settings.tries) if settings.mode == "queue" else None
        )

    def batches(self, epoch: int, group: int) -> int | None:
        """Return how many batches an epoch has; None if the count is not known now, and is to be asked for again.

        It is not known while it is counted, while too many other counts are under way, or if counting failed, which is
        logged.
        """
        key = (epoch, group)
        if key not in self._counts and not self._begin(key):
            return None
        future = self._counts[key]
        if not future.done():
            return None
        if (error := future.exception()) is not None:
            self._log.error("batches cannot be counted", epoch=epoch, group=group, error=repr(error))
            del self._counts[key]
            return None
        return future.result()

    def _begin(self, key: tuple[int, int]) -> bool:
        """Queue a count and wait a moment for it; return False if too many are under way.

        The oldest finished count is forgotten if there are too many.
        """
        if len(self._counts) >= _MOST_COUNTS:
            oldest = next((known for known, future in self._counts.items() if future.done()), None)
            if oldest is None:
                return False
            del self._counts[oldest]
        self._counts[key] = self._counting.ask(partial(self._count, *key))
        wait([self._counts[key]], timeout=_MOMENT_S)
        return True

    def _count(self, epoch: int, group: int) -> int:
        return self._plan.epoch(epoch, group).batches
