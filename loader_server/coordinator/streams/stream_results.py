"""The results of training and evaluation of a stream: means over all ranks, each weighted by its rows.

Rules: pure. Ranks in lockstep report for the same epoch and step, and the aggregate is whole once every rank of the
world has reported. All get the same numbers, even those that ask again after a restart, because a whole aggregate is
kept before it is sent. A rank that reports again has trained again, and begins another aggregate. In queue mode there
is no world: the aggregate grows with each report. Its parts are kept, each as a fact of its own, so that a repeated
report replaces its older self; in training, a slow trainer's older epoch does not replace a newer one. The end of a run
is reported with the epoch and step of its last results, and stands beside them. Results of a named evaluation are never
added to those of another: in queue mode each report covers all of its batches, so it replaces the one before. Ranks
that evaluate together report metric states, which the aggregate sums; they name their run, because another run may
evaluate on the same stream at the same step.
"""

from __future__ import annotations

import base64
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.coordinator.events import (
    Instruction,
    Keep,
    ResultsFact,
    ResultsKept,
    ResultsLeft,
    ResultsPart,
    ResultsPartLeft,
    Send,
)
from loader_server.coordinator.streams.succession import overlap
from shared.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["StreamResults"]

#: Limit of incomplete aggregates (epochs and steps that lack some ranks' results); ranks cannot be this far apart.
_MOST_OPEN = 16
#: Limit of trainers that report on one epoch in queue mode.
_MOST_PARTS = 4096
#: Limit of values in a message.
_MOST_VALUES = 256
#: Limit of evaluations of a stream that are shown and kept, the newest.
_MOST_EVALUATIONS = 8


@dataclass(frozen=True, slots=True)
class _Report:
    """A trainer's report, with its connection and ranks; one from the journal has neither."""

    results: m.Results
    peer: bytes = b""
    ranks: range = range(0)


#: Key of an aggregate: epoch, step, world (None in queue mode), whether it is the end of a run, whether it is an
#: agreement of ranks, the piece of their metric states, and the run that agreed.
_Key = tuple[int, int, int | None, bool, bool, int, str]


