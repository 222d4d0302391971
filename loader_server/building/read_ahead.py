"""The few threads that read ahead for the building thread, and what becomes of a read that never ends.

Rules: reading one sample has a deadline, past which the want ends in an error that says nothing about the sample. Its
thread cannot be stopped: another takes its place, and if the read returns after all, the first one ends. A limited
number of hanging threads is tolerated; beyond that, reads are refused at once.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, TimeoutError, wait  # noqa: A004 - the built-in one since Python 3.11
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shared.errors import ReadError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PendingRead", "ReadAhead"]

T = TypeVar("T")

#: Threads that read: enough to keep a disk busy, few enough to leave the core to the builder.
_READERS = 4

#: How many threads may hang in a read, in addition to those.
_MOST_HANGING = 16

#: After the whole process was stopped every read looks late, though it may end at once.
_LAST_MOMENT_S = 0.5


class PendingRead(Generic[T]):
    """The reading of one want's samples, until it is done."""

    def __init__(self, work: Callable[[Callable[[int], None]], T], name: Callable[[int], str]) -> None:
        self.future: Future[T] = Future()
        #: Whether another thread has taken this one's place.
        self.given_up = False
        self._work = work
        self._name = name
        #: The sample that is being read, and since when.
        self._at: tuple[int, float] | None = None
        #: Whether most of its time went by without this process's doing.
        self._waited = False

    def begin(self, sample: int) -> None:
        """Reading this sample begins now."""
        self._at = (sample, time.monotonic())

    def since_s(self) -> float | None:
        """Since when this sample is being read."""
        at = self._at
        return at[1] if at is not None else None

    def run(self) -> tuple[T | None, BaseException | None]:
        """Read; returns the result, or the error."""
        began_s, busy_s = time.perf_counter(), time.thread_time()
        try:
            return self._work(self.begin), None
        except BaseException as error:  # raised again in the thread that builds
            return None, error
        finally:
            busy_s = time.thread_time() - busy_s
            self._waited = time.perf_counter() - began_s > 2 * busy_s

    def ends_at_once(self, time_s: float) -> bool:
        """Whether it ends within this time, and without having waited for a disk for most of it."""
        try:
            self.future.exception(time_s)
        except TimeoutError:
            return False
        return not self._waited

    def late(self, timeout_s: float) -> ReadError:
        """The error for a read that did not end in time."""
        return ReadError(
            expected=f"to read the sample within {timeout_s:g} s (build_timeout)",
            got="a read that was still going on",
            where=self._name(self._at[0]) if self._at is not None else "before the first sample",
            remedy="Check the disk or mount on this machine, or raise build_timeout in [job].",
        )


class ReadAhead:
    """`submit` reads in a thread; `wait_for` waits for the result, no longer than the deadline allows."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._tasks: SimpleQueue[PendingRead[Any] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._underway: set[PendingRead[Any]] = set()
        #: How many threads hang, each with another in its place.
        self.hanging = 0
        for _ in range(_READERS):
            self._start()

    def _start(self) -> None:
        # Daemons: nobody waits at the end of the process for a read that hangs.
        threading.Thread(target=self._run, name="stoker-read", daemon=True).start()

    def submit(self, work: Callable[[Callable[[int], None]], T], name: Callable[[int], str]) -> PendingRead[T]:
        """Read in a thread: `work` calls what it is given with each sample before reading it; `name` is for errors."""
        pending = PendingRead(work, name)
        if self.hanging >= _MOST_HANGING:
            pending.future.set_exception(_too_many(self.hanging))
        else:
            self._tasks.put(pending)
        return pending

    def wait_for(self, pending: PendingRead[T]) -> T:
        """What was read; raises ReadError past the deadline. Only one thread may wait."""
        while not pending.future.done():
            pause_s = self._give_up_late(time.monotonic())
            if pending.given_up and not wait((pending.future,), _LAST_MOMENT_S).done:
                raise pending.late(self._timeout_s)
            wait((pending.future,), pause_s)
        return pending.future.result()

    def _give_up_late(self, now_s: float) -> float:
        """Replace the threads of all reads that hang, waited for or not; returns in how many seconds to look again."""
        next_s = now_s + self._timeout_s
        with self._lock:
            for pending in self._underway:
                since_s = pending.since_s()
                if since_s is None or pending.given_up:
                    continue
                if since_s + self._timeout_s <= now_s:
                    pending.given_up = True
                    self.hanging += 1
                    self._start()
                else:
                    next_s = min(next_s, since_s + self._timeout_s)
        return next_s - now_s

    def _run(self) -> None:
        while self._read_next():
            pass

    def _read_next(self) -> bool:
        """Read the next request, keeping no reference to it; whether this thread is to go on."""
        pending = self._tasks.get()
        if pending is None:
            return False
        with self._lock:
            self._underway.add(pending)
        result, error = pending.run()
        with self._lock:
            self._underway.remove(pending)
            self.hanging -= pending.given_up
        if error is None:
            pending.future.set_result(result)
        else:
            pending.future.set_exception(error)
        return not pending.given_up

    def close(self) -> None:
        """End the threads, except those that hang."""
        for _ in range(_READERS):
            self._tasks.put(None)


def _too_many(hanging: int) -> ReadError:
    return ReadError(
        expected=f"fewer than {_MOST_HANGING} reads that hang",
        got=f"{hanging}",
        where="this worker",
        remedy="Check its disks and mounts, then restart it.",
    )
