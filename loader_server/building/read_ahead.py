"""Reading ahead of the building thread: what readers hand over, the few threads that read, and hints to a source.

Rules: reading one sample has a deadline, past which the want ends in an error that does not blame the sample. Its
thread cannot be stopped: another takes its place, and if the read returns after all, the first one ends. A limited
number of hanging threads is tolerated; beyond that, reads are refused at once.

A source of remote files also gets hints about the samples that follow those just read, so that it can fetch them. One
process gives hints for the whole machine, and only while the source can take more; no sample is announced twice, and
those that need not be read are left out. Nobody waits for a hint, and nothing depends on it.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, TimeoutError, wait  # noqa: A004 - the built-in one since Python 3.11
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shared.errors import ReadError
from shared.stations.service_times import READ_AT_A_TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.batches.batch_strings import FoundStrings
    from loader_server.planning import EpochPlan, PlannedBatch
    from loader_server.sources.source import Source
    from shared.wire.batch_layout import BucketShape, Layout

__all__ = ["LookAhead", "PendingRead", "Prepared", "ReadAhead", "UnreadError", "unwatched"]

T = TypeVar("T")

#: Most threads that may hang in a read, in addition to the readers.
_MOST_HANGING = 16

#: Extra time for a late read: if the whole process was stopped, every read looks late though it may be about to end.
_LAST_MOMENT_S = 0.5

#: Most batches to give hints about: about as many as are trained on in a minute.
_MOST_BATCHES_AHEAD = 512


@dataclass(frozen=True, slots=True)
class Prepared:
    """A want that was looked up in the plan, and the bytes of its samples."""

    planned: PlannedBatch
    #: The sample numbers; none if an empty batch is wanted.
    samples: NDArray[np.int64]
    #: The planned shape with the lengths of all padded keys, and where each tensor lies in the payload.
    shape: BucketShape
    layout: Layout
    #: Byte ranges of the payload between tensors.
    gaps: tuple[slice, ...]
    #: The strings of the batch; None if the stream has none.
    strings: FoundStrings | None
    #: The bytes of each sample, None for a culprit and b"" for a cache hit; None as a whole if the source writes the
    #: batch at once.
    raw: Sequence[bytes | None] | None
    #: How long planning and reading took, in the reader's thread.
    read_us: int
    #: Feature cache hits by sample, which were not read.
    kept: Mapping[int, bytearray]
    #: Rows of culprits in a batch that is written at once.
    culprits: Sequence[int] = ()
    #: Key under which other jobs find the batch on the shelf; empty if it is not shared.
    key: bytes = b""
    #: Whether its samples were read; False if the whole batch seemed to be on the shelf.
    is_read: bool = True


class UnreadError(Exception):
    """The samples turned out to be needed but were not read; `read` reads them in a reader thread."""

    def __init__(self, read: Callable[[Callable[[int], None]], Prepared]) -> None:
        super().__init__("the samples were not read")
        self.read = read


def unwatched(_sample: int) -> None:
    """Ignore the sample: the `begin` of callers that need not know which sample is being read."""


class PendingRead(Generic[T]):
    """The reading of one want's samples, in progress or done."""

    def __init__(self, work: Callable[[Callable[[int], None]], T], name: Callable[[int], str]) -> None:
        self.future: Future[T] = Future()
        #: Whether it hung, so that another thread has taken its thread's place.
        self.given_up = False
        self._work = work
        self._name = name
        #: The sample being read, and since when; a tuple, so that other threads see both change at once.
        self._at: tuple[int, float] | None = None
        #: Whether its thread had no CPU for more than half of the time: it waited for a disk, or for the interpreter.
        self._waited = False
        #: CPU time of its thread in reading, once it ended.
        self.cpu_s = 0.0

    def begin(self, sample: int) -> None:
        """Note that reading this sample begins now."""
        self._at = (sample, time.monotonic())

    def since_s(self) -> float | None:
        """Return since when (by `time.monotonic`) the current sample is being read; None before the first."""
        at = self._at
        return at[1] if at is not None else None

    def run(self) -> tuple[T | None, BaseException | None]:
        """Read the samples; return the result and None, or None and the error."""
        began_s, busy_s = time.perf_counter(), time.thread_time()
        try:
            return self._work(self.begin), None
        except BaseException as error:  # raised again in the thread that builds
            return None, error
        finally:
            # The thread's CPU time: the rest went into waiting for a disk, or for the interpreter.
            self.cpu_s = time.thread_time() - busy_s
            self._waited = time.perf_counter() - began_s > 2 * self.cpu_s

    def ends_at_once(self, time_s: float) -> bool:
        """Wait up to `time_s`; return whether it ended in that time, with a result or an error, and was mostly busy.

        Return False if it had no CPU for more than half of its time, waiting for a disk or for the interpreter.
        """
        try:
            self.future.exception(time_s)
        except TimeoutError:
            return False
        return not self._waited

    def late(self, timeout_s: float) -> ReadError:
        """Return a ReadError for a read over its deadline: it names the sample in hand, if any, and the timeout."""
        return ReadError(
            expected=f"to read the sample within {timeout_s:g} s (build_timeout)",
            got="a read that was still going on",
            where=self._name(self._at[0]) if self._at is not None else "before the first sample",
            remedy="Check the disk or mount on this machine, or raise build_timeout in [job].",
        )


