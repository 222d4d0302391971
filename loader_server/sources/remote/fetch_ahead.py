"""A few threads that fetch what will be read soon.

Rules: what is asked for twice is fetched once; a failure is left to the reader who needs the data, who gets the error;
threads start with the first request and never keep a process from ending. Knows nothing about what it fetches.
"""

from __future__ import annotations

import contextlib
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

from shared.errors import StokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

__all__ = ["FetchAhead"]

T = TypeVar("T", bound="Hashable")

_MOST_THREADS = 8


class FetchAhead(Generic[T]):
    """Threads that call `fetch` with expected keys, in order; with `threads` of 0 nothing is fetched."""

    def __init__(self, fetch: Callable[[T], object], threads: int) -> None:
        self._fetch = fetch
        self._threads = min(threads, _MOST_THREADS)
        self._lock = threading.Lock()
        self._started = 0
        #: Keys that are queued or being fetched.
        self._underway: set[T] = set()
        #: Keys in the order in which they will be needed; None ends a thread.
        self._queue: SimpleQueue[T | None] = SimpleQueue()

    def waiting(self) -> list[T]:
        """Return the keys that are expected and not fetched yet."""
        with self._lock:
            return list(self._underway)

    def expect(self, wanted: Iterable[T]) -> None:
        """Queue keys that will be needed soon, except those queued or being fetched; start threads if needed."""
        if not self._threads:
            return
        with self._lock:
            # A key is under way from here until it is fetched or has failed, so no two threads fetch it.
            new = [key for key in dict.fromkeys(wanted) if key not in self._underway]
            self._underway.update(new)
            while self._started < min(self._threads, len(self._underway)):
                self._started += 1
                threading.Thread(target=self._run, name="stoker-fetch", daemon=True).start()
        for key in new:
            self._queue.put(key)

    def _run(self) -> None:
        while (key := self._queue.get()) is not None:
            # The reader that needs the data fetches it again, with retries, and gets the error.
            with contextlib.suppress(StokerError, OSError):
                self._fetch(key)
            with self._lock:
                self._underway.discard(key)

    def close(self) -> None:
        """Drop what is queued and let each thread end after its current fetch, without waiting for it.

        A later `expect` starts new threads.
        """
        with self._lock:
            with contextlib.suppress(Empty):
                while True:
                    self._queue.get_nowait()
            self._underway.clear()
            for _ in range(self._started):
                self._queue.put(None)
            self._started = 0
