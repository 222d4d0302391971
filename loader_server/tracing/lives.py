"""The life of each batch, from the first want for it to the step that trained on it, joined from all stamps.

Rules: pure. A life belongs to one trainer, whose own clock all its times are of. The parts of a life follow each other
without a gap or an overlap, so they sum to the whole. A worker's stamps of other clocks may be off by the error of the
comparison; they are kept between the trainer's own stamps. Stamps that are missing make parts longer, never wrong, and
the life says which and why.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from loader_server.tracing.process_stamps import joined_clocks
from shared.tracing.ring import StampKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from loader_server.tracing.process_stamps import ClockOffset, ProcessStamps

__all__ = ["Life", "LifePart", "WantAsked", "lives_of"]

_AT_WORKER = (StampKind.RECEIVED, StampKind.BEGUN, StampKind.READ, StampKind.BUILT, StampKind.WRITTEN, StampKind.PUSHED)


@dataclass(slots=True)
class WantAsked:
    """One want for a batch: of which worker, and what is known of its answer."""

    time_ns: int
    attempt: int
    worker: int
    worker_name: str
    lending: int
    arrived_ns: int | None = None
    #: The worker's stamps by kind, in the trainer's time.
    times: dict[int, int] = field(default_factory=dict)
    #: By how much these may be wrong.
    error_ns: int = 0
    #: Why stamps of the worker are missing; empty if none are.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LifePart:
    """One part of a life; `waited_ns` is how much of it the consumer waited, and `place` where it happened.

    The place is "trainer", "worker" or "network".
    """

    name: str
    place: str
    begin_ns: int
    end_ns: int
    waited_ns: int = 0

    @property
    def ns(self) -> int:
        """Return how long it took."""
        return self.end_ns - self.begin_ns


@dataclass(slots=True)
class Life:
    """What one batch went through at one trainer; a time is None if its stamp is missing."""

    trainer: ProcessStamps
    stream: str
    epoch: int
    number: int
    asks: list[WantAsked]
    #: Which of the wants brought the batch; None if that is not known.
    answered: WantAsked | None = None
    arrived_ns: int | None = None
    offered_ns: int | None = None
    taken_ns: int | None = None
    trained_ns: int | None = None
    #: How long the consumer had waited when it took the batch.
    waited_ns: int = 0

    @property
    def parts(self) -> list[LifePart]:
        """Return the parts up to the moment when the batch was taken, or to the last stamp; they leave no gap."""
        marks = list(_marks(self))
        since_ns = self.taken_ns - self.waited_ns if self.taken_ns is not None else None
        if marks and self.waited_ns and since_ns is not None and since_ns < marks[0][0]:
            marks.insert(0, (since_ns, "", ""))
            marks[1] = (marks[1][0], "not asked for yet", "trainer")
        return [
            LifePart(name, place, before, after, _overlap(before, after, since_ns))
            for (before, _, _), (after, name, place) in pairwise(marks)
        ]

    @property
    def longest(self) -> LifePart | None:
        """Return the part in which the consumer waited longest; if it did not wait, the longest part but the last.

        The last is the time that the batch lay ready. None if there are no parts.
        """
        parts = self.parts
        if self.waited_ns:
            return max(parts, key=lambda part: (part.waited_ns, part.ns), default=None)
        return max((part for part in parts if part.name != READY), key=lambda part: part.ns, default=None)

    @property
    def missing(self) -> list[str]:
        """Return what is not known, and why, each in a few words; empty if everything is."""
        return list(_missing(self))


#: Taking a batch that is there takes less than this; it was not waited for.
_NOTICEABLE_NS = 10**5

#: The part in which a batch lies ready for its consumer.
READY = "ready, and not taken yet"


def _overlap(begin_ns: int, end_ns: int, since_ns: int | None) -> int:
    return 0 if since_ns is None else max(0, end_ns - max(begin_ns, since_ns))


def _marks(life: Life) -> Iterable[tuple[int, str, str]]:
    """Yield the moments of a life in order, each with the name and the place of the part that it ends."""
    if life.answered is None and not life.asks:
        known = [time for time in (life.arrived_ns, life.offered_ns) if time is not None]
        if known:
            yield known[0], "", ""
    for before, ask in pairwise([None, *life.asks]):
        assert ask is not None
        if before is not None and life.answered is not None and before.time_ns >= life.answered.time_ns:
            break  # asked a second time, but the first answer came
        name = f"no answer from {before.worker_name}" if before is not None else ""
        yield ask.time_ns, name, "worker"
    if life.answered is not None:
        yield from _at_worker(life.answered, life.answered.worker_name, life.arrived_ns)
    if life.offered_ns is not None and (life.asks or life.arrived_ns is not None):
        yield life.offered_ns, "being checked and put on offer", "trainer"
    if life.taken_ns is not None:
        yield life.taken_ns, READY, "trainer"


def _at_worker(ask: WantAsked, worker: str, arrived_ns: int | None) -> Iterable[tuple[int, str, str]]:
    names = {
        StampKind.RECEIVED: (f"on the way to {worker}", "network"),
        StampKind.BEGUN: (f"waiting for its turn at {worker}", "worker"),
        StampKind.READ: (f"its samples being read by {worker}", "worker"),
        StampKind.BUILT: (f"being built by {worker}", "worker"),
        StampKind.WRITTEN: (f"being encoded by {worker}", "worker"),
        StampKind.PUSHED: (f"built, and not sent yet by {worker}", "worker"),
    }
    last_ns = ask.time_ns
    end_ns = arrived_ns if arrived_ns is not None else max(ask.times.values(), default=last_ns)
    for kind, time_ns in sorted(ask.times.items(), key=lambda pair: (pair[1], pair[0])):
        if kind in names:
            last_ns = min(max(time_ns, last_ns), end_ns)
            yield last_ns, *names[kind]
    if arrived_ns is not None:
        is_known = StampKind.PUSHED in ask.times
        yield arrived_ns, *((f"on the way from {worker}", "network") if is_known else (f"at {worker}", "worker"))


def _missing(life: Life) -> Iterable[str]:
    trainer = life.trainer
    if not life.asks:
        yield "when it was asked for: stamps of the trainer are overwritten"
    for ask in life.asks:
        if ask.problem:
            yield f"stamps of {ask.worker_name}: {ask.problem}"
    if life.taken_ns is None:
        yield "it has not been taken yet" if life.offered_ns is not None else "it has not arrived yet"
    elif life.trained_ns is None:
        yield "whether it was trained on: no step has counted it yet"
    if trainer.problem:
        yield f"stamps of {trainer.name}: {trainer.problem}"


# --- joining ---


def lives_of(processes: Sequence[ProcessStamps]) -> list[Life]:
    """Return the lives of all batches in the stamps, by trainer, and by the time of the first stamp of each."""
    workers = {stamps.process.incarnation: stamps for stamps in processes if not stamps.is_trainer}
    lives: list[Life] = []
    clocks: dict[str, dict[str, ClockOffset]] = {}
    at_workers = {incarnation: _by_lending(stamps) for incarnation, stamps in workers.items()}
    for trainer in processes:
        if not trainer.is_trainer:
            continue
        if trainer.clock not in clocks:
            clocks[trainer.clock] = joined_clocks(processes, trainer.clock)
        of_trainer = _of_trainer(trainer)
        for life in of_trainer:
            for ask in life.asks:
                _join(ask, trainer.process.incarnation, workers, at_workers, clocks[trainer.clock])
        lives += of_trainer
    return lives


_ByLending = dict[tuple[int, int], dict[int, int]]


def _by_lending(stamps: ProcessStamps) -> _ByLending:
    """Return a worker's stamps by trainer and lending: the first of each kind, but the last of reading."""
    found: _ByLending = defaultdict(dict)
    rows = stamps.rows()
    for kind, time_ns, peer, lending in zip(
        *(rows[name].tolist() for name in ("kind", "time_ns", "peer", "lending")), strict=True
    ):
        if kind in _AT_WORKER or kind == StampKind.GIVEN_UP:
            times = found[peer, lending]
            if kind == StampKind.READ or kind not in times:
                times[kind] = time_ns
    return found


