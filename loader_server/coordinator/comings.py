"""Log lines for workers and trainers that come and go, limited to one line a member and period.

Rules: pure; derived from the difference between two consecutive reports, so an absence shorter than the time between
them goes unnoticed. A member that has just been logged is not logged again for a while; its next line then says how
often it changed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Comings"]

#: Minimum time between two lines about the same worker or trainer.
_PAUSE_S = 30.0

#: Limit of lines for one report; the rest are summed up in one more line.
_MOST_LINES = 20

#: A worker or trainer: its kind, and the fields by which people know it.
_Member: TypeAlias = tuple[tuple[str, Any], ...]
_Line: TypeAlias = tuple[str, dict[str, Any]]


class Comings:
    """Members that were present in the last report, and when each was last logged."""

    def __init__(self) -> None:
        self._there: set[_Member] = set()
        self._told_s: dict[_Member, float] = {}
        #: Changes of a member that were not logged because its last line was too recent.
        self._untold: Counter[_Member] = Counter()

    def look(self, report: Mapping[str, Any], now_s: float) -> list[_Line]:
        """Return the log lines, as event and fields, for what has changed since the last report."""
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
        """Allow new lines about members whose pause is over; yield one for each that changed during its pause."""
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
