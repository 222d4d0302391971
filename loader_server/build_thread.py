"""The worker's one building thread, and the few threads that read ahead for it.

Rules: jobs are built in the order in which they come; each ends as exactly one outcome, put where the poll loop finds
it; an exception becomes an outcome too, never a silent end of the thread. No sockets here.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

from loader_server.builder import key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.builder import Builder, Built, Prepared
    from loader_server.outgoing import Outgoing
    from loader_server.trial import Trial
    from shared.layout import BucketShape
    from shared.messages import Want
    from shared.sealing import Sealer

__all__ = ["BuildThread", "Job", "Outcome"]

#: Threads that read ahead: enough to keep a disk busy, few enough to leave the core to the builder.
_READERS = 4


@dataclass(slots=True, eq=False)
class Job:
    """A want of one trainer; `buffer(nbytes)` gives the place where the batch belongs, once its size is known."""

    trainer: bytes
    want: Want
    buffer: Callable[[int], NDArray[np.uint8]]
    #: Whether a digest is wanted.
    digest: bool = True
    #: Seals what goes by TCP under keys.
    sealer: Sealer | None = None
    cancelled: bool = False
    #: None where there is nothing to read ahead.
    prepared: Future[Prepared] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job: built into `payload`, or failed, or (neither) cancelled."""

    job: Job
    shape: BucketShape | None = None
    built: Built | None = None
    payload: NDArray[np.uint8] | None = None
    #: What goes by TCP, if it does.
    sent: memoryview | None = None
    #: The same sealed, and its number.
    sealed: tuple[int, NDArray[np.uint8]] | None = None
    error: BaseException | None = None
    culprits: tuple[int, ...] = ()


class BuildThread:
    """Takes jobs, leaves outcomes in `outcomes`, and calls `wake` after each."""

    def __init__(
        self, builders: dict[str, Builder], trial: Trial, outgoing: Outgoing, wake: Callable[[], None]
    ) -> None:
        self.outcomes: deque[Outcome] = deque()
        #: Jobs taken and not yet ended.
        self.load = 0
        self._builders = builders
        self._trial = trial
        self._outgoing = outgoing
        self._wake = wake
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._readers = ThreadPoolExecutor(_READERS, "stoker-read")
        self._thread = threading.Thread(target=self._run, name="stoker-build", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Take a job: reading starts now, building when its turn comes."""
        self.load += 1
        builder = self._builders[job.want.stream]
        if builder.reads:
            job.prepared = self._readers.submit(builder.prepare, job.want)
        self._jobs.put(job)

    def taken(self) -> list[Outcome]:
        """The outcomes since the last call."""
        done = []
        while self.outcomes:
            done.append(self.outcomes.popleft())
        self.load -= len(done)
        return done

    def close(self, timeout_s: float) -> bool:
        """End after the job that is being built; whether it ended in time, so that nothing here can write any more."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._trial.close()
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self.outcomes.append(self._outcome(job))
            self._wake()

    def _outcome(self, job: Job) -> Outcome:
        if job.cancelled:
            return Outcome(job)
        try:
            return self._built(job)
        except Exception as error:
            return Outcome(job, error=error)

    def _built(self, job: Job) -> Outcome:
        builder = self._builders[job.want.stream]
        prepared = job.prepared.result() if job.prepared is not None else builder.prepare(job.want)
        culprits: tuple[int, ...] = ()
        if job.want.attempt > 0:
            unknown = [sample for sample in prepared.planned.samples.tolist() if not builder.is_culprit(sample)]
            culprits = tuple(self._trial.culprits(job.want.stream, job.want.epoch, unknown))
            builder.culprits |= frozenset(map(key_of, culprits))
        payload = job.buffer(prepared.layout.nbytes)
        built = builder.build(job.want, prepared, payload, digest=job.digest)
        sent = None if job.want.in_slot else self._outgoing.packed(payload, prepared.layout)
        sealed = self._outgoing.sealed(job.sealer, sent) if job.sealer is not None and sent is not None else None
        return Outcome(
            job, shape=prepared.shape, built=built, payload=payload, sent=sent, sealed=sealed, culprits=culprits
        )
