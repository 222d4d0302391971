"""What training and evaluation of a stream came to: means over all ranks, each weighted by its rows.

Rules: pure. Ranks in step tell theirs for the same epoch and step, and the aggregate is whole once every rank of the
world has; all are given the same numbers, also those who ask again after a restart, for a whole aggregate is kept
before it is told. Who tells it anew has trained anew, and begins another. In queue mode there is no world: whoever told
his is counted, and the aggregate grows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loader_server.coordinator.events import Instruction, Keep, ResultsKept, Send
from shared.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["StreamResults"]

#: Epochs and steps of which some ranks' results are awaited; more than ranks can be apart.
_MOST_OPEN = 16
#: Who may tell results of one epoch in queue mode.
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


#: Epoch, step, and in lockstep the world.
_Key = tuple[int, int, int | None]


class StreamResults:
    """The latest whole aggregate of one stream, and those that are awaited."""

    def __init__(self) -> None:
        self.latest: ResultsKept | None = None
        self._open: dict[_Key, dict[int, _Told]] = {}

    def take(self, said: m.Results, peer: bytes, ranks: range, world: int | None) -> list[Instruction]:
        """A trainer tells its part, perhaps again; what it, or all of them, are told, and what is kept of it. Ranks in
        step have a `world`.
        """
        if self.latest is not None and (said.incarnation, said.serial) in self.latest.told:
            return [Send(peer, _answer(self.latest, said.serial))]
        key, mine = (said.epoch, said.step, world), _Told(peer, ranks, said)
        parts = self._parts(key)
        for other in [one for one, part in parts.items() if world is not None and part.overlaps(mine)]:
            del parts[other]
        if len(parts) < _MOST_PARTS:
            parts[said.incarnation] = mine
        if world is not None and sum(len(part.ranks) for part in parts.values()) < world:
            return [Send(peer, m.Aggregate(serial=said.serial, whole=False, rows=0, values=()))]
        if world is not None:
            del self._open[key]
        self.latest = self._after_latest(_together(parts.values()))
        hearers = parts.values() if world is not None else [mine]
        return [Keep(self.latest), *(Send(one.peer, _answer(self.latest, one.said.serial)) for one in hearers)]

    def _after_latest(self, one: ResultsKept) -> ResultsKept:
        """The end of a run has no values: the last ones stand."""
        if one.values or self.latest is None:
            return one
        return replace(one, rows=self.latest.rows, values=self.latest.values)

    def _parts(self, key: _Key) -> dict[int, _Told]:
        if key not in self._open and len(self._open) >= _MOST_OPEN:
            del self._open[next(iter(self._open))]
        return self._open.setdefault(key, {})

    def report(self) -> dict[str, Any] | None:
        """For people: the latest; None if nothing was told yet."""
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


def _answer(kept: ResultsKept, serial: int) -> m.Aggregate:
    return m.Aggregate(serial=serial, whole=True, rows=kept.rows, values=kept.values)


def _together(parts: Collection[_Told]) -> ResultsKept:
    """In the order of ranks, so that the same parts give the same sums."""
    told = [part.said for part in sorted(parts, key=lambda part: (part.ranks.start, part.said.incarnation))]
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
    )


def _mean(of: list[tuple[int, float | None]]) -> float | None:
    """Weighted by rows; None, which is no number, if one of those with rows is none."""
    total, rows = 0.0, 0
    for weight, value in of:
        if weight and value is None:
            return None
        total, rows = total + weight * (value or 0.0), rows + weight
    return total / rows if rows else None
