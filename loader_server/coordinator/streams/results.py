"""What training and evaluation of a stream came to: means over all ranks, each weighted by its rows.

Rules: pure. Ranks in lockstep report for the same epoch and step, and the aggregate is whole once every rank of the
world has reported. All get the same numbers, even those that ask again after a restart, because a whole aggregate is
kept before it is told. A rank that reports again has trained again, and begins another aggregate. In queue mode there
is no world: the aggregate grows with each report; in training, a slow trainer's older epoch does not replace a newer
one. The end of a run is reported with the epoch and step of its last results, and stands beside them.
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
    #: The reports in it, by incarnation and serial: several, if it is a kept aggregate.
    told: tuple[tuple[int, int], ...]

    def overlaps(self, other: _Told) -> bool:
        """Whether they have a rank in common."""
        return self.ranks.start < other.ranks.stop and other.ranks.start < self.ranks.stop


#: Epoch, step, the world (None in queue mode), and whether it is the end of a run, or what ranks agree on.
_Key = tuple[int, int, int | None, bool, bool]
#: The reporter of what was kept before a restart; trainers' own incarnations are below 2**64.
_KEPT = -1


class StreamResults:
    """The latest whole aggregate of one stream, and those that are awaited."""

    def __init__(self, *, evaluation: bool = False) -> None:
        self.latest: ResultsKept | None = None
        #: What ranks last agreed on.
        self._agreed: ResultsKept | None = None
        self._evaluation = evaluation
        self._open: dict[_Key, dict[int, _Told]] = {}
        #: Whether the latest belongs to training that was abandoned for an earlier checkpoint.
        self._is_left = False

    def recover(self, fact: ResultsKept) -> None:
        """Take in a fact from the journal."""
        if fact.aside:
            self._agreed = fact
        else:
            self.latest = fact

    def begin_anew(self) -> None:
        """Training goes back to a checkpoint: nothing is added to earlier results, and epochs come again."""
        self._open.clear()
        self._is_left = True

    def take(self, said: m.Results, peer: bytes, ranks: range, world: int | None) -> list[Instruction]:
        """Take in a trainer's part, which may be repeated; returns the answers to it, or to all, and what to keep. In
        queue mode there is no `world`.
        """
        for kept in (self.latest, self._agreed):
            if kept is not None and (said.incarnation, said.serial) in kept.told:
                return [Send(peer, _answer(kept, said.serial))]
        key, mine = _key_of(said, world), _Told(peer, ranks, said, ((said.incarnation, said.serial),))
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
        if not parts and self._is_of_latest(mine.said):
            parts[_KEPT] = self._kept_part()
        if len(parts) < _MOST_PARTS:
            parts[mine.said.incarnation] = mine
        if self._is_late(mine.said):
            return [Send(mine.peer, _answer(_together(parts.values()), mine.said.serial))]
        return self._keep(parts.values(), hearers=[mine])

    def _is_of_latest(self, said: m.Results) -> bool:
        """Whether what was kept before a restart is of the same epoch, and not this trainer's alone."""
        latest = self.latest
        if latest is None or self._is_left or said.ended or (said.epoch, said.step) != (latest.epoch, latest.step):
            return False
        return bool(latest.rows) and any(incarnation != said.incarnation for incarnation, _ in latest.told)

    def _kept_part(self) -> _Told:
        kept = self.latest
        assert kept is not None
        said = m.Results(
            stream=kept.stream, incarnation=0, serial=0, epoch=kept.epoch, step=kept.step, rows=kept.rows,
            values=kept.values, ended="", aside=False,
        )  # fmt: skip
        return _Told(b"", range(0), said, kept.told)

    def _is_late(self, said: m.Results) -> bool:
        if self.latest is None or self._is_left or self._evaluation:
            return False
        return (said.epoch, said.step) < (self.latest.epoch, self.latest.step)

    def _keep(self, parts: Collection[_Told], *, hearers: Collection[_Told]) -> list[Instruction]:
        kept = _together(parts)
        if not kept.aside:
            kept, self._is_left = self._after_latest(kept), False
        self.recover(kept)
        return [Keep(kept), *(Send(one.peer, _answer(kept, one.said.serial)) for one in hearers)]

    def _after_latest(self, one: ResultsKept) -> ResultsKept:
        """The end of a run has no values: the last values stand, and so do their reporters."""
        if one.values or self.latest is None:
            return one
        told = tuple(dict.fromkeys((*self.latest.told, *one.told)))
        return replace(one, rows=self.latest.rows, values=self.latest.values, told=told)

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
        tuple(dict.fromkeys(pair for part in parts for pair in part.told)),
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
