"""What training and evaluation of a stream came to: means over all ranks, each weighted by its rows.

Rules: pure. Ranks in lockstep report for the same epoch and step, and the aggregate is whole once every rank of the
world has reported. All get the same numbers, even those that ask again after a restart, because a whole aggregate is
kept before it is told. A rank that reports again has trained again, and begins another aggregate. In queue mode there
is no world: the aggregate grows with each report, and its parts are kept, so that one that is told anew replaces its
older self; in training, a slow trainer's older epoch does not replace a newer one. The end of a run is reported with
the epoch and step of its last results, and stands beside them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loader_server.coordinator.events import Instruction, Keep, ResultsKept, Send
from shared.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["StreamResults"]

#: The most epochs and steps with results of some ranks still missing; ranks cannot be this far apart.
_MOST_OPEN = 16
#: The most trainers that may report on one epoch in queue mode.
_MOST_PARTS = 4096
#: What a message carries.
_MOST_VALUES = 256


@dataclass(frozen=True, slots=True)
class _Told:
    peer: bytes
    ranks: range
    said: m.Results

    def overlaps(self, other: _Told) -> bool:
        """Whether they have a rank in common."""
        return self.ranks.start < other.ranks.stop and other.ranks.start < self.ranks.stop


_Means = tuple[tuple[str, float | None], ...]
#: Incarnation, serial, rows and means of a trainer's part.
_Part = tuple[int, int, int, _Means]
#: Epoch, step, the world (None in queue mode), and whether it is the end of a run, or what ranks agree on.
_Key = tuple[int, int, int | None, bool, bool]


class StreamResults:
    """The latest whole aggregate of one stream, and those that are awaited."""

    def __init__(self, *, evaluation: bool = False) -> None:
        self.latest: ResultsKept | None = None
        #: What ranks last agreed on.
        self._agreed: ResultsKept | None = None
        self._evaluation = evaluation
        self._open: dict[_Key, dict[int, _Told]] = {}

    def recover(self, fact: ResultsKept) -> None:
        """Take in a fact from the journal."""
        self._set(fact)
        if not fact.aside:
            self._open.clear()
        if fact.parts:
            parts = [_recovered(fact, *part) for part in fact.parts]
            self._open[_key_of(parts[0].said, None)] = {one.said.incarnation: one for one in parts}

    def _set(self, fact: ResultsKept) -> None:
        if fact.aside:
            self._agreed = fact
        else:
            self.latest = fact

    def begin_anew(self) -> ResultsKept | None:
        """Training goes back to a checkpoint: nothing is added to earlier results, and epochs come again; what in
        queue mode is to be kept of this.
        """
        self._open.clear()
        if self.latest is not None:
            self.latest = replace(self.latest, parts=(), is_left=True)
        return self.latest

    def take(self, said: m.Results, peer: bytes, ranks: range, world: int | None) -> list[Instruction]:
        """Take in a trainer's part, which may be repeated; returns the answers to it, or to all, and what to keep. In
        queue mode there is no `world`.
        """
        for kept in (self.latest, self._agreed):
            if kept is not None and (said.incarnation, said.serial) in kept.told:
                return [Send(peer, _answer(kept, said.serial))]
        key, mine = _key_of(said, world), _Told(peer, ranks, said)
        parts = self._parts(key)
        if world is None:
            return self._add_in_queue(mine, parts)
        for other in [one for one, part in parts.items() if part.overlaps(mine)]:
            del parts[other]
        parts[said.incarnation] = mine
        if sum(len(part.ranks) for part in parts.values()) < world:
            return [Send(peer, m.Aggregate(serial=said.serial, whole=False, rows=0, values=()))]
        del self._open[key]
        return self._keep(parts.values(), hearers=parts.values())

    def _add_in_queue(self, mine: _Told, parts: dict[int, _Told]) -> list[Instruction]:
        if len(parts) < _MOST_PARTS:
            parts[mine.said.incarnation] = mine
        if self._is_late(mine.said):
            return [Send(mine.peer, _answer(_together(parts.values()), mine.said.serial))]
        return self._keep(
            parts.values(), hearers=[mine], kept_parts=tuple(_part_of(one.said) for one in parts.values())
        )

    def _is_late(self, said: m.Results) -> bool:
        if self.latest is None or self.latest.is_left or self._evaluation:
            return False
        return (said.epoch, said.step) < (self.latest.epoch, self.latest.step)

    def _keep(
        self, parts: Collection[_Told], *, hearers: Collection[_Told], kept_parts: Collection[_Part] = ()
    ) -> list[Instruction]:
        kept = replace(_together(parts), parts=tuple(kept_parts))
        if not kept.aside:
            kept = self._after_latest(kept)
        self._set(kept)
        return [Keep(kept), *(Send(one.peer, _answer(kept, one.said.serial)) for one in hearers)]

    def _after_latest(self, one: ResultsKept) -> ResultsKept:
        """The end of a run has no values: the last values stand, and so do their reporters."""
        if one.values or self.latest is None:
            return one
        last = self.latest
        told = tuple(dict.fromkeys((*last.told, *one.told)))
        parts = last.parts if (last.epoch, last.step) == (one.epoch, one.step) else ()
        return replace(one, rows=last.rows, values=last.values, told=told, parts=parts)

    def _parts(self, key: _Key) -> dict[int, _Told]:
        if key not in self._open and len(self._open) >= _MOST_OPEN:
            del self._open[next(iter(self._open))]
        return self._open.setdefault(key, {})

    def report(self) -> dict[str, Any] | None:
        """The latest results, for people; None if there are none yet."""
        latest = self.latest
        if latest is None:
            return None
        return {
            "epoch": latest.epoch,
            "step": latest.step,
            "rows": latest.rows,
            "values": dict(latest.values),
            "ended": latest.ended,
        }


def _part_of(said: m.Results) -> _Part:
    return said.incarnation, said.serial, said.rows, said.values


def _recovered(kept: ResultsKept, incarnation: int, serial: int, rows: int, values: _Means) -> _Told:
    said = m.Results(
        stream=kept.stream, incarnation=incarnation, serial=serial, epoch=kept.epoch, step=kept.step, rows=rows,
        values=values, ended="", aside=False,
    )  # fmt: skip
    return _Told(b"", range(0), said)


def _key_of(said: m.Results, world: int | None) -> _Key:
    return said.epoch, said.step, world, bool(said.ended), said.aside


def _answer(kept: ResultsKept, serial: int) -> m.Aggregate:
    return m.Aggregate(serial=serial, whole=True, rows=kept.rows, values=kept.values)


def _together(parts: Collection[_Told]) -> ResultsKept:
    """All parts together, in the order of ranks, so that the same parts give the same sums."""
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
    )


def _mean(of: list[tuple[int, float | None]]) -> float | None:
    """The mean, weighted by rows; None if a part with rows has no number, or the sum is too large."""
    total, rows = 0.0, 0
    for weight, value in of:
        if weight and value is None:
            return None
        total, rows = total + weight * (value or 0.0), rows + weight
    return total / rows if rows and math.isfinite(total) else None