def _join(
    ask: WantAsked,
    trainer: int,
    workers: Mapping[int, ProcessStamps],
    at_workers: Mapping[int, _ByLending],
    clocks: Mapping[str, ClockOffset],
) -> None:
    """Add the worker's stamps to a want, in the trainer's time, or the reason why there are none."""
    worker = workers.get(ask.worker)
    if worker is None:
        ask.problem = "it is gone, or was not asked"
        return
    ask.worker_name = worker.name
    offset = clocks.get(worker.clock)
    times = at_workers[ask.worker].get((trainer, ask.lending))
    if worker.problem:
        ask.problem = worker.problem
    elif times is None:
        is_overwritten = offset is not None and worker.oldest_ns + offset.offset_ns > ask.time_ns
        ask.problem = "overwritten" if is_overwritten else "the want did not reach it"
    elif offset is None:
        ask.problem = "its clock could not be compared: no Ping is kept"
    else:
        ask.times = {kind: time_ns + offset.offset_ns for kind, time_ns in times.items()}
        ask.error_ns = offset.error_ns


def _of_trainer(trainer: ProcessStamps) -> list[Life]:
    """Return the lives in one trainer's stamps, without those of workers."""
    lives: list[Life] = []
    pending: dict[tuple[int, int], Life] = {}
    taken: dict[tuple[int, int], Life] = {}
    #: Lives that were taken and not trained on, by epoch.
    untrained: dict[int, list[Life]] = defaultdict(list)
    rows = trainer.rows()
    columns = ("kind", "time_ns", "number", "epoch", "attempt", "peer", "lending", "extra")
    for kind, time_ns, number, epoch, attempt, peer, lending, extra in zip(
        *(rows[name].tolist() for name in columns), strict=True
    ):
        if kind == StampKind.TRAINED:
            _train(untrained, epoch, number, extra, time_ns)
            continue
        if kind not in (StampKind.ASKED, StampKind.ARRIVED, StampKind.OFFERED, StampKind.TAKEN):
            continue
        life = pending.get((epoch, number))
        former = taken.get((epoch, number))
        if kind == StampKind.ARRIVED and life is None and former is not None:
            _note_late_answer(former, lending, time_ns)
            continue
        if life is None:
            life = pending[epoch, number] = Life(trainer, trainer.process.stream, epoch, number, [])
            lives.append(life)
        if kind == StampKind.ASKED:
            life.asks.append(WantAsked(time_ns, attempt, peer, "a worker that is gone", lending))
        elif kind == StampKind.ARRIVED:
            _arrive(life, _ask_of(life, None, lending), time_ns)
        elif kind == StampKind.OFFERED:
            _offer(life, _ask_of(life, former, lending), time_ns)
        else:
            life.taken_ns, life.waited_ns = time_ns, extra if extra >= _NOTICEABLE_NS else 0
            taken[epoch, number] = pending.pop((epoch, number))
            untrained[epoch].append(life)
    return lives


