"""Batch quality: how little a plan pads, against the real peers on the same lists, and how random it stays.

`python -m tests.benchmarks.batch_quality [--json] [--lists FILE] [--quick]` plans LibriSpeech's length lists (an .npz
of sample counts at 16 kHz; without one, a log-normal list) at a budget of 300 s, runs tf.data, Lhotse and RETURNN on
them where they are installed (the extra `bench`), and scores all alike. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from loader_server.planning.buckets import best_boundaries
from tests.benchmarks.attach_at_scale import measured as attach_measured
from tests.benchmarks.batch_peers import Padded, lhotse, returnn_laplace, tf_bucket
from tests.loader_server.planning.tables import log_normal, plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from loader_server.planning import Plan

BUDGET = 30_000
SHAPES = 16
LISTS = Path(__file__).parents[3] / "shared" / "data" / "librispeech_lengths.npz"
_ENVIRONMENT = "STOKER_LENGTH_LISTS"
_EPOCHS = 100
#: The 1 % point of the Kolmogorov-Smirnov statistic for a hundred values, and the share of samples that may exceed it.
_KS_1_PERCENT = 1.61

Integers = NDArray[np.int64]
Row = dict[str, Any]


def lists(path: Path | None) -> dict[str, Integers]:
    """Lengths in frames of 10 ms by name of the list."""
    if path is None or not path.exists():
        print(f"No length lists at {path}: a log-normal list stands for them (name one with --lists).", file=sys.stderr)
        return {"log_normal": log_normal(28_539, 1_250, 0.3)}
    with np.load(path) as found:
        frames = {name: -(-found[name].astype(np.int64) // 160) for name in found}
    train = frames.pop("train_clean_100")
    return {"train_clean_100": train, "dev_and_test": np.concatenate(list(frames.values()))}


def scored(batches: list[Padded], ranks: int) -> Row:
    """The one scorer: padding, shapes, batches and the memory of lengths from round to round."""
    valid = sum(int(batch.lengths.sum()) for batch in batches)
    cells = sum(batch.rows * batch.length for batch in batches)
    filled = sum(len(batch.lengths) * batch.length for batch in batches)
    return {
        "waste": 1 - valid / cells,
        "time_padding": 1 - valid / filled,
        "shapes": len({(batch.rows, batch.length) for batch in batches}),
        "batches_ratio": len(batches) * BUDGET / valid,
        "autocorrelation": autocorrelation(np.array([batch.length for batch in batches[::ranks]])),
    }


def autocorrelation(lengths: Integers) -> float:
    """Lag 1, of successive rounds."""
    return float(np.corrcoef(lengths[:-1], lengths[1:])[0, 1]) if len(set(lengths)) > 1 else 0.0


def stoker(name: str, lengths: Integers, shapes: int | str, objective: str, ranks: int) -> Row:
    """A plan's row: the batches of its first epoch, and the time that its windows took to plan."""
    plan = plan_of(lengths, segment=4096, shapes=shapes, objective=objective)
    epoch = plan.epoch(0, ranks)
    took = min(_planning_s(plan, number, ranks) for number in range(5))
    batches = [epoch.batch(number) for number in range(epoch.batches)]
    padded = [Padded(lengths[of.samples], of.shape.rows, of.shape.lengths["audio"]) for of in batches]
    return {
        "list": name,
        "policy": "stoker" if shapes != "auto" else "stoker_auto",
        "objective": objective,
        "shapes_asked": len(plan.buckets),
        "ranks": ranks,
        **scored(padded, ranks),
        "us_per_sample": took / len(lengths) * 1e6,
        "time_padding_above_optimum": _above_optimum(plan, lengths),
    }


def _planning_s(plan: Plan, number: int, ranks: int) -> float:
    """How long one epoch's windows take to plan; the least of several is the machine's own time."""
    started = time.perf_counter()
    for _ in plan.epoch(number, ranks).windows():
        pass
    return time.perf_counter() - started


