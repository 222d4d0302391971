"""The worker's one building thread, and the outcome of each build.

Rules: builds run in the order in which they are submitted, except that a build whose batch another worker is building
is postponed for a limited time. Samples are read between builds as far as that takes only a moment, else during them.
Each build ends in exactly one outcome, left where the poll loop finds it; an exception becomes an outcome too, so the
thread never dies silently. No wait is unbounded: reading has a deadline (see read_ahead), and so has building (see
deadline), which ends the process. No sockets here.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from loader_server.building.build_counts import Effort
from loader_server.building.read_ahead import UnreadError
from loader_server.building.trial_rule import exhausted
from loader_server.tracing.want_stamps import WantStamps
from shared.stations.service_times import READ_AT_A_TIME
from shared.tracing.ring import StampKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.building.build_counts import Built
    from loader_server.building.builder import Builder
    from loader_server.building.crash_trial import Conviction, CrashTrial
    from loader_server.building.deadline import Deadline
    from loader_server.building.read_ahead import PendingRead, Prepared, ReadAhead
    from loader_server.building.send_buffers import SendBuffers
    from shared.wire.batch_layout import BucketShape
    from shared.wire.messages import Want
    from shared.wire.sealing import Sealer

__all__ = ["Build", "BuildThread", "Outcome"]

#: How long outcomes may be held back, to be handed over together: `_SOON_S` while builds are quicker than `_QUICK_S`,
#: else `_LATER_S`. Waking the poll loop costs as much as a quick build, and each thread that slept wakes with cold
#: caches. Batches of 2 MB, one every 5 ms, cost 1.8 ms of CPU each on their way one by one, and 1.2 ms in groups; those
#: of 62 records cost 8.1 µs a record in all when handed over every 2 ms, and 6.6 µs every 10 ms.
_QUICK_S = 0.002
_SOON_S = 0.01
_LATER_S = 0.02
#: They are held back only while so many builds are queued, so that the poll loop can bring more before the thread runs
#: dry. It takes more of quick builds to fill that time.
_FEW = 2
_FEW_QUICK = 4

#: Builds that the thread holds at a time: one being built, the others being read ahead. Quick builds need more of them,
#: so that the thread stays busy until the poll loop submits the next.
_AHEAD = 4
_MOST_AHEAD = 32
#: Where reads are slow, so many of them are submitted at a time: one for each reader, and some that a reader finds when
#: it has finished before the poll loop has submitted more.
_UNREAD = READ_AT_A_TIME + 2

#: How long to wait for a read before building goes on: `_MOMENT` times the usual build time, within the two bounds.
#: Only one thread holds the interpreter lock, and each system call of a reader passes it on: recordings of 2.4 s took
#: 252 µs of CPU each when read during builds, and take 222 when read between them, 4 740 a second instead of 4 540.
_MOMENT_S = 0.002
_MOMENT = 0.25
_LONGEST_MOMENT_S = 0.02
#: How many reads are not waited for after one that took longer or waited for a disk: the next ones are likely to be as
#: slow, and waiting for them would idle the building thread.
_UNWAITED = 16

#: How long to leave a batch to another worker that has begun it: `_PATIENCE` usual build times, at least `_PATIENCE_S`.
#: After that it is built here too, because the other worker may be stopped while it holds the lock.
_PATIENCE_S = 0.5
_PATIENCE = 4
#: How often an idle thread polls for postponed batches: the kernel announces a freed lock only to a waiter without a
#: timeout, which this thread cannot afford to be.
_LOOK_S = 0.002

#: Weight of the latest build in the moving average of build times.
_NEWEST = 0.1


@dataclass(slots=True, eq=False)
class Build:
    """A trainer's want to be built; `buffer(nbytes)` supplies memory for the batch once its size is known."""

    trainer: int
    want: Want
    buffer: Callable[[int], NDArray[np.uint8]]
    #: Whether to hash the payload.
    digest: bool = True
    #: Seals a payload that is sent by TCP; None if the job has no keys.
    sealer: Sealer | None = None
    #: Set by the poll loop at any time; looked at before each long step, so that nothing is built for nobody.
    cancelled: bool = False
    #: Whether preparing it may wait for a disk, so that a reader has to do it.
    reads: bool = False
    #: The read in progress or finished; None if none has begun or none is needed.
    pending: PendingRead[Prepared] | None = None
    #: When the want came.
    accepted_s: float = field(default_factory=time.monotonic)
    #: What all of its stamps have in common; empty if nothing is stamped.
    key: bytes = b""
    #: Until when the batch is left to another worker that is building it.
    patient_s: float = math.inf
    #: What it has taken so far; complete in its outcome.
    effort: Effort = field(default_factory=Effort)

    @property
    def may_wait(self) -> bool:
        """Whether carrying it out may block: its samples are still being read, or have to be tried in a child first."""
        return self.want.attempt > 0 or (self.pending is not None and not self.pending.future.done())


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a build: a batch in `payload`, an error, or neither if it was cancelled."""

    build: Build
    #: The padded shape and the facts of the batch; None without a batch, as is the payload.
    shape: BucketShape | None = None
    built: Built | None = None
    payload: NDArray[np.uint8] | None = None
    #: The encoded payload to send by TCP; None for a batch written into a slot.
    sent: memoryview | None = None
    #: The seal's number and the sealed form of `sent`; None if nothing is sealed.
    sealed: tuple[int, NDArray[np.uint8]] | None = None
    error: BaseException | None = None
    #: Samples that the trial convicted of killing their decoder, even if the build then failed.
    convictions: tuple[Conviction, ...] = ()


class BuildThread:
    """Thread that carries out builds, leaves results in `outcomes`, and calls `wake` soon after each."""

    def __init__(  # noqa: PLR0913 - what building needs, each by name
        self,
        builders: dict[str, Builder],
        *,
        crash_trial: CrashTrial,
        buffers: SendBuffers,
        readers: ReadAhead,
        deadline: Deadline,
        wake: Callable[[], None],
        stamps: WantStamps | None = None,
    ) -> None:
        self._stamp = (stamps or WantStamps()).stamp
        self.outcomes: deque[Outcome] = deque()
        #: Submitted builds whose outcome has not been taken yet.
        self.load = 0
        #: Seconds that builds had been in the queue when they were submitted, added up.
        self.queued_s = 0.0
        #: Moving average of the duration of a build; high at first, so that the first outcomes are announced at once.
        self._usual_s = _LATER_S
        #: When `wake` was called last, and whether an outcome was added since, whose announcement is held back.
        self._woken_s = 0.0
        self._holds_back = False
        self._builders = builders
        self._crash_trial = crash_trial
        self._buffers = buffers
        self._readers = readers
        self._deadline = deadline
        self._wake = wake
        #: Submitted builds; None, which `close` puts there, ends the thread.
        self._builds: SimpleQueue[Build | None] = SimpleQueue()
        #: How long the thread has had no build in hand, and since when it has none; replaced as a whole, because the
        #: poll loop reads it.
        self._idle: tuple[float, float | None] = (0.0, None)
        self._began_s = time.monotonic()
        #: How long the thread has waited for samples that were being read, and since when, as above.
        self._awaited: tuple[float, float | None] = (0.0, None)
        #: Builds taken from the queue, whose samples are being read or have been.
        self._at_hand: deque[Build | None] = deque()
        #: How many more reads begin before one is waited for again.
        self._unwaited = 0
        #: Postponed builds: another worker was building the batch, or its samples turned out to need reading after all.
        self._elsewhere: deque[Build] = deque()
        # A daemon, so that a build that never returns does not keep the process from exiting.
        self._thread = threading.Thread(target=self._run, name="stoker-build", daemon=True)
        self._thread.start()

    @property
    def has_room(self) -> bool:
        """Whether `load` is below its limit: 4 to 32 builds, twice as many as end while outcomes are held back.

        Where reads are slow, as many as keep the readers busy as well, beyond the builds that are read.
        """
        # Twice as many as are built while outcomes are held back: the poll loop submits more only when it is woken.
        if self.load < min(max(_AHEAD, int(2 * self._hold_s / self._usual_s)), _MOST_AHEAD):
            return True
        # A build that is in hand or waits for its turn occupies no reader: with four builds in all, of four readers
        # three had something to do, and often two.
        unread = self._readers.unread
        is_read = self.load - len(self.outcomes) - unread
        return 0 < unread < _UNREAD and is_read <= _AHEAD and self.load < _MOST_AHEAD

    def busy_s(self) -> float:
        """Return how long the thread has had a build in hand since its start, waits for the build's samples included.

        Looking now and then whether another worker has finished a batch counts as idle.
        """
        now_s, (idle_s, since_s) = time.monotonic(), self._idle
        return max(0.0, now_s - self._began_s - idle_s - (0.0 if since_s is None else now_s - since_s))

    def awaited_s(self) -> float:
        """Return the part of `busy_s` in which it waited for samples that were being read, up to now."""
        awaited_s, since_s = self._awaited
        return awaited_s + (0.0 if since_s is None else time.monotonic() - since_s)

    def held_up_s(self) -> float:
        """Return how long the thread could have run since its start and had no CPU; 0 if unknown, or if it ended."""
        try:
            _, held_up_ns, _ = Path(f"/proc/self/task/{self._thread.native_id}/schedstat").read_text().split()
        except (OSError, ValueError):  # a kernel without these statistics, or a thread that has ended
            return 0.0
        return int(held_up_ns) / 1e9

    def submit(self, build: Build) -> None:
        """Queue a build for its turn and raise `load`; set `reads` if preparing it has to be left to a reader.

        The read begins now if the thread waits for an earlier one.
        """
        self.load += 1
        self.queued_s += time.monotonic() - build.accepted_s
        build.reads = self._builders[build.want.stream].reads(build.want)
        # The thread begins reads between builds. While it waits for one, builds that come would only be read after it,
        # and of four readers three had something to do.
        if build.reads and self._awaited[1] is not None:
            self._begin_read(build)
        self._builds.put(build)

    def take_outcomes(self) -> list[Outcome]:
        """Return the outcomes added since the last call, oldest first, maybe none, and lower `load` by as many."""
        # The building thread may append meanwhile: both ends of a deque are safe to use from two threads. What comes
        # after the count was taken is announced by a wake-up of its own.
        done = [self.outcomes.popleft() for _ in range(len(self.outcomes))]
        self.load -= len(done)
        return done

    def close(self, timeout_s: float) -> bool:
        """End the thread after the builds that were queued before, but for postponed ones, and close the readers.

        Return False if it did not end in time and may still write into a buffer; otherwise close the trial, and return
        True. Raise MachineError if the trial's killed child does not go away.
        """
        self._builds.put(None)
        self._thread.join(timeout_s)
        self._readers.close()
        if self._thread.is_alive():
            return False  # the trial's child belongs to that thread; it ends with this process
        self._crash_trial.close()
        return True

    def _run(self) -> None:
        while self._take_next():
            # One turn each: a build that is postponed again goes to the end and waits for the next round.
            for _ in range(len(self._elsewhere)):
                self._take_turn(self._elsewhere.popleft())

    def _take_next(self) -> bool:
        """Wait for the next build, and carry it out or postpone it; return False at the end, otherwise True.

        Return True without a build when postponed builds are due a look. Errors of a build become its outcome.
        """
        try:
            while not self._at_hand:
                self._take_in(self._wait_for_build())
            # Take in all builds that have come, so that readers work on the later ones while the first is built.
            while not self._builds.empty():
                self._take_in(self._builds.get_nowait())
        except Empty:  # only a look at postponed builds is due
            return True
        build = self._at_hand.popleft()
        if build is not None:
            self._take_turn(build)
        return build is not None

    def _wait_for_build(self) -> Build | None:
        """Return the next build from the queue, None at its end; raise Empty once postponed builds are due a look."""
        idle_s, began_s = self._idle[0], time.monotonic()
        self._idle = (idle_s, began_s)
        try:
            return self._builds.get(timeout=_LOOK_S if self._elsewhere else None)
        finally:
            self._idle = (idle_s + time.monotonic() - began_s, None)

    def _take_in(self, build: Build | None) -> None:
        """Put the build at hand; if it has to be read, have a reader prepare it, and wait a moment for it.

        Nothing is read for a cancelled build, or for None, which ends the queue. After a read that did not end at once,
        the next `_UNWAITED` reads are not waited for. Nothing is raised: `wait_for` raises the error of a failed read.
        """
        self._at_hand.append(build)
        if build is None or not build.reads or build.cancelled or build.pending is not None:
            return
        pending = self._begin_read(build)
        moment_s = min(max(_MOMENT_S, _MOMENT * self._usual_s), _LONGEST_MOMENT_S)
        if self._unwaited:
            self._unwaited -= 1
            return
        with self._awaiting():
            if not pending.ends_at_once(moment_s):
                self._unwaited = _UNWAITED

    def _prepare(self, builder: Builder, build: Build, begin: Callable[[int], None] | None = None) -> Prepared:
        """Return the want's prepared samples, and stamp it as read; errors of `prepare` pass through."""
        if build.effort.queued_s is None:
            build.effort.queued_s = time.monotonic() - build.accepted_s
        prepared = builder.prepare(build.want) if begin is None else builder.prepare(build.want, begin)
        self._stamp(StampKind.READ, time.monotonic_ns(), build.key)
        return prepared

    def _begin_read(self, build: Build) -> PendingRead[Prepared]:
        """Have a reader prepare the build; if too many readers hang, its read has failed at once with ReadError."""
        builder = self._builders[build.want.stream]
        pending = self._readers.submit(partial(self._prepare, builder, build), builder.stream.source.name)
        build.pending = pending
        return pending

    def _take_turn(self, build: Build) -> None:
        """Carry out one build, or postpone it; wake the poll loop if an outcome should not wait for later ones.

        Announce what is finished first if this build may block. A postponed build is put aside with the others.
        """
        # Announce finished batches now: this build may block for long, and they would lie there unseen meanwhile.
        if self._holds_back and build.may_wait:
            self._announce()
        began_s = time.monotonic()
        outcome = self._carry_out(build)
        if outcome is None:
            self._elsewhere.append(build)
            # Nothing is certain to follow soon: the next look at this build may find it postponed again.
            if self._holds_back:
                self._announce()
            return
        self.outcomes.append(outcome)
        self._holds_back = True
        now_s = time.monotonic()
        self._usual_s += _NEWEST * (now_s - began_s - self._usual_s)
        # Wake at once for a batch that is awaited, before the thread idles, and if the next build would end too late.
        if build.want.urgent or self._runs_out() or now_s + self._usual_s > self._woken_s + self._hold_s:
            self._announce()

    @property
    def _is_quick(self) -> bool:
        return self._usual_s < _QUICK_S

    @property
    def _hold_s(self) -> float:
        """How long an outcome may be held back to be announced with later ones: shorter while builds are quick."""
        return _SOON_S if self._is_quick else _LATER_S

    def _runs_out(self) -> bool:
        """Return whether fewer than two builds are left (four, while builds are quick); postponed ones do not count."""
        return len(self._at_hand) + self._builds.qsize() < (_FEW_QUICK if self._is_quick else _FEW)

    def _announce(self) -> None:
        self._woken_s, self._holds_back = time.monotonic(), False
        self._wake()

    def _carry_out(self, build: Build) -> Outcome | None:
        """Return the build's outcome, errors included; an outcome without a batch or an error if it was cancelled.

        Return None to postpone it: another worker is building the batch, or its samples have to be read after all. An
        error that a shortage of memory or descriptors caused becomes an ExhaustedError.
        """
        convictions: list[Conviction] = []
        try:
            if build.cancelled:
                return Outcome(build)
            builder = self._builders[build.want.stream]
            self._stamp(StampKind.BEGUN, time.monotonic_ns(), build.key)
            prepared = self._get_prepared(builder, build)
            # Only after a death: a trial costs a second for the child, and a decoding of each sample in it.
            for conviction in self._try_samples(build, builder, prepared) if build.want.attempt > 0 else ():
                convictions.append(conviction)  # noqa: PERF402 - those before an error count
            try:
                if self._is_elsewhere(build, builder, prepared):
                    return None
                return self._build(build, builder, prepared, tuple(convictions))
            except UnreadError as unread:
                build.pending = self._readers.submit(unread.read, builder.stream.source.name)
                return None
            finally:
                # On every path: a claim that is kept would make other workers wait for a batch that nobody builds.
                builder.release()
        except BaseException as error:  # the want's outcome names it, and the thread goes on
            in_hand = f"batch {build.want.number} of epoch {build.want.epoch}"
            shortage = exhausted(error, in_hand, f"stream {build.want.stream}")
            return Outcome(build, error=shortage or error, convictions=tuple(convictions))

    def _get_prepared(self, builder: Builder, build: Build) -> Prepared:
        """Return the want's prepared samples, from a reader or prepared here, and add the CPU time that this took.

        Raise the error of preparing, or ReadError if a reader takes longer than its deadline.
        """
        if build.pending is None:
            began_s = time.thread_time()
            try:
                return self._prepare(builder, build)
            finally:
                build.effort.read_cpu_s += time.thread_time() - began_s
        try:
            with self._awaiting():
                return self._readers.wait_for(build.pending)
        finally:
            # Measured by the reader, which needs it to know whether the disk was waited for.
            build.effort.read_cpu_s += build.pending.cpu_s

    @contextmanager
    def _awaiting(self) -> Iterator[None]:
        """Count the time of the block as waiting for samples; errors in it pass through."""
        awaited_s, began_s = self._awaited[0], time.monotonic()
        self._awaited = (awaited_s, began_s)
        try:
            yield
        finally:
            self._awaited = (awaited_s + time.monotonic() - began_s, None)

    def _is_elsewhere(self, build: Build, builder: Builder, prepared: Prepared) -> bool:
        """Return whether another worker holds this batch and the time to leave it is not over; OSError passes."""
        # The deadline is set at the first look and kept, so that repeated looks do not extend it.
        if builder.claim(prepared):
            return False
        now_s = time.monotonic()
        build.patient_s = min(build.patient_s, now_s + max(_PATIENCE_S, _PATIENCE * self._usual_s))
        return now_s < build.patient_s

    def _try_samples(self, build: Build, builder: Builder, prepared: Prepared) -> Iterator[Conviction]:
        """Try the batch's samples in a child process; yield those convicted of killing, hanging or exhausting it.

        Known culprits are skipped, also those that other workers report while the trial runs, and all samples once the
        build is cancelled. Raise MachineError for the first sample that cannot be judged; other errors of
        `try_samples` and `is_culprit` pass through.
        """
        assert prepared.raw is not None
        # A generator, so that each condition is looked at just before the sample is tried.
        samples = (
            (sample, raw)
            for sample, raw in zip(prepared.samples.tolist(), prepared.raw, strict=True)
            if raw is not None and not build.cancelled and not builder.is_culprit(sample)
        )
        return self._crash_trial.try_samples(builder.stream, build.want.epoch, samples)

    def _build(
        self, build: Build, builder: Builder, prepared: Prepared, convictions: tuple[Conviction, ...]
    ) -> Outcome:
        """Build the batch and return the outcome; if cancelled, return only the convictions.

        A batch that is not written into a slot is encoded, and sealed if the build has a sealer. Errors of the buffer,
        of building, encoding and sealing are raised again, with the deadline's timer stopped.
        """
        if build.cancelled:
            return Outcome(build, convictions=convictions)
        payload = build.buffer(prepared.layout.nbytes)
        convicted = frozenset(conviction.sample for conviction in convictions)
        effort, began_s = build.effort, time.thread_time()
        try:
            try:
                built = builder.build(build.want, prepared, payload, digest=build.digest, convicted=convicted)
            finally:
                built_s = time.thread_time()
                effort.build_cpu_s += built_s - began_s
            self._stamp(StampKind.BUILT, time.monotonic_ns(), build.key)
            self._deadline.begin(time.perf_counter_ns())
            # Encoding and sealing are one more step, with the full time to themselves.
            sent = None if build.want.in_slot else self._buffers.encode(payload, prepared.layout)
            sealed = self._buffers.seal(build.sealer, sent) if build.sealer is not None and sent is not None else None
            if sent is not None:  # otherwise it was written as it was built
                self._stamp(StampKind.WRITTEN, time.monotonic_ns(), build.key)
                effort.send_cpu_s += time.thread_time() - built_s
        finally:
            # After an error too: a timer that runs on would end the process while it is idle.
            self._deadline.end()
        return Outcome(
            build,
            shape=prepared.shape,
            built=built,
            payload=payload,
            sent=sent,
            sealed=sealed,
            convictions=convictions,
        )
