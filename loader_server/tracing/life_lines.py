"""One batch's life in eight lines, and the slowest batches as a table; both for 80 columns.

Rules: pure. The longest gap is named first; what is missing is the last line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.tracing.lives import READY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from loader_server.tracing.lives import Life, LifePart, WantAsked

__all__ = ["COLUMNS", "life_facts", "life_lines", "slowest", "slowest_lines"]

COLUMNS = 80


def life_lines(life: Life) -> list[str]:
    """Return eight lines of at most 80 characters about one batch."""
    parts = life.parts
    built_by = f", built by {life.answered.worker_name}" if life.answered is not None else ""
    lines = [
        f"batch {life.number} of epoch {life.epoch}, stream {life.stream}, rank {life.trainer.process.rank}{built_by}",
        _sentence(life),
        f"  asked     {_asked(life)}",
        f"  network   {_listed(parts, 'network')}",
        f"  worker    {_listed(parts, 'worker')}",
        f"  trainer   {_listed(parts, 'trainer')}",
        f"  in all    {_in_all(life, parts)}",
        f"  missing   {'; '.join(life.missing) or 'nothing'}",
    ]
    return [_cut(line) for line in lines]


def _sentence(life: Life) -> str:
    longest = life.longest
    if longest is None:
        return "nothing is known of how it came here"
    if life.taken_ns is None:
        return f"not taken so far; the longest gap: {_ms(longest.ns)} {longest.name}"
    if not life.waited_ns:
        ready = next((part.ns for part in life.parts if part.name == READY), 0)
        return f"in time, ready {_ms(ready)} before; the longest gap: {_ms(longest.ns)} {longest.name}"
    return f"waited for {_ms(life.waited_ns)}, of that {_ms(longest.waited_ns)} {longest.name}"


def _asked(life: Life) -> str:
    if not life.asks:
        return "no want is kept"
    first = life.asks[0]
    return ", then ".join(
        f"{ask.worker_name}" + (f" after {_ms(ask.time_ns - first.time_ns)}" if ask is not first else "")
        for ask in life.asks
    ) + (f" ({len(life.asks)} attempts)" if len(life.asks) > 1 else "")


def _listed(parts: Iterable[LifePart], place: str) -> str:
    listed = [f"{_short(part.name)} {part.ns / 1e6:.1f}" for part in parts if part.place == place]
    return f"{', '.join(listed)} ms" if listed else "nothing known"


#: Shorter words for the parts of a list: the worker is named in the first line.
_SHORT = {
    "on the way to": "there",
    "on the way from": "back",
    "waiting for its turn": "turn",
    "its samples being read": "read",
    "being built": "build",
    "being encoded": "encode",
    "built, and not sent": "send",
    "being checked": "check",
    READY: "ready",
}


def _short(name: str) -> str:
    return next((short for long, short in _SHORT.items() if name.startswith(long)), name)


def _in_all(life: Life, parts: Sequence[LifePart]) -> str:
    text = _ms(sum(part.ns for part in parts))
    if life.taken_ns is not None and life.trained_ns is not None:
        text += f" until taken, trained on {_ms(life.trained_ns - life.taken_ns)} later"
    error_ns = life.answered.error_ns if life.answered is not None else 0
    return text + (f"; clocks within {_ms(error_ns)}" if error_ns else "")


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.1f} ms" if abs(ns) < 1e10 else f"{ns / 1e9:.1f} s"


def _cut(line: str) -> str:
    return line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…"


def slowest(lives: Iterable[Life], most: int) -> list[Life]:
    """Return the batches for which the consumer waited longest, up to `most`, without those that it never waited for.

    They are in order, the longest wait first.
    """
    waited = [life for life in lives if life.waited_ns > 0]
    return sorted(waited, key=lambda life: -life.waited_ns)[:most]


def slowest_lines(lives: Sequence[Life]) -> list[str]:
    """Return a table of these batches, a line each below a heading."""
    heading = f"{'waited ms':>10} {'epoch':>6} {'batch':>9} {'rank':>5}  longest part of the wait"
    return [heading, *(_cut(_row(life)) for life in lives)]


def _row(life: Life) -> str:
    longest = life.longest
    part = f"{longest.waited_ns / 1e6:.1f} ms {longest.name}" if longest is not None else "not known"
    rank = life.trainer.process.rank
    return f"{life.waited_ns / 1e6:>10.1f} {life.epoch:>6} {life.number:>9} {rank:>5}  {part}"


def life_facts(life: Life) -> dict[str, Any]:
    """Return the same as facts for JSON; lengths are in ms, and times of wants in ms from the first one."""
    start_ns = life.asks[0].time_ns if life.asks else life.offered_ns or life.taken_ns or 0
    return {
        "stream": life.stream,
        "epoch": life.epoch,
        "batch": life.number,
        "trainer": life.trainer.name,
        "rank": life.trainer.process.rank,
        "built_by": life.answered.worker_name if life.answered is not None else None,
        "waited_ms": life.waited_ns / 1e6,
        "parts": [
            {"name": part.name, "place": part.place, "ms": part.ns / 1e6, "waited_ms": part.waited_ns / 1e6}
            for part in life.parts
        ],
        "longest": life.longest.name if life.longest is not None else None,
        "asked": [_ask_facts(ask, start_ns) for ask in life.asks],
        "clock_error_ms": life.answered.error_ns / 1e6 if life.answered is not None else None,
        "missing": life.missing,
    }


def _ask_facts(ask: WantAsked, start_ns: int) -> dict[str, Any]:
    return {"worker": ask.worker_name, "attempt": ask.attempt, "at_ms": (ask.time_ns - start_ns) / 1e6}
