"""What limits a job, and what it would gain from more: one rule for the status, alerts, reports and shares.

A station limits the job if the job would gain most without it: the closed loop is played with each station relieved
in turn. Gains are given only if the loop, played with the measured times, comes to the measured rate.

Rules: pure; at most a dozen plays, 20 ms of CPU in all. Of large jobs a few workers and trainers stand for all.

| what is seen | the limit |
| --- | --- |
| nobody took a batch or waited for one | nobody |
| trainers hardly wait, and steps of one rank are longer than those of the others | rank |
| trainers hardly wait | trainers |
| one worker far slower than the others, and the job gains if it is as quick as they are | worker |
| most is gained with reads, building or connections that take no time | reads, transforms or wire |
| as transforms, while workers that build are kept from running | host |
| most is gained with twice the window, or that station is idle for long and the window gains much | window |
| no station alone gains anything | trainers |

Named is the worker or rank that is slow by itself, if there is one; a station that is slow everywhere has no name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median_low
from typing import TYPE_CHECKING

from shared.stations.closed_loop import WorkerTimes, play, sample
from shared.stations.service_times import READ_AT_A_TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shared.stations.closed_loop import TrainerTimes

__all__ = [
    "LIMITS",
    "Gains",
    "JobLimit",
    "JobTimes",
    "TrainerStation",
    "WorkerStation",
    "busy_shares",
    "find_limit",
    "gain_of_workers",
    "gain_words",
    "limit_words",
    "sentence",
]

#: All limits that there may be.
LIMITS = ("nobody", "trainers", "rank", "window", "wire", "transforms", "reads", "worker", "host")

#: Trainers that wait for less than this share of their time are the limit themselves.
_HARDLY = 0.03
#: A worker, or a rank's step, counts as slow if it takes this many times what is usual. Reads differ more by chance:
#: some find their bytes in a cache, and a look covers few of them where they are slow.
_SLOW, _SLOW_READS = 1.6, 2.5
_SLOW_STEP = 1.15
#: A gain below this is none.
_NO_GAIN = 0.03
#: A station that is busy for less than this share is idle for long, and a gain above this one is much.
_IDLE, _MUCH = 0.7, 0.25
#: How far the played rate may be from the measured one if gains are to be believed.
_LIKENESS = 0.10
#: Share of the building time in which workers that could run do not, from which a host counts as full: a third where
#: three workers compute on two cores. Transforms that sleep came to more than a fifth on a full host, and stay it.
_FULL = 0.3
#: A gain from which on people hear how many times the rate there would be.
_TIMES = 4.0
#: Workers that are as many as can help, if that is more than there are; otherwise so many times as many.
_MANY, _MANY_TIMES = 16, 8
#: Times that are measured as nothing.
_LEAST_S = 1e-6


@dataclass(frozen=True, slots=True)
class WorkerStation:
    """A worker as measured."""

    name: str
    times: WorkerTimes
    #: Share of the building time in which it could have run, and had no CPU.
    held_up: float = 0.0
    #: Share of the time in which its control group had used up its CPU quota.
    throttled: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainerStation:
    """A trainer as measured; `computed_s` is its step without waiting for other ranks, None if unknown."""

    name: str
    times: TrainerTimes
    computed_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobTimes:
    """A job as measured: its stations, the batches a second of all trainers, and their share of waiting."""

    workers: Sequence[WorkerStation]
    trainers: Sequence[TrainerStation]
    in_step: bool
    rate: float
    waited: float


@dataclass(frozen=True, slots=True)
class Gains:
    """The part by which the rate would grow: 0.39 is 39 % more."""

    endless_loaders: float
    worker_more: float
    twice_the_window: float


@dataclass(frozen=True, slots=True)
class JobLimit:
    """The limit, the worker or trainer that it lies at, and the share of the time in which the limit is busy.

    `who` is empty if it lies at all of them; `gains` is None if they are unknown. `is_rank_known` is False if trainers
    in step are the limit and do not all tell how long their own computation takes: a single rank may be slow.
    `throttled` is the mean share of the time in which workers had used up the CPU quota of their control group.
    """

    limit: str
    who: str = ""
    busy: float = 0.0
    gains: Gains | None = None
    is_rank_known: bool = True
    throttled: float = 0.0


def find_limit(job: JobTimes, steady: JobTimes | None = None) -> JobLimit:
    """Return the job's limit: "nobody" if no trainer took a batch or waited for one, else "worker" without workers.

    Gains are those of `steady`, the same job over a longer time, if the loop comes to its rate, otherwise of the job if
    it comes to that one's, otherwise None. They are None as well without workers, and if the host is the limit.
    """
    if not job.trainers or (not job.rate and not job.waited):
        return JobLimit("nobody")
    if not job.workers:
        return JobLimit("worker", busy=1.0)
    model = _Model.of(job)
    now = model.rate()
    limit, who = _among_trainers(job) if job.waited < _HARDLY else _among_stations(job, model, now)
    gains = None
    # The loop knows no CPUs: on a full host another worker takes its share from the others.
    if limit != "host":
        # A longer time says nothing for a while after a change: it mixes two jobs, and no loop comes to their rate.
        gains = _steady_gains(steady) or _gains(job, model, now)
    return JobLimit(
        limit,
        who,
        _busy(job, limit),
        gains,
        is_rank_known=limit != "trainers" or _tells_ranks_apart(job),
        throttled=sum(worker.throttled for worker in job.workers) / len(job.workers),
    )


def _steady_gains(steady: JobTimes | None) -> Gains | None:
    if steady is None or not steady.workers or not steady.trainers:
        return None
    model = _Model.of(steady)
    return _gains(steady, model, model.rate())


def gain_of_workers(job: JobTimes) -> float | None:
    """Return the part by which the rate would grow with several times as many workers; None if that is unknown.

    It is 0 if trainers hardly wait.
    """
    if not job.trainers or not job.workers:
        return None
    if job.waited < _HARDLY:
        return 0.0
    model = _Model.of(job)
    now = model.rate()
    return max(0.0, model.with_many_workers().rate() / now - 1) if _is_like(job, now) else None


def _among_trainers(job: JobTimes) -> tuple[str, str]:
    slow = _slow_rank(job)
    return ("rank", slow) if slow else ("trainers", "")


def _among_stations(job: JobTimes, model: _Model, now: float) -> tuple[str, str]:
    slow = _slow_worker(job, model, now)
    if slow:
        return "worker", slow
    relieved = {limit: eased.rate() / now - 1 for limit, eased in model.relieved()}
    limit = max(relieved, key=lambda limit: relieved[limit])
    if relieved[limit] < _NO_GAIN:
        return "trainers", ""
    if _busy(job, limit) < _IDLE and relieved["window"] > _MUCH:
        return "window", ""
    return "host" if limit == "transforms" and _is_held_up(job) else limit, ""


def busy_shares(job: JobTimes) -> dict[str, float]:
    """Return the share of the time in which reads, transforms, wire and trainers (in steps) are busy, by these names.

    The job must have workers and trainers.
    """
    return {limit: _busy(job, limit) for limit in ("reads", "transforms", "wire", "trainers")}


def sentence(verdict: JobLimit) -> str:
    """Return the verdict as one line for people, with what would be gained; "gain unknown" if that is not known.

    If nobody is the limit, or a worker without a name, gains are left out.
    """
    if verdict.limit == "nobody" or (verdict.limit == "worker" and not verdict.who):
        return f"limit: {limit_words(verdict)}"
    is_quota = verdict.limit == "host" and verdict.throttled > _FULL
    where = (_QUOTA if is_quota else "".join(_WHERE[verdict.limit])).format(
        throttled=f"{100 * verdict.throttled:.0f} %",
        who=verdict.who,
        busy=f"{100 * verdict.busy:.0f} %",
        rank="" if verdict.is_rank_known else "; rank unknown",
    )
    return f"limit: {where}; {gain_words(verdict.gains)}"


_WHERE = {
    "nobody": ("nobody, no trainer reads", ""),
    "trainers": ("trainers", " ({busy} of their time in steps{rank})"),
    "rank": ("rank {who}, whose steps are longer than the others'", ""),
    "window": ("the window, batches are not asked for early enough", ""),
    "wire": ("the connections to trainers", " ({busy} busy)"),
    "transforms": ("transforms in workers", " ({busy} busy)"),
    "reads": ("reads in workers", " (readers {busy} busy)"),
    "worker": ("worker {who}, far slower than the others", ""),
    "host": ("the workers' host, which has no more CPU for them", " ({busy} busy)"),
}
_NO_WORKER = "workers, of which none builds a batch"


def limit_words(verdict: JobLimit) -> str:
    """Return where the limit lies, in words without figures, as "transforms in workers"."""
    if verdict.limit == "worker" and not verdict.who:
        return _NO_WORKER
    return _WHERE[verdict.limit][0].format(who=verdict.who)


#: Of a host that has CPUs which workers may not use.
_QUOTA = "the workers' CPU quota, used up {throttled} of the time (cpu.max of their control group)"


def gain_words(gains: Gains | None) -> str:
    """Return what would be gained, in words: the better of a worker and a window, and endless loaders."""
    if gains is None:
        return "gain unknown"
    if gains.endless_loaders < _NO_GAIN:
        return "endless loaders would gain nothing"
    worker, window = (
        f"1 more worker {_percent(gains.worker_more)}",
        f"twice the window {_percent(gains.twice_the_window)}",
    )
    more = max((gains.worker_more, worker), (gains.twice_the_window, window))[1]
    return f"{more}, endless loaders {_percent(gains.endless_loaders)}"


def _percent(gain: float) -> str:
    if gain >= _TIMES:
        return f"{1 + gain:.0f} times"
    return "+0 %" if gain < _NO_GAIN / 3 else f"+{100 * gain:.0f} %"


# --- the job as it would be ---


@dataclass(frozen=True, slots=True)
class _Model:
    """The few workers and trainers that stand for all of a job, of which there are `count` workers.

    Sampled once, because a large job takes longer to copy for each change than to play.
    """

    workers: Sequence[WorkerTimes]
    trainers: Sequence[TrainerTimes]
    in_step: bool
    scale: float
    count: int

    @classmethod
    def of(cls, job: JobTimes) -> _Model:
        few = sample([worker.times for worker in job.workers], [trainer.times for trainer in job.trainers])
        return cls(few.workers, few.trainers, job.in_step, few.scale, len(job.workers))

    def rate(self) -> float:
        return play(self.workers, self.trainers, in_step=self.in_step).rate / self.scale

    def relieved(self) -> Iterator[tuple[str, _Model]]:
        """Yield each station that is the same for all, and the job as it would be without its limit."""
        yield "wire", self._with_trainers(lambda times: replace(times, wire_s=0.0))
        yield "reads", self._with_workers(lambda times: WorkerTimes(0.0, times.build_s))
        yield "transforms", self._with_workers(lambda times: WorkerTimes(times.read_s, 0.0))
        yield "window", self.with_twice_the_window()

    def with_twice_the_window(self) -> _Model:
        return self._with_trainers(lambda times: replace(times, window=2 * times.window))

    def with_many_workers(self) -> _Model:
        """Return the job with several times as many workers: each takes as long for a batch as now, if possible."""
        # A batch's own time has to stay: reads of a job whose window is its limit take as long with any number.
        times = _MANY // len(self.workers)
        if self.scale == 1 and times > 1:
            return replace(self, workers=[*self.workers] * times, count=self.count * times)
        return self._with_workers(lambda times: WorkerTimes(times.read_s / _MANY_TIMES, times.build_s / _MANY_TIMES))

    def with_another(self, worker: WorkerTimes) -> _Model:
        """Return the job with one worker more; of a sample all workers are as much quicker as they would be more."""
        if len(self.workers) == self.count and self.scale == 1:
            return replace(self, workers=[*self.workers, worker], count=self.count + 1)
        part = self.count / (self.count + 1)
        return self._with_workers(lambda times: WorkerTimes(times.read_s * part, times.build_s * part))

    def with_worker(self, slow: WorkerTimes, usual: WorkerTimes) -> _Model:
        """Return the job with usual times for those workers of the sample that have these slow ones."""
        return self._with_workers(lambda times: usual if times == slow else times)

    def _with_workers(self, change: Callable[[WorkerTimes], WorkerTimes]) -> _Model:
        return replace(self, workers=[change(times) for times in self.workers])

    def _with_trainers(self, change: Callable[[TrainerTimes], TrainerTimes]) -> _Model:
        return replace(self, trainers=[change(times) for times in self.trainers])


def _gains(job: JobTimes, model: _Model, now: float) -> Gains | None:
    """Return what would be gained; None if the loop, which comes to the rate `now`, is unlike the job."""
    if not _is_like(job, now):
        return None
    return Gains(
        endless_loaders=_endless(job) / now - 1,
        worker_more=model.with_another(_usual(job.workers)).rate() / now - 1,
        twice_the_window=model.with_twice_the_window().rate() / now - 1,
    )


def _is_like(job: JobTimes, now: float) -> bool:
    """Return whether the loop's rate `now` is near the measured one, so that gains are to be believed."""
    return job.rate > 0 and abs(now / job.rate - 1) <= _LIKENESS