class StreamResults:
    """The latest whole aggregate of one stream, and the incomplete ones."""

    def __init__(self, *, evaluation: bool = False) -> None:
        self.latest: ResultsKept | None = None
        #: Number of attached trainers.
        self.trainers = 0
        #: The last agreement of each run's ranks, the newest last.
        self._agreed: dict[str, ResultsKept] = {}
        #: The newest results of each named evaluation, the newest last.
        self._evaluations: dict[str, ResultsKept] = {}
        self._evaluation = evaluation
        #: By key and incarnation: the reports of incomplete aggregates, and in queue mode of the latest ones.
        self._open: dict[_Key, dict[int, _Report]] = {}
        #: In queue mode: the trainers whose parts are in the journal, and the aggregate that these belong to.
        self._kept_parts: set[int] = set()
        self._kept_key: _Key | None = None

    def recover(self, fact: ResultsFact) -> None:
        """Apply a fact from the journal: results, or a trainer's part of them; other facts change nothing."""
        if isinstance(fact, ResultsKept):
            self._set(fact)
            for incarnation, serial, rows, values in fact.parts:
                self._recover_part(ResultsPart(fact.stream, incarnation, serial, fact.epoch, fact.step, rows, values))
        elif isinstance(fact, ResultsPart):
            self._kept_key = self._recover_part(fact)
            self._kept_parts.add(fact.incarnation)

    def _recover_part(self, fact: ResultsPart) -> _Key:
        """Add a part from the journal to its aggregate, whose key is returned."""
        results = m.Results(
            stream=fact.stream,
            incarnation=fact.incarnation,
            serial=fact.serial,
            epoch=fact.epoch,
            step=fact.step,
            rows=fact.rows,
            values=fact.values,
            ended="",
            aside=False,
        )
        key = _key_of(results, None)
        self._reports(key)[fact.incarnation] = _Report(results)
        return key

    def _set(self, fact: ResultsKept) -> None:
        if fact.aside:
            self._agreed.pop(fact.evaluation, None)
            self._agreed[fact.evaluation] = fact
            return
        self.latest = fact
        if fact.evaluation:
            self._evaluations.pop(fact.evaluation, None)
            self._evaluations[fact.evaluation] = fact

    def begin_anew(self) -> list[ResultsFact]:
        """Forget open parts, as training goes back to a checkpoint; return what to keep of this in queue mode.

        Return an empty list if there are no results yet. Nothing is added to earlier results any more, and their epochs
        may come again.
        """
        facts: list[ResultsFact] = []
        if self.latest is not None:
            # The reports in it stay known: one that is repeated, because its answer was lost, must not count as new.
            reports = dict.fromkeys((*self.latest.reports, *self._reports_in(self.latest)))
            self.latest = replace(self.latest, reports=tuple(reports), parts=(), is_left=True)
            facts = [self.latest, *_left(self.latest.stream, self._kept_parts)]
        self._open.clear()
        self._kept_parts, self._kept_key = set(), None
        return facts

    def _reports_in(self, kept: ResultsKept) -> list[tuple[int, int]]:
        """Return the reports in these results, in queue mode, by incarnation and serial."""
        reports = self._open.get((kept.epoch, kept.step, None, False, False, 0, ""), {})
        return [(report.results.incarnation, report.results.serial) for report in reports.values()]

    def take(self, results: m.Results, peer: bytes, ranks: range, world: int | None) -> list[Instruction]:
        """Add a trainer's part, which may be a repeated one; return the answers and what to keep.

        A report that is in the latest aggregate or agreement already is answered with that again; a rank that reports
        again otherwise replaces its earlier part. Until all ranks have reported, only the sender gets an answer (not
        whole); then everybody does. In queue mode `world` is None, and each report is answered at once: with all parts
        of its epoch and step (of at most 4096 trainers), which is not kept if newer results are there, or with itself
        alone if it is of a named evaluation.
        """
        # A rank that was restarted asks again, although the others have had their answer and gone on.
        for kept in (self.latest, *self._agreed.values()):
            if kept is not None and self._is_in(kept, results):
                return [Send(peer, self._answer(kept, results.serial, parts=len(kept.reports)))]
        key, report = _key_of(results, world), _Report(results, peer, ranks)
        if world is None and results.evaluation:
            return self._keep(_together([report]), hearers=[report])
        reports = self._reports(key)
        if world is None:
            return self._add_in_queue(key, report, reports)
        # A rank that reports again has trained again (after a restart, say), so its earlier part is void, although
        # another incarnation may have reported it.
        for incarnation in [known for known, other in reports.items() if overlap(other.ranks, ranks)]:
            del reports[incarnation]
        reports[results.incarnation] = report
        if sum(len(other.ranks) for other in reports.values()) < world:
            return [Send(peer, m.Aggregate(serial=results.serial, whole=False, rows=0, values=()))]
        del self._open[key]
        return self._keep(self._after_latest(_together(reports.values())), hearers=reports.values())

    def _is_in(self, kept: ResultsKept, results: m.Results) -> bool:
        """Return whether this report is in the aggregate already, in queue mode also as the trainer's own last part."""
        if (results.incarnation, results.serial) in kept.reports:
            return True
        # In queue mode each trainer's last serial is only in its own part, not in the aggregate.
        before = self._open.get(_key_of(results, None), {}).get(results.incarnation)
        # Two runs may agree on something at the same step: their names tell them apart.
        run = results.evaluation if results.aside else kept.evaluation
        place = (results.epoch, results.step, results.aside, results.part, run)
        is_same = place == (kept.epoch, kept.step, kept.aside, kept.part, kept.evaluation)
        return is_same and before is not None and before.results.serial == results.serial

    def _add_in_queue(self, key: _Key, report: _Report, reports: dict[int, _Report]) -> list[Instruction]:
        results = report.results
        if len(reports) < _MOST_PARTS or results.incarnation in reports:
            reports[results.incarnation] = report
        aggregate = _together(reports.values())
        # A slow trainer's older epoch gets its answer, but does not replace a newer one.
        if self._is_late(results):
            return [Send(report.peer, self._answer(aggregate, results.serial, parts=len(reports)))]
        has_part = results.incarnation in reports and not results.ended and not results.aside
        changed = self._changed_parts(key, report, reports) if has_part else []
        aggregate = replace(self._after_latest(aggregate), reports=((results.incarnation, results.serial),))
        return [*map(Keep, changed), *self._keep(aggregate, hearers=[report], parts=len(reports))]

    def _changed_parts(self, key: _Key, report: _Report, reports: dict[int, _Report]) -> list[ResultsFact]:
        """Return the facts that make the journal hold these parts: for the same aggregate, only the new part.

        For another aggregate these are all of its parts, and what undoes the parts of trainers that have none in it.
        """
        # A report writes one row, and not one for each trainer.
        if key == self._kept_key:
            self._kept_parts.add(report.results.incarnation)
            return [_part_of(report.results)]
        left = _left(report.results.stream, self._kept_parts - reports.keys())
        self._kept_key, self._kept_parts = key, set(reports)
        return [*left, *(_part_of(other.results) for other in reports.values())]

    def _is_late(self, results: m.Results) -> bool:
        if self.latest is None or self.latest.is_left or self._evaluation:
            return False
        return (results.epoch, results.step) < (self.latest.epoch, self.latest.step)

    def _keep(self, kept: ResultsKept, *, hearers: Collection[_Report], parts: int = 0) -> list[Instruction]:
        self._set(kept)
        # Each validation of a run may have a name of its own, so what is kept has to be bounded.
        left = [ResultsLeft(kept.stream, name) for name in list(self._evaluations)[:-_MOST_EVALUATIONS]]
        for fact in left:
            del self._evaluations[fact.evaluation]
        for name in list(self._agreed)[:-_MOST_EVALUATIONS]:
            left.append(ResultsLeft(kept.stream, name, aside=True))
            del self._agreed[name]
        # Kept before it is sent: a rank that asks again after a restart must get the same numbers as the others.
        return [
            *map(Keep, left),
            Keep(kept),
            *(
                Send(report.peer, self._answer(kept, report.results.serial, parts=parts or len(hearers)))
                for report in hearers
            ),
        ]

    def _answer(self, kept: ResultsKept, serial: int, *, parts: int) -> m.Aggregate:
        return m.Aggregate(
            serial=serial, whole=True, rows=kept.rows, values=kept.values, parts=parts, trainers=self.trainers,
            states=base64.b64decode(kept.states),
        )  # fmt: skip

    def _after_latest(self, kept: ResultsKept) -> ResultsKept:
        """Return the aggregate; if it has no values, as at the end of a run, then with those of the latest results.

        It also gets their rows then, and their reports before its own. An agreement of ranks is returned as it is.
        """
        latest = self.latest
        if kept.aside or kept.values or latest is None:
            return kept
        return replace(
            kept,
            rows=latest.rows,
            values=latest.values,
            reports=tuple(dict.fromkeys((*latest.reports, *kept.reports))),
        )

    def _reports(self, key: _Key) -> dict[int, _Report]:
        """Return the reports of an aggregate, begun with this call if there are none; the oldest may make room."""
        if key not in self._open and len(self._open) >= _MOST_OPEN:
            del self._open[next(iter(self._open))]
        return self._open.setdefault(key, {})

    def report(self) -> dict[str, Any] | None:
        """Return epoch, step, rows, values and end of the latest results, for people; None if there are none yet."""
        return _report(self.latest) if self.latest is not None else None

    def report_of_evaluations(self) -> list[dict[str, Any]]:
        """Return the newest results of each named evaluation, the newest last; only the last 8 names are kept.

        Empty if there were none.
        """
        return [{"evaluation": name} | _report(kept) for name, kept in self._evaluations.items()]


