"""The lines that any run prints when it begins and when it ends.

Rules: pure. Hours may be more than 24.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = [
    "exported_line",
    "finished_line",
    "judged_json",
    "judged_line",
    "serving_line",
    "spell_time",
    "starting_line",
    "strategy_line",
]


def starting_line(what: str) -> str:
    """Return the line of a run that begins to do `what`."""
    return f"STARTING: {what}"


def serving_line(server: int, servers: int, endpoint: str) -> str:
    """Return the line of a parameter server that begins to serve."""
    return f"SERVING: share {server + 1} of {servers} at {endpoint}"


def judged_line(stream: str, step: int, epochs: int, values: Mapping[str, float], *, given_up: int = 0) -> str:
    """Return the line of an evaluation on a stream: loss, metrics, and the number of samples (`rows`).

    If batches were given up, it says that the values are those of a share.
    """
    judged = ", ".join(f"{name} {value:.4f}" for name, value in values.items() if name != "rows")
    lacking = f"{given_up} batches were" if given_up > 1 else "1 batch was"
    share = f": a share, {lacking} given up" if given_up else ""
    return f"{stream} at step {step}, after {epochs} epochs: {judged} ({values['rows']:.0f} samples{share})"


def judged_json(stream: str, step: int, epochs: int, values: Mapping[str, float], **more: object) -> str:
    """Return an evaluation as JSON, for scripts; a value that is not finite is null, as JSON has none."""
    numbers = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return json.dumps({"stream": stream, "step": step, "epoch": epochs, "values": numbers} | more)


def finished_line(totals: Sequence[str], seconds: float, why: str = "") -> str:
    """Return the line of a run that ended in good order; `why` is for one that can end in several ways."""
    return f"FINISHED: {', '.join([*totals, spell_time(seconds)])}{f': {why}' if why else ''}"


def strategy_line(choice: str) -> str:
    """Return the line that names the strategy."""
    return f"STRATEGY: {choice}"


def exported_line(path: Path) -> str:
    """Return the line that says where the model was written."""
    return f"EXPORTED: {path}"


def spell_time(seconds: float) -> str:
    """Return a time as hours, minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
