"""What ids of 24 bytes cost batches of tokens: one Parquet file, a stream with its ids beside one without.

Rules: both come from the same loaders and are read by the plain iterator in turn, so the ratio is that of all CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.benchmarks.sources.row import interleaved, stoker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.sources.row import Row

__all__ = ["rows"]

_SAMPLES = 2**17
_STREAM = 'paths = ["{path}"]\nlength = "tokens"\nbudget = "4608 tokens"\nshapes = 8\n'


def rows(folder: Path, rounds: int) -> list[Row]:
    """Tokens with ids, as numpy has them, beside tokens alone."""
    from tests.benchmarks.data_path_stoker import make_job

    stream = _STREAM.format(path=_written(folder))
    with_ids = make_job(folder / "ids", f'{stream}strings = ["id"]\n', source="parquet")
    without = make_job(folder / "none", stream, source="parquet")
    with stoker(with_ids) as read, stoker(without) as read_without:
        return interleaved("ids", {"stoker": read, "without ids": read_without}, rounds)


def _written(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet

    random = np.random.default_rng(7)
    lengths = np.maximum(random.lognormal(np.log(44), 0.5, _SAMPLES), 1).astype(np.int64)
    offsets = np.append(0, np.cumsum(lengths))
    tokens = pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(random.integers(1, 32_000, offsets[-1], np.int32))
    )
    ids = [f"utterance-{number:014}" for number in range(_SAMPLES)]
    pyarrow.parquet.write_table(
        pa.table({"tokens": tokens, "id": ids}), folder / "tokens.parquet", row_group_size=2**13
    )
    return folder / "tokens.parquet"
