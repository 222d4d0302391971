"""Who comes and goes, for the log: a line for each worker and trainer, unless it does so again and again.

Rules: pure; derived from two reports, one after the other, so whoever is away for less than the time between them was
never away. Who came or went a moment ago is not named again for a while; the next line then says how often it did.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Comings"]

#: How long after a line about a worker or trainer there is another one about it.
_PAUSE_S = 30.0

#: Lines of one look; the rest are counted in one.
_MOST_LINES = 20

#: A worker or trainer: what it is, and by which fields people know it.
_Member: TypeAlias = tuple[tuple[str, Any], ...]
_Line: TypeAlias = tuple[str, dict[str, Any]]


class Comings:
    """All that were there at the last look."""

    def __init__(self) -> None:
        self._there: set[_Member] = set()
        self._told_s: dict[_Member, float] = {}
        #: Changes since a member's last line that had none of their own.
        self._untold: Counter[_Member] = Counter()

    def look(self, report: Mapping[str, Any], now_s: float) -> list[_Line]:
        """Return the events and fields of lines about what has changed since the last look."""
        there = set(_members(report))
        changed = sorted(there ^ self._there, key=str)
        self._there = there
        lines = [*self._take_due(now_s), *(line for member in changed for line in self._tell(member, now_s))]
        if len(lines) <= _MOST_LINES:
            return lines
        return [*lines[:_MOST_LINES], ("more came or went", {"count": len(lines) - _MOST_LINES})]

    def _tell(self, member: _Member, now_s: float) -> Iterator[_Line]:
        if member in self._told_s:
            self._untold[member] += 1
            return
        self._told_s[member] = now_s
        yield self._line(member)

    def _take_due(self, now_s: float) -> Iterator[_Line]:
        """Let those be named again whose pause is over; those that changed in it are named now."""
        for member in [member for member, told_s in self._told_s.items() if now_s - told_s >= _PAUSE_S]:
            del self._told_s[member]
            changes = self._untold.pop(member, 0)
            if changes:
                self._told_s[member] = now_s
                event, fields = self._line(member)
                yield event, {**fields, "changes": changes}

    def _line(self, member: _Member) -> _Line:
        fields = dict(member)
        return f"{fields.pop('kind')} {'is there' if member in self._there else 'is gone'}", fields


def _members(report: Mapping[str, Any]) -> Iterator[_Member]:
    for worker in report["workers"]:
        yield ("kind", "worker"), ("worker", worker["name"]), ("endpoint", worker["endpoint"])
    for name, stream in report["streams"].items():
        for trainer in stream["trainers"]:
            yield ("kind", "trainer"), ("stream", name), ("rank", trainer["rank"]), ("trainer", trainer["name"])
