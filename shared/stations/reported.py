"""The times of a job's stations, as its coordinator reports them.

Rules: pure. Workers build for all streams, so a stream is looked at together with all trainers that read, and what its
own trainers gain is what all of them gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.stations.closed_loop import TrainerTimes, WorkerTimes
from shared.stations.limit import (
    JobLimit,
    JobTimes,
    TrainerStation,
    WorkerStation,
    busy_shares,
    find_limit,
    gain_of_workers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["StreamLimits", "limit_of_report", "limits_of_streams", "queued_s_of_report", "stations_of_report"]

#: The times that a report covers, in seconds: the shorter one tells what limits the job now, the longer one what it
#: would gain.
_NOW, _STEADY = "5", "30"

#: Trainers whose rates differ by less than this read in step.
_IN_STEP = 0.05

_US = 1e-6


def limit_of_report(report: Mapping[str, Any]) -> JobLimit:
    """Return what limits a job now, by its report; gains are of the last half minute or, failing that, of now."""
    return find_limit(_job_times(report, _NOW), _job_times(report, _STEADY))


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What limits each stream, by name, and what several times as many workers would gain (see `gain_of_workers`)."""

    by_stream: Mapping[str, JobLimit]
    workers_gain: float | None


def limits_of_streams(report: Mapping[str, Any]) -> StreamLimits:
    """Return what limits each stream of a report: nobody if none of its trainers reads, else what limits the job."""
    now = _job_times(report, _NOW)
    limit, nobody = find_limit(now, _job_times(report, _STEADY)), JobLimit("nobody")
    by_stream = {
        name: limit if any(_reads(trainer, _NOW) for trainer in stream["trainers"]) else nobody
        for name, stream in report["streams"].items()
    }
    return StreamLimits(by_stream, gain_of_workers(now))


def queued_s_of_report(report: Mapping[str, Any]) -> float | None:
    """Return how long a want waits in a worker's queue, on average over the last seconds; None if none was built."""
    sums = [worker["lately"][_NOW] for worker in report["workers"] if worker["lately"]]
    built = sum(lately["built"] for lately in sums)
    return sum(_US * lately["queued_us"] for lately in sums) / built if built else None


def stations_of_report(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of the last seconds in which each kind of station was busy; none if that is unknown."""
    job = _job_times(report, _NOW)
    return busy_shares(job) if job.workers and job.trainers else {}


def _job_times(report: Mapping[str, Any], over: str) -> JobTimes:
    read = list(_trainers(report, over))
    rates = [batches / over_s for _, over_s, batches, _ in read]
    in_step = len(read) > 1 and min(rates) > (1 - _IN_STEP) * max(rates) and not _is_queue(report)
    waited = [waited_s / over_s for _, over_s, _, waited_s in read]
    return JobTimes(
        workers=list(_workers(report, over)),
        trainers=_own_steps([station for station, *_ in read]) if in_step else [station for station, *_ in read],
        in_step=in_step,
        rate=sum(rates),
        waited=max(waited, default=0.0) if in_step else sum(waited) / max(1, len(waited)),
    )


def _own_steps(trainers: Sequence[TrainerStation]) -> list[TrainerStation]:
    """Return trainers in step with steps of their own, without the time in which they wait for each other.

    If they do not all tell their own computation, all get the shortest step: a rank that waits for data makes the steps
    of the others longer.
    """
    steps_s = [trainer.times.step_s for trainer in trainers]
    own_s = [trainer.computed_s for trainer in trainers if trainer.computed_s is not None]
    if len(own_s) == len(trainers):
        # What all do once they have met, an update of the weights for example, is what the slowest one has left.
        common_s = max(0.0, min(step_s - computed_s for step_s, computed_s in zip(steps_s, own_s, strict=True)))
        steps_s = [computed_s + common_s for computed_s in own_s]
    else:
        steps_s = [min(steps_s)] * len(trainers)
    # Not by `replace`, which takes three times as long, for hundreds of trainers at each look.
    return [
        TrainerStation(
            trainer.name,
            TrainerTimes(step_s, trainer.times.window, trainer.times.wire_s, trainer.times.delay_s),
            trainer.computed_s,
        )
        for trainer, step_s in zip(trainers, steps_s, strict=True)
    ]


def _is_queue(report: Mapping[str, Any]) -> bool:
    return any(stream["queue"] for stream in report["streams"].values())


def _workers(report: Mapping[str, Any], over: str) -> Iterator[WorkerStation]:
    """Yield the workers that built something."""
    for worker in report["workers"]:
        lately = (worker["lately"] or {}).get(over)
        if not lately or not lately["built"]:
            continue
        built, building_s = lately["built"], _US * (lately["busy_us"] - lately["awaited_us"])
        times = WorkerTimes(_US * lately["read_us"] / built, building_s / built)
        held_up = min(1.0, _US * lately["held_up_us"] / max(building_s, _US))
        throttled = min(1.0, _US * lately["throttled_us"] / lately["over_s"])
        yield WorkerStation(worker["name"], times, held_up, throttled)


def _reads(trainer: Mapping[str, Any], over: str) -> Mapping[str, Any] | None:
    """Return a trainer's sums over this time if it read a batch or waited for one, otherwise None."""
    lately: Mapping[str, Any] | None = (trainer["lately"] or {}).get(over)
    return lately if lately and (lately["batches"] or lately["waited_us"]) else None


def _trainers(report: Mapping[str, Any], over: str) -> Iterator[tuple[TrainerStation, float, float, float]]:
    """Yield each trainer that read a batch or waited for one, with seconds, batches, and seconds of waiting."""
    for stream in report["streams"].values():
        for trainer in stream["trainers"]:
            lately = _reads(trainer, over)
            if lately is None:
                continue
            over_s, batches = lately["over_s"], lately["batches"]
            waited_s = min(over_s, _US * lately["waited_us"])
            times = TrainerTimes(
                step_s=(over_s - waited_s) / max(1, batches),
                window=max(1, trainer["prefetch"]),
                wire_s=_US * lately["wire_us"] / max(1, batches),
            )
            computed_s = _US * lately["computed_us"] / max(1, batches) or None
            yield TrainerStation(trainer["name"], times, computed_s), over_s, batches, waited_s
