"""Tokens, ragged, about 80 rows of about 50 a batch, shuffled and bucketed, into `tf.data`: beside its own `shuffle`
and `bucket_by_sequence_length` in process.

    python -m tests.benchmarks.sources.tokens [numpy | parquet]

prints what a batch costs in each place, too.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from tests.benchmarks.sources.row import elsewhere, interleaved, measured, serve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.benchmarks.sources.row import Row

__all__ = ["rows"]

_SAMPLES = 2**18
#: The peer is so slow that a part of them will do.
_PEER_SAMPLES = 2**14
_SHUFFLED = 2**13
_BUDGET = 4608
_STREAM = f'length = "tokens"\nbudget = "{_BUDGET} tokens"\nshapes = 8\n'
#: What a source is called, and what it reads.
_SOURCES = {"numpy": 'paths = ["{folder}/arrays"]', "parquet": 'paths = ["{folder}/tokens.parquet"]'}


def rows(folder: Path, rounds: int) -> list[Row]:
    """Stoker into `tf.data` from arrays and from Parquet, and its plain iterator, beside `tf.data` alone."""
    sides = {
        "stoker": ("dataset", str(_job(folder / "numpy", "numpy"))),
        "tf.data": ("peer", str(folder / "numpy")),
        "stoker, Parquet": ("dataset", str(_job(folder / "parquet", "parquet"))),
        "stoker, plain iterator": ("plain", str(_job(folder / "plain", "numpy"))),
    }
    with ExitStack() as stack:
        started = {side: stack.enter_context(elsewhere(__name__, *how)) for side, how in sides.items()}
        return interleaved("tokens", started, rounds)


def _serve(side: str, where: Path) -> None:
    """One side, in this process."""
    if side == "peer":
        peer = _tf_data(*_arrays(where))
        serve(lambda: measured(int(batch.shape[0]) for batch in peer))
        return
    import trainer_client
    from tests.benchmarks.data_path_stoker import loaders

    with loaders(where) as endpoint, trainer_client.connect(endpoint) as feed:
        if side == "plain":
            serve(lambda: measured(len(batch["tokens"]) for batch in feed))
            return
        data = feed.dataset(inputs=("tokens", "tokens_length"))
        serve(lambda: measured(int(lengths.shape[0]) for ((_, lengths),) in data))


def _arrays(folder: Path) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    arrays = folder / "arrays"
    return np.load(arrays / "tokens_values.npy"), np.load(arrays / "tokens_offsets.npy")


def _job(folder: Path, source: str) -> Path:
    """The data in one form, and a job that reads them."""
    from tests.benchmarks.data_path_stoker import make_job

    random = np.random.default_rng(7)
    lengths = np.maximum(random.lognormal(np.log(44), 0.5, _SAMPLES), 1).astype(np.int64)
    offsets = np.append(0, np.cumsum(lengths))
    values = random.integers(1, 32_000, offsets[-1], np.int32)
    if source == "parquet":
        import pyarrow as pa
        import pyarrow.parquet

        folder.mkdir(exist_ok=True)
        tokens = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))
        pyarrow.parquet.write_table(pa.table({"tokens": tokens}), folder / "tokens.parquet", row_group_size=2**14)
    else:
        (folder / "arrays").mkdir(parents=True)
        np.save(folder / "arrays" / "tokens_values", values)
        np.save(folder / "arrays" / "tokens_offsets", offsets)
    return make_job(folder / "job", _SOURCES[source].format(folder=folder) + "\n" + _STREAM, source=source)


def _tf_data(values: NDArray[np.int32], offsets: NDArray[np.int64]) -> Any:
    import tensorflow as tf

    tokens = tf.RaggedTensor.from_row_splits(values[: offsets[_PEER_SAMPLES]], offsets[: _PEER_SAMPLES + 1])
    bounds = [24, 32, 40, 48, 60, 80, 120]
    sizes = [_BUDGET // bound for bound in (*bounds, 300)]
    # Of four ways to get at the samples (a generator, slices before or after shuffling) this was the fastest.
    return (
        tf.data.Dataset.from_tensor_slices(tokens)
        .map(lambda one: one if isinstance(one, tf.Tensor) else one.to_tensor())
        .shuffle(_SHUFFLED, seed=1)
        .bucket_by_sequence_length(lambda one: tf.shape(one)[0], bounds, sizes)
    )


# --- where a batch's time goes ---


def _costs(job: Path) -> dict[str, float]:
    """CPU of a batch in milliseconds, by thread of this process and by process."""
    import trainer_client
    from tests.benchmarks.data_path_stoker import loaders

    with loaders(job) as endpoint, trainer_client.connect(endpoint) as feed:
        data = feed.dataset(inputs=("tokens", "tokens_length"))
        costs: dict[str, float] = {}
        for name, batches in (("tf.data", lambda: data), ("plain", lambda: feed)):
            for epoch in range(3):
                before, began_s = _cpu_by_place(), time.perf_counter()
                count = sum(1 for _ in batches())
                wall_s = time.perf_counter() - began_s
                spent = {place: s - before.get(place, 0.0) for place, s in _cpu_by_place().items()}
                for place, s in spent.items():
                    if s > 0.01 * wall_s:
                        costs[f"{name}, epoch {epoch}, {place}"] = round(1000 * s / count, 3)
                costs[f"{name}, epoch {epoch}, rows a batch"] = round(_SAMPLES / count, 1)
                costs[f"{name}, epoch {epoch}, us a sample"] = round(1e6 * sum(spent.values()) / _SAMPLES, 2)
        return costs


def _cpu_by_place() -> dict[str, float]:
    own = psutil.Process()
    found = {f"thread {_thread_name(one.id)}": one.user_time + one.system_time for one in own.threads()}
    for child in own.children(recursive=True):
        times = child.cpu_times()
        found[f"process {child.cmdline()[3]}"] = times.user + times.system
    return found


def _thread_name(thread: int) -> str:
    return f"{Path(f'/proc/self/task/{thread}/comm').read_text().strip()} {thread}"


def _main() -> None:
    if len(sys.argv) > 2:
        _serve(sys.argv[1], Path(sys.argv[2]))
        sys.stdout.flush()
        os._exit(0)  # TensorFlow's threads need no goodbye
    with tempfile.TemporaryDirectory(prefix="stoker-tokens-") as folder:
        source = sys.argv[1] if len(sys.argv) > 1 else "numpy"
        print(json.dumps(_costs(_job(Path(folder), source)), indent=1))


if __name__ == "__main__":
    _main()