def _report(kept: ResultsKept) -> dict[str, Any]:
    return {
        "epoch": kept.epoch,
        "step": kept.step,
        "rows": kept.rows,
        "values": dict(kept.values),
        "ended": kept.ended,
    }


def _left(stream: str, incarnations: Collection[int]) -> list[ResultsFact]:
    return [ResultsPartLeft(stream, incarnation) for incarnation in sorted(incarnations)]


def _part_of(results: m.Results) -> ResultsPart:
    return ResultsPart(
        results.stream,
        results.incarnation,
        results.serial,
        results.epoch,
        results.step,
        results.rows,
        results.values,
    )


def _key_of(results: m.Results, world: int | None) -> _Key:
    run = results.evaluation if results.aside else ""
    return results.epoch, results.step, world, bool(results.ended), results.aside, results.part, run


def _together(reports: Collection[_Report]) -> ResultsKept:
    """Combine all parts, in rank order, so that equal parts give equal sums: means weighted by rows, and summed states.

    Floating-point sums depend on the order, and reports arrive in any. At most 256 values are kept.
    """
    parts = [
        report.results
        for report in sorted(reports, key=lambda report: (report.ranks.start, report.results.incarnation))
    ]
    values: dict[str, list[tuple[int, float | None]]] = defaultdict(list)
    for part in parts:
        for name, value in part.values:
            values[name].append((part.rows, value))
    first = parts[0]
    return ResultsKept(
        first.stream,
        first.epoch,
        first.step,
        rows=sum(part.rows for part in parts),
        values=tuple((name, _mean(weighted)) for name, weighted in values.items())[:_MOST_VALUES],
        reports=tuple((part.incarnation, part.serial) for part in parts),
        ended=next((part.ended for part in parts if part.ended), ""),
        aside=first.aside,
        evaluation=first.evaluation,
        part=first.part,
        states=base64.b64encode(_summed([part.states for part in parts])).decode(),
    )


def _summed(states: list[bytes]) -> bytes:
    """Return the sum of arrays of float64; empty if the first is empty, or lengths differ or are no multiple of 8."""
    if not states[0] or len(set(map(len, states))) > 1 or len(states[0]) % 8:
        return b""
    summed: bytes = np.sum([np.frombuffer(array, "<f8") for array in states], axis=0, dtype="<f8").tobytes()
    return summed


def _mean(weighted: list[tuple[int, float | None]]) -> float | None:
    """Return the mean, weighted by rows; None without rows, if a part with rows has no number, or if not finite."""
    total, rows = 0.0, 0
    for weight, value in weighted:
        if weight and value is None:
            return None
        total, rows = total + weight * (value or 0.0), rows + weight
    return total / rows if rows and math.isfinite(total) else None
