"""Lives of batches in Chrome's trace format, which Perfetto and chrome://tracing open.

Rules: pure. Each process is a track of its own, with as many rows as it takes for no two spans of a row to overlap, as
the format demands. An arrow leads from the want by way of the worker that built it to the step that trained on it.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from loader_server.tracing.process_stamps import joined_clocks
from shared.tracing.ring import StampKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from loader_server.tracing.lives import Life
    from loader_server.tracing.process_stamps import ProcessStamps

__all__ = ["chrome_trace"]

_Event = dict[str, Any]

#: Rows of a process begin at these thread ids: one kind of span, one group of rows.
_GROUPS = ("wanted", "ready", "training", "queued", "reading", "building", "sending")
_MOST_LANES = 1000


class _Tracks:
    """The rows of all processes: which spans they have, and since when each is free."""

    def __init__(self, start_ns: int) -> None:
        self.events: list[_Event] = []
        self._start_ns = start_ns
        #: When the last span of a row ends, by process and group.
        self._ends: dict[tuple[int, str], list[int]] = {}

    def us(self, time_ns: int) -> float:
        """Return a time as the format has it, in µs from the first stamp."""
        return (time_ns - self._start_ns) / 1e3

    def span(self, process: int, group: str, begin_ns: int, end_ns: int, **rest: Any) -> _Event:
        """Add a span in the first row of its group that is free, a new one if none is, and return its event."""
        ends = self._ends.setdefault((process, group), [])
        lane = next((lane for lane, end in enumerate(ends) if end <= begin_ns), len(ends))
        if lane == len(ends):
            ends.append(end_ns)
            self._name_row(process, group, lane)
        ends[lane] = end_ns
        begin_us = self.us(begin_ns)
        event = {
            "ph": "X",
            "pid": process,
            "tid": _row(group, lane),
            "ts": begin_us,
            "dur": self.us(end_ns) - begin_us,
            "cat": group,
            **rest,
        }
        self.events.append(event)
        return event

    def _name_row(self, process: int, group: str, lane: int) -> None:
        row = {"pid": process, "tid": _row(group, lane), "ts": 0}
        name = group if not lane else f"{group} {lane + 1}"
        self.events.append({"ph": "M", "name": "thread_name", "args": {"name": name}, **row})
        order = {"sort_index": _row(group, lane)}
        self.events.append({"ph": "M", "name": "thread_sort_index", "args": order, **row})

    def arrow(self, number: int, spans: Sequence[_Event]) -> None:
        """Add an arrow through these spans, which have to be in the order of their beginnings."""
        for place, span in enumerate(spans):
            phase = "s" if place == 0 else "f" if place == len(spans) - 1 else "t"
            arrow = {"ph": phase, "id": number, "name": "batch", "cat": "batch", "ts": span["ts"]}
            self.events.append(
                arrow | {name: span[name] for name in ("pid", "tid")} | ({"bp": "e"} if phase != "s" else {})
            )


def _row(group: str, lane: int) -> int:
    return _GROUPS.index(group) * _MOST_LANES + lane + 1


def chrome_trace(processes: Sequence[ProcessStamps], lives: Iterable[Life]) -> dict[str, Any]:
    """Return the trace as an object for JSON; without any life it has the processes alone.

    Times are of the first trainer's clock. A trainer on another host whose clock cannot be compared with that one is
    listed as missing, and its spans are left out.
    """
    reference = next((stamps.clock for stamps in processes if stamps.is_trainer), "")
    clocks = joined_clocks(processes, reference)
    known = [life for life in lives if life.trainer.clock in clocks]
    offsets = {clock: offset.offset_ns for clock, offset in clocks.items()}
    chosen = sorted(known, key=lambda life: _begin_ns(life) + offsets[life.trainer.clock])
    tracks = _Tracks(_begin_ns(chosen[0]) + offsets[chosen[0].trainer.clock] if chosen else 0)
    numbers = {stamps.process.incarnation: number for number, stamps in enumerate(processes, 1)}
    for stamps in processes:
        _name_process(tracks, stamps, numbers[stamps.process.incarnation])
    spans = sorted(
        (span for number, life in enumerate(chosen, 1) for span in _spans(life, number, numbers, offsets)),
        key=itemgetter(0, 1),
    )
    arrows: dict[int, list[_Event]] = {}
    for begin_ns, end_ns, process, group, number, life in spans:
        event = tracks.span(process, group, begin_ns, end_ns, name=f"{life.epoch}/{life.number}", args=_facts(life))
        if group in ("wanted", "building", "training"):
            arrows.setdefault(number, []).append(event)
    for number, through in arrows.items():
        if len(through) > 1:
            tracks.arrow(number, through)
    missing = {stamps.name: stamps.problem for stamps in processes if stamps.problem}
    unknown = "its clock could not be compared: no Ping is kept"
    missing |= {stamps.name: unknown for stamps in processes if stamps.is_trainer and stamps.clock not in clocks}
    errors = {
        stamps.name: clocks[stamps.clock].error_ns / 1e6
        for stamps in processes
        if stamps.clock in clocks and clocks[stamps.clock].error_ns
    }
    return {
        "traceEvents": tracks.events,
        "displayTimeUnit": "ms",
        "otherData": {"missing": missing, "clock_error_ms": errors},
    }


def _begin_ns(life: Life) -> int:
    parts = life.parts
    return parts[0].begin_ns if parts else life.offered_ns or life.taken_ns or life.asks[0].time_ns


def _name_process(tracks: _Tracks, stamps: ProcessStamps, number: int) -> None:
    process = stamps.process
    name = f"trainer {process.stream} rank {process.rank}: {process.name}" if process.stream else process.name
    for event, facts in (("process_name", {"name": name}), ("process_sort_index", {"sort_index": number})):
        tracks.events.append({"ph": "M", "pid": number, "tid": 0, "ts": 0, "name": event, "args": facts})


_Span = tuple[int, int, int, str, int, "Life"]


def _spans(life: Life, number: int, numbers: dict[int, int], offsets: dict[str, int]) -> Iterable[_Span]:
    """Yield (begin, end, process, group, the life's number, the life) for each span of a life, on the one clock."""
    offset_ns = offsets[life.trainer.clock]
    for begin_ns, end_ns, process, group in _own_spans(life, numbers):
        yield begin_ns + offset_ns, end_ns + offset_ns, process, group, number, life


def _own_spans(life: Life, numbers: dict[int, int]) -> Iterable[tuple[int, int, int, str]]:
    trainer = numbers[life.trainer.process.incarnation]
    for ask in life.asks:
        end_ns = ask.arrived_ns or (life.offered_ns if ask is life.answered else None)
        if end_ns is not None:
            yield ask.time_ns, max(end_ns, ask.time_ns), trainer, "wanted"
        worker = numbers.get(ask.worker)
        if worker is not None:
            yield from ((begin, end, worker, group) for (begin, end), group in _at_worker(ask.times))
    if life.offered_ns is not None and life.taken_ns is not None:
        yield life.offered_ns, life.taken_ns, trainer, "ready"
    if life.taken_ns is not None and life.trained_ns is not None:
        yield life.taken_ns, life.trained_ns, trainer, "training"


def _at_worker(times: dict[int, int]) -> Iterable[tuple[tuple[int, int], str]]:
    received, begun = times.get(StampKind.RECEIVED), times.get(StampKind.BEGUN)
    read, built = times.get(StampKind.READ), times.get(StampKind.BUILT)
    pushed = times.get(StampKind.PUSHED)
    if received is not None and begun is not None:
        yield (received, max(begun, received)), "queued"
    if begun is not None and read is not None and read > begun:
        yield (begun, read), "reading"
    begin = max((time for time in (begun, read) if time is not None), default=None)
    if begin is not None and built is not None:
        yield (begin, max(built, begin)), "building"
    if built is not None and pushed is not None:
        yield (built, max(pushed, built)), "sending"


def _facts(life: Life) -> dict[str, Any]:
    facts: dict[str, Any] = {"stream": life.stream, "epoch": life.epoch, "batch": life.number}
    facts |= {"waited_ms": life.waited_ns / 1e6, "attempts": len(life.asks)}
    if life.answered is not None:
        facts |= {"built_by": life.answered.worker_name, "clock_error_ms": life.answered.error_ns / 1e6}
    return facts
