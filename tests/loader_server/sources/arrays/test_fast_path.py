"""A mixture of columns is gathered to the bytes of building sample by sample: padded, packed, culprits masked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from loader_server.building.builder import Builder
from loader_server.building.quarantine import Quarantine
from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from tests.support.in_memory import Steps, memory_want

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 900
JOB = """
[job]
name = "mixed"
[streams.train]
length = "tokens"
budget = "1024 tokens"
{batching}
weights = [1, 2]
cycle = [true, false]
[[streams.train.sources]]
source = "numpy"
paths = ["arrays"]
{keys}
[[streams.train.sources]]
source = "parquet"
paths = ["rows.parquet"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    lengths = random.integers(1, 40, ROWS)
    offsets = np.append(0, np.cumsum(lengths))
    values = random.integers(1, 99, offsets[-1], np.int32)
    (tmp_path / "arrays").mkdir()
    for name, array in {"tokens_values": values, "tokens_offsets": offsets, "extra": np.arange(ROWS)}.items():
        np.save(tmp_path / "arrays" / name, array)
    tokens = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values + 100))
    pyarrow.parquet.write_table(pa.table({"tokens": tokens}), tmp_path / "rows.parquet", row_group_size=70)
    return tmp_path


@pytest.mark.parametrize(("batching", "keys"), [("shapes = 4", ""), ('packing = "128 tokens"', 'keys = ["tokens"]')])
def test_gathering_gives_the_bytes_of_building_sample_by_sample(folder: Path, batching: str, keys: str) -> None:
    (folder / "job.toml").write_text(JOB.format(batching=batching, keys=keys))
    job = JobFile(folder / "job.toml")
    index_streams(job, ["train"])
    stream = Stream(job, "train")
    gathering, other = (Builder(stream, Quarantine(folder / "quarantine"), Steps()) for _ in range(2))
    assert gathering._gathering is not None
    other._gathering = None
    for builder in (gathering, other):
        builder.culprits.find(stream.identity(12))
        builder.culprits.find(stream.identity(ROWS + 50))
    masked = 0
    for number in range(gathering.batches(0, 1)):
        want, made = replace(memory_want(), number=number), []
        for builder in (gathering, other):
            prepared = builder.prepare(want)
            built = builder.build(want, prepared, np.full(prepared.layout.nbytes, 0xA5, np.uint8))
            made.append((built.digest, built.rows, built.masked, built.reason, built.sample_cells))
        assert made[0] == made[1]
        masked += made[0][2]
    assert masked == 2
    stream.close()