class ReadAhead:
    """Pool of reader threads: `submit` starts a read, `wait_for` returns its result or fails at the deadline."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._tasks: SimpleQueue[PendingRead[Any] | None] = SimpleQueue()
        self._lock = threading.Lock()
        #: The reads that threads are at, those of hanging threads included.
        self._underway: set[PendingRead[Any]] = set()
        #: How many threads hang, each replaced by another.
        self.hanging = 0
        # Reading in the building thread itself took 202 µs of CPU a WAV file instead of 222, but a read that hangs
        # there would end the worker; one reader instead of four gained nothing.
        for _ in range(READ_AT_A_TIME):
            self._start()

    def _start(self) -> None:
        # Daemons, so that a read that hangs does not keep the process from exiting.
        threading.Thread(target=self._run, name="stoker-read", daemon=True).start()

    def submit(self, work: Callable[[Callable[[int], None]], T], name: Callable[[int], str]) -> PendingRead[T]:
        """Start a read in a thread; if too many threads hang, it fails at once with ReadError, for `wait_for` to raise.

        `work` calls its argument with each sample before reading it; `name` names a sample in errors.
        """
        pending = PendingRead(work, name)
        # Without the lock: if a read that hung returns at this moment, one more is refused at worst.
        if self.hanging >= _MOST_HANGING:
            error = ReadError(
                expected=f"fewer than {_MOST_HANGING} reads that hang",
                got=f"{self.hanging}",
                where="this worker",
                remedy="Check its disks and mounts, then restart it.",
            )
            pending.future.set_exception(error)
        else:
            self._tasks.put(pending)
        return pending

    @property
    def unread(self) -> int:
        """Return how many submitted reads are not done, those that no thread has begun included."""
        return self._tasks.qsize() + len(self._underway)

    def wait_for(self, pending: PendingRead[T]) -> T:
        """Return what was read; raise its error, or ReadError if reading one sample takes longer than the timeout.

        Only one thread may wait.
        """
        while not pending.future.done():
            pause_s = self._give_up_late(time.monotonic())
            # If this process was stopped (SIGSTOP), the read may end at once now: give it that chance.
            if pending.given_up and not wait((pending.future,), _LAST_MOMENT_S).done:
                raise pending.late(self._timeout_s)
            wait((pending.future,), pause_s)
        return pending.future.result()

    def _give_up_late(self, now_s: float) -> float:
        """Replace the threads of all reads that hang, waited for or not; return in how many seconds to look again."""
        next_s = now_s + self._timeout_s
        with self._lock:
            # All of them: if every thread hangs in a read that nobody waits for yet, the one waited for never begins.
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
        """Wait for the next read and carry it out, keeping no reference to it; return whether this thread should go on.

        Return False once `close` was called, or if the read hung and another thread has taken this one's place.
        """
        # A function of its own, so that a thread that waits for work does not hold the bytes of its last batch.
        pending = self._tasks.get()
        if pending is None:
            return False
        with self._lock:
            self._underway.add(pending)
        result, error = pending.run()
        # Once removed, it cannot be given up any more, so what is returned below agrees with whether another thread was
        # started in place of this one.
        with self._lock:
            self._underway.remove(pending)
            self.hanging -= pending.given_up
        if error is None:
            pending.future.set_result(result)
        else:
            pending.future.set_exception(error)
        return not pending.given_up

    def close(self) -> None:
        """Let the threads end once the submitted reads are done, except those that hang."""
        # As many as there are threads that do not hang; a read that returns later finds its place taken, and ends.
        for _ in range(READ_AT_A_TIME):
            self._tasks.put(None)


class LookAhead:
    """Announcer of one stream's upcoming samples; `unkept` filters out those that will not have to be read."""

    def __init__(self, source: Source, unkept: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None) -> None:
        self._source = source
        self._unkept = unkept
        self._lock = threading.Lock()
        #: The epoch looked at last, and its first batch that has not been announced.
        self._next: tuple[tuple[int, int], int] = ((-1, -1), 0)

    def after(self, epoch: EpochPlan, which: tuple[int, int], number: int) -> None:
        """Announce the samples of the batches after `number`, which was just read, as far as the epoch goes.

        Return at once if another thread is doing so; stop early once the source can take no more, and after
        `_MOST_BATCHES_AHEAD` batches. Samples announced before and those that `unkept` filters out are left out.
        Errors of the source and of `unkept` pass through, such as a ReadError or a MachineError.
        """
        # Readers call this after each batch. One of them is enough, and a hint is not worth waiting for.
        if not self._source.looks_ahead() or not self._lock.acquire(blocking=False):
            return
        try:
            # Another epoch than last time has nothing announced yet.
            first = self._next[1] if self._next[0] == which else 0
            for later in range(max(number + 1, first), min(number + _MOST_BATCHES_AHEAD, epoch.batches)):
                if not self._source.looks_ahead():
                    break
                samples = epoch.batch(later).samples
                self._source.expect(self._unkept(samples) if self._unkept else samples)
                self._next = (which, later + 1)
        finally:
            self._lock.release()