def _endless(job: JobTimes) -> float:
    """Return the rate of trainers that never wait for data."""
    steps_s = [max(trainer.times.step_s, _LEAST_S) for trainer in job.trainers]
    return len(steps_s) / max(steps_s) if job.in_step else sum(1 / step_s for step_s in steps_s)


# --- who is slow ---


def _usual(workers: Sequence[WorkerStation]) -> WorkerTimes:
    """Return the times of a usual worker: of two in the middle, those of the quicker one."""
    reads_s, builds_s = ([getattr(worker.times, name) for worker in workers] for name in ("read_s", "build_s"))
    return WorkerTimes(median_low(reads_s), median_low(builds_s))


def _slow_worker(job: JobTimes, model: _Model, now: float) -> str:
    """Return the name of the slowest worker if the job would gain from its being as quick as usual, otherwise ""."""
    usual = _usual(job.workers)
    slowest = max(job.workers, key=lambda worker: worker.times.build_s + worker.times.read_s / READ_AT_A_TIME)
    if slowest.times.build_s <= _SLOW * usual.build_s and slowest.times.read_s <= _SLOW_READS * usual.read_s:
        return ""
    if len(model.workers) < model.count:  # of so many workers a single one is no limit, however slow
        return ""
    return slowest.name if model.with_worker(slowest.times, usual).rate() / now - 1 > 2 * _NO_GAIN else ""


