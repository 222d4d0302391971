"""What workers and trainers did since the last look, from their heartbeats.

Rules: pure. Trainers of a stream in lockstep wait for each other, so all of them count as waiting as long as the one
that waited longest. While any trainer is attached to a stream for training, readers of evaluation streams are not
counted: an evaluation lasts seconds, and more workers would come when it is over. Verifiers count nowhere, because
their wants yield to those of trainers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.coordinator.pace_record import JobPace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from loader_server.coordinator.streams.stream_trainers import AttachedTrainer, StreamTrainers
    from loader_server.coordinator.workers import RegisteredWorker

__all__ = ["PaceMeter"]

#: A trainer that neither read nor waited for so long does something else.
_PAUSED_S = 10.0


class PaceMeter:
    """The differences between what heartbeats counted at the last look and now."""

    def __init__(self) -> None:
        #: By incarnation: the batches that a trainer had read by the last look, and when it last read or waited.
        self._read: dict[int, int] = {}
        self._active_s: dict[int, float] = {}

    def look(
        self, streams: Iterable[StreamTrainers], workers: Iterable[RegisteredWorker], since_s: float, now_s: float
    ) -> JobPace:
        """Return what was done since the last look; workers that never beat or not since `since_s` are not there.

        What a trainer read before the first look at it does not count, nor does a stream for evaluation while one for
        training has trainers. All numbers are 0 if there is nobody.
        """
        there = [worker for worker in workers if worker.beat is not None and worker.heard_s >= since_s]
        counted = [stream for stream in streams if stream.trainers]
        training = [stream for stream in counted if not stream.view.evaluation]
        counted = training or counted
        read = sum(self._take_read(counted, now_s))
        shares = [share for stream in counted for share in self._waits(stream, now_s)]
        return JobPace(
            workers=len(there),
            busy=min(float(len(there)), sum(worker.busy for worker in there)),
            trainers=sum(len(stream.trainers) for stream in counted),
            read=read,
            waited=sum(shares) / len(shares) if shares else 0.0,
        )

    def _take_read(self, streams: list[StreamTrainers], now_s: float) -> Iterator[int]:
        """Yield how many batches each trainer has read since the last look, 0 at its first; remember what it has."""
        before, active_s = self._read, self._active_s
        self._read, self._active_s = {}, {}
        for stream in streams:
            for incarnation, trainer in stream.trainers.items():
                count = trainer.progress.batches_read if trainer.progress is not None else 0
                new = max(0, count - before.get(incarnation, count))
                is_active = new > 0 or _waited(trainer) > 0
                self._read[incarnation] = count
                self._active_s[incarnation] = now_s if is_active else active_s.get(incarnation, now_s - _PAUSED_S)
                yield new

    def _waits(self, stream: StreamTrainers, now_s: float) -> list[float]:
        """Return the share of waiting of each trainer that reads; if they train in lockstep, the largest for each."""
        reading = [
            trainer
            for incarnation, trainer in stream.trainers.items()
            if now_s - self._active_s[incarnation] < _PAUSED_S
        ]
        shares = [_waited(trainer) for trainer in reading]
        if stream.view.leases is None and not stream.view.evaluation:
            return [max(shares)] * len(shares) if shares else []
        return shares


def _waited(trainer: AttachedTrainer) -> float:
    return 0.0 if trainer.progress is None else trainer.progress.waited_permille / 1000