def _above_optimum(plan: Plan, lengths: Integers) -> float:
    """Time padding before anything is spilled, above that of the best boundaries for as many buckets."""
    values, counts = np.unique(lengths, return_counts=True)
    unit = values if plan.recipe.settings.objective == "area" else 2**31 // np.maximum(BUDGET // values, 1)
    best = values[best_boundaries(np.cumsum(counts), unit, len(plan.buckets))[-1]]
    own, least = (int(edges[np.searchsorted(edges, lengths)].sum()) for edges in (plan.recipe.tally.edges, best))
    return int(lengths.sum()) * (1 / least - 1 / own)


_Run: TypeAlias = "tuple[str, str, int, int, Callable[[Integers], list[Padded]]]"


def peer_runs(lengths: Integers) -> list[_Run]:
    """Policy, boundaries, shapes asked for, ranks, and how to run it. RETURNN ends eager TensorFlow: last."""
    equal = np.unique(np.ceil(np.quantile(lengths, np.arange(1, SHAPES + 1) / SHAPES)).astype(np.int64))
    ours = plan_of(lengths, segment=4096, shapes=SHAPES).recipe.tally.edges
    return [
        ("tf_bucket", "equal counts", SHAPES, 1, lambda of: tf_bucket(of, BUDGET, equal.tolist())),
        ("tf_bucket", "our boundaries", SHAPES, 1, lambda of: tf_bucket(of, BUDGET, ours.tolist())),
        ("lhotse", "equal duration", 10, 1, lambda of: lhotse(of, BUDGET, 10, 1)),
        ("lhotse", "equal duration", 30, 1, lambda of: lhotse(of, BUDGET, 30, 1)),
        ("lhotse", "equal duration", 30, 8, lambda of: lhotse(of, BUDGET, 30, 8)),
        ("lhotse", "fixed, equal counts", SHAPES, 1, lambda of: lhotse(of, BUDGET, SHAPES, 1, fixed=True)),
        ("returnn_laplace", "free", 0, 1, lambda of: returnn_laplace(of, BUDGET)),
    ]


def peer_rows(found: Mapping[str, Integers]) -> Iterator[Row]:
    """One row for each way to use each peer on each list: one way after the other."""
    by_list = [[(name, lengths, run) for run in peer_runs(lengths)] for name, lengths in found.items()]
    for name, lengths, (policy, boundaries, shapes, ranks, run) in itertools.chain(*zip(*by_list, strict=True)):
        started = time.perf_counter()
        try:
            batches = run(lengths)
        except ImportError as missing:
            print(f"{policy} is not installed ({missing.name}): its row is left out.", file=sys.stderr)
            continue
        took = (time.perf_counter() - started) / len(lengths) * 1e6
        row = {"list": name, "policy": policy, "objective": boundaries, "shapes_asked": shapes, "ranks": ranks}
        yield row | scored(batches, ranks) | {"us_per_sample": took}