def _slow_rank(job: JobTimes) -> str:
    """Return the name of the trainer whose steps are far longer than the others', "" if none is known to be so."""
    if not _tells_ranks_apart(job):
        return ""
    steps_s = {
        trainer.name: trainer.times.step_s if trainer.computed_s is None else trainer.computed_s
        for trainer in job.trainers
    }
    slowest = max(steps_s, key=lambda name: steps_s[name])
    return slowest if steps_s[slowest] > _SLOW_STEP * median_low(steps_s.values()) else ""


def _tells_ranks_apart(job: JobTimes) -> bool:
    """Return whether a slow rank would show: a step in step with others takes as long as the slowest one's."""
    return not job.in_step or all(trainer.computed_s is not None for trainer in job.trainers)


def _is_held_up(job: JobTimes) -> bool:
    # What a quota holds up shows in both figures on some kernels, and only in the second on others.
    return sum(max(worker.held_up, worker.throttled) for worker in job.workers) > _FULL * len(job.workers)


def _busy(job: JobTimes, limit: str) -> float:
    """Return the share of the time in which a limiting station is busy at the measured rate; 0 if it is no station."""
    match limit:
        case "trainers" | "rank":
            return 1 - job.waited
        case "transforms" | "worker" | "host":
            capacity = sum(1 / max(worker.times.build_s, _LEAST_S) for worker in job.workers)
        case "reads":
            capacity = sum(READ_AT_A_TIME / max(worker.times.read_s, _LEAST_S) for worker in job.workers)
        case "wire":
            capacity = sum(1 / max(trainer.times.wire_s, _LEAST_S) for trainer in job.trainers)
        case _:
            return 0.0
    return min(1.0, job.rate / capacity)
