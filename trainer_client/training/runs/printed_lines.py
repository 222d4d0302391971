"""The lines that several kinds of runs print: when they begin, end, and evaluate.

Rules: pure. Hours may be more than 24.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["finished_line", "judged_json", "judged_line", "part_line", "spell_time", "starting_line"]


def starting_line(work: str) -> str:
    """Return the line of a run that begins: `STARTING:` and what it does."""
    return f"STARTING: {work}"


def judged_line(stream: str, step: int, epochs: int, values: Mapping[str, float], *, given_up: int = 0) -> str:
    """Return the line of an evaluation on a stream: loss, metrics, and the number of samples (`rows`).

    If batches were given up, it says that the values are those of a share. Raise KeyError without `rows`.
    """
    results = ", ".join(f"{name} {value:.4f}" for name, value in values.items() if name != "rows")
    lacking = f"{given_up} batches were" if given_up > 1 else "1 batch was"
    share = f": a share, {lacking} given up" if given_up else ""
    return f"{stream} at step {step}, after {epochs} epochs: {results} ({values['rows']:.0f} samples{share})"


def part_line(stream: str, step: int, epochs: int, batches: int) -> str:
    """Return the line of a process that took part in another one's evaluation: how many batches it has evaluated."""
    count = "1 batch was" if batches == 1 else f"{batches} batches were"
    return f"{stream} at step {step}, after {epochs} epochs: {count} evaluated here"


def judged_json(stream: str, step: int, epochs: int, values: Mapping[str, float], **more: object) -> str:
    """Return an evaluation as a JSON object, for scripts, with `more` in it; a value that is not finite is null."""
    numbers = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return json.dumps({"stream": stream, "step": step, "epoch": epochs, "values": numbers} | more)


def finished_line(totals: Sequence[str], seconds: float, why: str = "") -> str:
    """Return the line of a run that ended in good order: `FINISHED:`, its totals and time, and why.

    An empty `why` is left out; it is given for a run that can end in several ways. Errors of `spell_time` pass through.
    """
    return f"FINISHED: {', '.join([*totals, spell_time(seconds)])}{f': {why}' if why else ''}"


def spell_time(seconds: float) -> str:
    """Return seconds as `hours:minutes:seconds`, rounded down; raise OverflowError for infinity, ValueError for NaN."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
