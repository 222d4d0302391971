"""What workers and trainers did since the last look, from their heartbeats.

Rules: pure. Trainers of a stream in lockstep wait for each other, so all of them count as waiting as long as the one
that waited longest. While any trainer is attached to a stream for training, readers of evaluation streams are not
counted: an evaluation lasts seconds, and more workers would come when it is over. Verifiers count nowhere, because
their wants yield to those of trainers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from loader_server.coordinator.pace.pace_record import JobPace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loader_server.coordinator.streams.stream_trainers import AttachedTrainer, StreamTrainers
    from loader_server.coordinator.workers import RegisteredWorker

__all__ = ["PaceMeter"]

#: A trainer that neither read nor waited for so long does something else.
_PAUSED_S = 10.0


class PaceMeter:
    """What heartbeats have told since the last look; it remembers no more than when that was."""

    def __init__(self) -> None:
        self._looked_s = math.inf

    def look(
        self, streams: Iterable[StreamTrainers], workers: Iterable[RegisteredWorker], since_s: float, now_s: float
    ) -> JobPace:
        """Return what was done since the last look; workers that never beat or not since `since_s` are not there.

        Before the first look nothing counts as read, nor does a stream for evaluation while one for training has
        trainers. All numbers are 0 if there is nobody.
        """
        looked_s, self._looked_s = min(self._looked_s, now_s), now_s
        there = [worker for worker in workers if worker.beat is not None and worker.heard_s >= since_s]
        counted = [stream for stream in streams if stream.trainers]
        training = [stream for stream in counted if not stream.view.evaluation]
        counted = training or counted
        trainers = [trainer for stream in counted for trainer in stream.trainers.values()]
        shares = [share for stream in counted for share in _waits(stream, now_s)]
        return JobPace(
            workers=len(there),
            # More than the whole of a worker's time, if a heartbeat was late and the next one was not: the mean of
            # several looks is right.
            busy=min(float(len(there)), sum(worker.lately.rate("busy_us") for worker in there) / 1e6),
            trainers=len(trainers),
            read=int(sum(trainer.lately.since("batches", looked_s) for trainer in trainers)),
            waited=sum(shares) / len(shares) if shares else 0.0,
        )


def _waits(stream: StreamTrainers, now_s: float) -> list[float]:
    """Return the share of waiting of each trainer that reads; if they train in lockstep, the largest for each."""
    reading = [trainer for trainer in stream.trainers.values() if _reads(trainer, now_s - _PAUSED_S)]
    shares = [min(1.0, trainer.lately.rate("waited_us") / 1e6) for trainer in reading]
    if stream.view.leases is None and not stream.view.evaluation:
        return [max(shares)] * len(shares) if shares else []
    return shares


def _reads(trainer: AttachedTrainer, since_s: float) -> bool:
    return any(trainer.lately.since(name, since_s) > 0 for name in ("batches", "waited_us"))
