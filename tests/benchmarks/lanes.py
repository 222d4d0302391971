"""How many rows are masked where state is carried, on real length lists: `python -m tests.benchmarks.lanes`.

Utterances stand for themselves, or are joined into recordings of about equal length, or made sixty times as long. The
last line is one JSON object.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from loader_server.planning import Plan
from tests.benchmarks.batch_quality import LISTS
from tests.loader_server.planning.tables import RATES, Chunks, settings_of

_LANES = ((16, 1), (16, 4), (32, 8))


def joined(frames: np.ndarray, size: int) -> np.ndarray:
    """Neighbours joined into recordings of about this many frames."""
    return np.bincount(np.cumsum(frames) // size, weights=frames).astype(np.int64)


def masked(recordings: np.ndarray, steps: int, rows: int, group: int) -> float:
    """The share of masked rows of an epoch."""
    settings = settings_of(budget=f"{rows * steps} steps", carry=True)
    table = Chunks(recordings, steps, segment=4096)
    plan = Plan.make(table, settings, key="audio", per_second=RATES, seed=7)
    return 1 - int(plan.recipe.tally.counts.sum()) / (rows * plan.epoch(0, group).batches)


def main() -> None:
    """Print a table, and all of it as JSON in the last line."""
    rows: list[dict[str, Any]] = []
    with np.load(LISTS) as lists:
        frames = {name: -(-of.astype(np.int64) // 160) for name, of in lists.items()}
    train = frames.pop("train_clean_100")
    pooled = np.concatenate(list(frames.values()))
    for name, recordings, steps in (
        ("train_clean_100, 2 s", train, 200),
        ("dev and test pooled, 2 s", pooled, 200),
        ("dev and test pooled, 60 times as long, 10 s", 60 * pooled, 1000),
        ("dev and test pooled, joined to 5 minutes, 10 s", joined(pooled, 30_000), 1000),
        ("train_clean_100, joined to half hours, 10 s", joined(train, 180_000), 1000),
    ):
        shares = {str(count * group): masked(recordings, steps, count, group) for count, group in _LANES}
        rows.append({"lists": name, "recordings": len(recordings), "masked": shares})
        print(f"| {name} | {len(recordings):,} | {' | '.join(f'{share:.2%}' for share in shares.values())} |")
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
