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
class _Told:
    peer: bytes
    ranks: range
    said: m.Results

    def overlaps(self, other: _Told) -> bool:
        """Return whether both have a rank in common."""
        return self.ranks.start < other.ranks.stop and other.ranks.start < self.ranks.stop


_Means = tuple[tuple[str, float | None], ...]
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
        self._open: dict[_Key, dict[int, _Told]] = {}
        #: In queue mode: the trainers whose parts are in the journal, and the aggregate that these belong to.
        self._kept_parts: set[int] = set()
        self._kept_key: _Key | None = None

    def recover(self, fact: ResultsFact) -> None:
        """Apply a fact from the journal."""
        if isinstance(fact, ResultsKept):
            self._set(fact)
            for part in fact.parts:
                self._recover_part(_part_of_all(fact, *part))
        elif isinstance(fact, ResultsPart):
            self._kept_key = self._recover_part(fact)
            self._kept_parts.add(fact.incarnation)

    def _recover_part(self, fact: ResultsPart) -> _Key:
        told = _recovered(fact)
        key = _key_of(told.said, None)
        self._parts(key)[fact.incarnation] = told
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

        Nothing is added to earlier results any more, and their epochs may come again.
        """
        facts: list[ResultsFact] = []
        if self.latest is not None:
            told = dict.fromkeys((*self.latest.told, *self._told_with(self.latest)))
            self.latest = replace(self.latest, told=tuple(told), parts=(), is_left=True)
            facts = [self.latest, *_left(self.latest.stream, self._kept_parts)]
        self._open.clear()
        self._kept_parts, self._kept_key = set(), None
        return facts

    def _told_with(self, kept: ResultsKept) -> list[tuple[int, int]]:
        """Return whose parts are in these results, in queue mode."""
        parts = self._open.get((kept.epoch, kept.step, None, False, False, 0, ""), {})
        return [(one.said.incarnation, one.said.serial) for one in parts.values()]

    def take(self, said: m.Results, peer: bytes, ranks: range, world: int | None) -> list[Instruction]:
        """Add a trainer's part, which may be a repeated one; return the answers and what to keep.

        Until all ranks have reported, only the sender gets an answer (not whole); then everybody does. In queue mode
        `world` is None, and each report is answered at once.
        """
        for kept in (self.latest, *self._agreed.values()):
            if kept is not None and self._is_in(kept, said):
                return [Send(peer, self._answer(kept, said.serial, parts=len(kept.told)))]
        key, mine = _key_of(said, world), _Told(peer, ranks, said)
        if world is None and said.evaluation:
            return self._keep(_together([mine]), hearers=[mine])
        parts = self._parts(key)
        if world is None:
            return self._add_in_queue(key, mine, parts)
        # A rank that reports again has trained again (after a restart, say), so its earlier part is void, whoever
        # reported it.
        for other in [one for one, part in parts.items() if part.overlaps(mine)]:
            del parts[other]
        parts[said.incarnation] = mine
        if sum(len(part.ranks) for part in parts.values()) < world:
            return [Send(peer, m.Aggregate(serial=said.serial, whole=False, rows=0, values=()))]
        del self._open[key]
        return self._keep(self._after_latest(_together(parts.values())), hearers=parts.values())

    def _is_in(self, kept: ResultsKept, said: m.Results) -> bool:
        """Return whether this report is already part of the aggregate."""
        if (said.incarnation, said.serial) in kept.told:
            return True
        # In queue mode each trainer's last serial is only in its own part, not in the aggregate.
        before = self._open.get(_key_of(said, None), {}).get(said.incarnation)
        is_same = (said.epoch, said.step, said.aside, said.part) == (kept.epoch, kept.step, kept.aside, kept.part)
        is_same = is_same and (not said.aside or said.evaluation == kept.evaluation)
        return is_same and before is not None and before.said.serial == said.serial

    def _add_in_queue(self, key: _Key, mine: _Told, parts: dict[int, _Told]) -> list[Instruction]:
        said = mine.said
        if len(parts) < _MOST_PARTS or said.incarnation in parts:
            parts[said.incarnation] = mine
        whole = _together(parts.values())
        if self._is_late(said):
            return [Send(mine.peer, self._answer(whole, said.serial, parts=len(parts)))]
        has_part = said.incarnation in parts and not said.ended and not said.aside
        changed = self._changed_parts(key, mine, parts) if has_part else []
        whole = replace(self._after_latest(whole), told=((said.incarnation, said.serial),))
        return [*map(Keep, changed), *self._keep(whole, hearers=[mine], parts=len(parts))]

    def _changed_parts(self, key: _Key, mine: _Told, parts: dict[int, _Told]) -> list[ResultsFact]:
        """Return the facts that make the journal hold these parts: for the same aggregate, only the new part."""
        # A report writes one row, and not one for each trainer.
        if key == self._kept_key:
            self._kept_parts.add(mine.said.incarnation)
            return [_part_of(mine.said)]
        left = _left(mine.said.stream, self._kept_parts - parts.keys())
        self._kept_key, self._kept_parts = key, set(parts)
        return [*left, *(_part_of(one.said) for one in parts.values())]

    def _is_late(self, said: m.Results) -> bool:
        if self.latest is None or self.latest.is_left or self._evaluation:
            return False
        return (said.epoch, said.step) < (self.latest.epoch, self.latest.step)

    def _keep(self, kept: ResultsKept, *, hearers: Collection[_Told], parts: int = 0) -> list[Instruction]:
        self._set(kept)
        left = [ResultsLeft(kept.stream, name) for name in list(self._evaluations)[:-_MOST_EVALUATIONS]]
        for fact in left:
            del self._evaluations[fact.evaluation]
        for name in list(self._agreed)[:-_MOST_EVALUATIONS]:
            left.append(ResultsLeft(kept.stream, name, aside=True))
            del self._agreed[name]
        return [
            *map(Keep, left),
            Keep(kept),
            *(Send(one.peer, self._answer(kept, one.said.serial, parts=parts or len(hearers))) for one in hearers),
        ]

    def _answer(self, kept: ResultsKept, serial: int, *, parts: int) -> m.Aggregate:
        return m.Aggregate(
            serial=serial, whole=True, rows=kept.rows, values=kept.values, parts=parts, trainers=self.trainers,
            states=base64.b64decode(kept.states),
        )  # fmt: skip

    def _after_latest(self, one: ResultsKept) -> ResultsKept:
        """Return the aggregate, with the last values and reporters if it is the end of a run without values."""
        if one.aside or one.values or self.latest is None:
            return one
        last = self.latest
        return replace(one, rows=last.rows, values=last.values, told=tuple(dict.fromkeys((*last.told, *one.told))))

    def _parts(self, key: _Key) -> dict[int, _Told]:
        if key not in self._open and len(self._open) >= _MOST_OPEN:
            del self._open[next(iter(self._open))]
        return self._open.setdefault(key, {})

    def report(self) -> dict[str, Any] | None:
        """Return the latest results, for people; None if there are none yet."""
        return _report(self.latest) if self.latest is not None else None

    def report_of_evaluations(self) -> list[dict[str, Any]]:
        """Return the newest results of each named evaluation, the newest last."""
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
    return [ResultsPartLeft(stream, one) for one in sorted(incarnations)]


def _part_of(said: m.Results) -> ResultsPart:
    return ResultsPart(said.stream, said.incarnation, said.serial, said.epoch, said.step, said.rows, said.values)


def _part_of_all(kept: ResultsKept, incarnation: int, serial: int, rows: int, values: _Means) -> ResultsPart:
    return ResultsPart(kept.stream, incarnation, serial, kept.epoch, kept.step, rows, values)


def _recovered(fact: ResultsPart) -> _Told:
    said = m.Results(
        stream=fact.stream, incarnation=fact.incarnation, serial=fact.serial, epoch=fact.epoch, step=fact.step,
        rows=fact.rows, values=fact.values, ended="", aside=False,
    )  # fmt: skip
    return _Told(b"", range(0), said)


def _key_of(said: m.Results, world: int | None) -> _Key:
    return said.epoch, said.step, world, bool(said.ended), said.aside, said.part, said.evaluation if said.aside else ""


def _together(parts: Collection[_Told]) -> ResultsKept:
    """Combine all parts, in rank order, so that equal parts give equal sums.

    Floating-point sums depend on the order, and reports arrive in any.
    """
    parts = sorted(parts, key=lambda part: (part.ranks.start, part.said.incarnation))
    told = [part.said for part in parts]
    means: dict[str, list[tuple[int, float | None]]] = defaultdict(list)
    for one in told:
        for name, value in one.values:
            means[name].append((one.rows, value))
    first = told[0]
    return ResultsKept(
        first.stream,
        first.epoch,
        first.step,
        sum(one.rows for one in told),
        tuple((name, _mean(of)) for name, of in means.items())[:_MOST_VALUES],
        tuple((one.incarnation, one.serial) for one in told),
        next((one.ended for one in told if one.ended), ""),
        first.aside,
        evaluation=first.evaluation,
        part=first.part,
        states=base64.b64encode(_summed([one.states for one in told])).decode(),
    )


def _summed(states: list[bytes]) -> bytes:
    """Return the sum of arrays of float64; empty if they are not alike."""
    if not states[0] or len({len(one) for one in states}) > 1 or len(states[0]) % 8:
        return b""
    summed: bytes = np.sum([np.frombuffer(one, "<f8") for one in states], axis=0, dtype="<f8").tobytes()
    return summed


def _mean(of: list[tuple[int, float | None]]) -> float | None:
    """Return the mean, weighted by rows; None without rows, if a part with rows has no number, or on overflow."""
    total, rows = 0.0, 0
    for weight, value in of:
        if weight and value is None:
            return None
        total, rows = total + weight * (value or 0.0), rows + weight
    return total / rows if rows and math.isfinite(total) else None