def _arrive(life: Life, ask: WantAsked | None, time_ns: int) -> None:
    """Note an answer; until one of them is put on offer, the first of a known want counts."""
    if ask is not None and ask.arrived_ns is None:
        ask.arrived_ns = time_ns
    if life.answered is None:
        life.answered, life.arrived_ns = ask, time_ns


def _note_late_answer(former: Life, lending: int, time_ns: int) -> None:
    """Note an answer that came when another had been taken; in a stream that is read again it may count later."""
    ask = _ask_of(former, None, lending)
    if ask is not None and ask.arrived_ns is None:
        ask.arrived_ns = time_ns


def _offer(life: Life, ask: WantAsked | None, time_ns: int) -> None:
    """Note which answer was put on offer: only now it is certain which of several wants brought the batch."""
    life.offered_ns = time_ns
    if ask is not None:
        life.answered, life.arrived_ns = ask, ask.arrived_ns


def _ask_of(life: Life, former: Life | None, lending: int) -> WantAsked | None:
    """Return the want of this lending, None if there is none; one of the `former` life is moved into this one."""
    ask = next((ask for ask in life.asks if ask.lending == lending), None)
    if ask is None and former is not None:
        ask = next((ask for ask in former.asks if ask.lending == lending), None)
        if ask is not None:
            former.asks.remove(ask)
            life.asks.append(ask)
    return ask


def _train(untrained: dict[int, list[Life]], epoch: int, number: int, stop: int, time_ns: int) -> None:
    left = []
    for life in untrained[epoch]:
        if number <= life.number < stop:
            life.trained_ns = time_ns
        else:
            left.append(life)
    untrained[epoch] = left
