"""Parquet with lists of tokens and a label, shuffled, padded and batched: beside `datasets`, and pyarrow by hand.

Rules: each peer shuffles as people do with it: `datasets` by a permutation of all rows over its own memory-mapped copy
(made before the clock runs), pyarrow by the row groups and the rows in each. Batches of 80 rows are padded by numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.benchmarks.sources.row import Pass, interleaved, measured, stoker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.benchmarks.sources.row import Row

__all__ = ["rows"]

_SAMPLES = 2**17
_ROWS = 80
_STREAM = 'paths = ["{path}"]\nlength = "tokens"\nbudget = "4608 tokens"\nshapes = 8\n'


def rows(folder: Path, rounds: int) -> list[Row]:
    """Stoker's plain iterator and its peers."""
    from tests.benchmarks.data_path_stoker import make_job

    path = _written(folder)
    job = make_job(folder / "job", _STREAM.format(path=path), source="parquet")
    with stoker(job) as read:
        return interleaved(
            "parquet", {"stoker": read, "datasets": _datasets(path, folder), "pyarrow": _pyarrow(path)}, rounds
        )


def _written(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet

    random = np.random.default_rng(7)
    lengths = np.maximum(random.lognormal(np.log(44), 0.5, _SAMPLES), 1).astype(np.int64)
    offsets = np.append(0, np.cumsum(lengths))
    tokens = pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(random.integers(1, 32_000, offsets[-1], np.int32))
    )
    table = pa.table({"tokens": tokens, "label": pa.array(np.arange(_SAMPLES) % 7)})
    pyarrow.parquet.write_table(table, folder / "tokens.parquet", row_group_size=2**13)
    return folder / "tokens.parquet"


def _padded(tokens: Sequence[Any]) -> int:
    out = np.zeros((len(tokens), max(map(len, tokens))), np.int32)
    for row, one in zip(out, tokens, strict=True):
        row[: len(one)] = one
    return len(out)


def _datasets(path: Path, folder: Path) -> Callable[[], Pass]:
    opened: list[Any] = []

    def read() -> Pass:
        import datasets

        if not opened:
            datasets.disable_progress_bars()
            found = datasets.Dataset.from_parquet(str(path), cache_dir=str(folder / "datasets"))
            opened.append(found.with_format("numpy"))
        shuffled = opened[0].shuffle(seed=1, keep_in_memory=True)
        return measured(_padded(batch["tokens"]) for batch in shuffled.iter(_ROWS))

    return read


def _pyarrow(path: Path) -> Callable[[], Pass]:
    def batches() -> Iterator[int]:
        import pyarrow.parquet

        random = np.random.default_rng(1)
        file = pyarrow.parquet.ParquetFile(path)
        for group in random.permutation(file.num_row_groups).tolist():
            table = file.read_row_group(group, use_threads=False)
            table = table.take(random.permutation(len(table)))
            for batch in table.to_batches(max_chunksize=_ROWS):
                yield _padded(batch.column("tokens").to_numpy(zero_copy_only=False))

    return lambda: measured(batches())