def randomness(lengths: Integers, ranks: int) -> dict[str, float]:
    """Over a hundred epochs: memory of length, evenness of a sample's place and of who shares a batch with whom."""
    plan = plan_of(lengths, segment=4096, shapes=SHAPES)
    tenth = np.searchsorted(np.quantile(lengths, np.arange(1, 10) / 10), lengths)
    places = np.empty((len(lengths), _EPOCHS), np.float32)
    memory, shared, expected = [], 0.0, 0.0
    for number in range(_EPOCHS):
        epoch = plan.epoch(number, ranks)
        batches = [epoch.batch(at) for at in range(epoch.batches)]
        memory.append(autocorrelation(np.array([batch.shape.lengths["audio"] for batch in batches[::ranks]])))
        for at, batch in enumerate(batches):
            places[batch.samples, number] = (at // ranks + 0.5) * ranks / len(batches)
        seen, due = _pairs(batches, tenth)
        shared, expected = shared + seen, expected + due
    return {
        "autocorrelation": float(np.mean(memory)),
        "place_rejected_at_1_percent": _rejected(places),
        "pairs_over_expected": shared / expected,
    }


def _rejected(places: NDArray[np.float32]) -> float:
    """The share of samples whose places over the epochs a Kolmogorov-Smirnov test at the 1 % level finds uneven."""
    epochs = places.shape[1]
    ordered = np.sort(places, axis=1)
    steps = np.arange(epochs + 1) / epochs
    distance = np.maximum(steps[1:] - ordered, ordered - steps[:-1]).max(axis=1)
    return float((distance * np.sqrt(epochs) > _KS_1_PERCENT).mean())


def _pairs(batches: list[Any], tenth: Integers) -> tuple[float, float]:
    """Pairs of one tenth in one batch, seen and expected if each bucket's samples were dealt at random."""
    by_bucket: dict[int, list[Integers]] = {}
    for batch in batches:
        by_bucket.setdefault(batch.bucket, []).append(tenth[batch.samples])
    seen = expected = 0.0
    for dealt in by_bucket.values():
        own = _pair_count(np.bincount(np.concatenate(dealt), minlength=10)).sum()
        sizes = np.array([len(of) for of in dealt])
        chance = _pair_count(sizes).sum() / max(_pair_count(np.array([sizes.sum()])).sum(), 1)
        expected += float(own * chance)
        seen += float(sum(_pair_count(np.bincount(of, minlength=10)).sum() for of in dealt))
    return seen, expected


def _pair_count(counts: Integers) -> Integers:
    return counts * (counts - 1) // 2


def packing_waste(lengths: Integers) -> float:
    """The share of cells that no sample takes when rows of 60 s are packed."""
    plan = plan_of(lengths, segment=4096, packing="60 s")
    epoch = plan.epoch(0, 1)
    batches = [epoch.batch(number) for number in range(epoch.batches)]
    cells = sum(batch.shape.rows * batch.shape.lengths["audio"] for batch in batches)
    return 1 - float(lengths.sum()) / cells


def table(rows: list[Row], name: str) -> Table:
    """One list's rows for people."""
    heads = ("policy", "boundaries", "asked", "ranks", "waste", "time", "shapes", "batches", "memory", "us")
    shown = Table(*heads, title=name)
    for row in rows:
        shares = [f"{row['waste']:.2%}", f"{row['time_padding']:.2%}", str(row["shapes"])]
        rest = [f"{row['batches_ratio']:.3f}", f"{row['autocorrelation']:+.3f}", f"{row['us_per_sample']:.2f}"]
        shown.add_row(row["policy"], row["objective"], str(row["shapes_asked"]), str(row["ranks"]), *shares, *rest)
    return shown


def main(arguments: list[str] | None = None) -> Mapping[str, Any]:
    """Run everything, print tables unless JSON alone is asked for, and the result's line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    parser.add_argument("--lists", type=Path, default=Path(os.environ.get(_ENVIRONMENT, LISTS)), help=".npz of lists")
    parser.add_argument("--quick", action="store_true", help="leave out peers, randomness and scale")
    asked = parser.parse_args(arguments)
    console = Console(stderr=asked.json, width=120)
    found = lists(asked.lists)
    rows: list[Row] = []
    for name, lengths in found.items():
        plans = [(SHAPES, objective, ranks) for objective in ("area", "steps") for ranks in (1, 8)]
        rows += [stoker(name, lengths, *plan) for plan in [*plans, ("auto", "steps", 1), ("auto", "steps", 8)]]
    rows += [] if asked.quick else list(peer_rows(found))
    for name in found:
        console.print(table([row for row in rows if row["list"] == name], name))
    first = next(iter(found.values()))
    result: dict[str, Any] = {"rows": rows, "packing_waste": packing_waste(first)}
    if not asked.quick:
        result |= {"randomness": {str(ranks): randomness(first, ranks) for ranks in (1, 8)}} | attach_measured()
        console.print({name: value for name, value in result.items() if name != "rows"})
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()
