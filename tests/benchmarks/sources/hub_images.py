"""An Image column of Parquet files to pixels of one size, beside `datasets` with Pillow in a torch DataLoader.

Rules: both sides decode JPEG to RGB and resize it by Pillow, bilinear, to the same pixels, which are compared; they
shuffle, and leave arrays that can be used. The peer reads bytes (`decode=False`) from the memory-mapped copy that
`datasets` makes before the clock runs.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from tests.benchmarks.sources.row import Row, interleaved, stoker
from tests.benchmarks.sources.torch_peer import torch_loader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.benchmarks.sources.row import Pass

__all__ = ["rows"]

_SAMPLES, _ROWS, _SIDE, _GROUP = 1500, 32, 224, 100
_JOB = f"""
[job]
name = "bench"
workers = 1
listen = "tcp://127.0.0.1:0"

[streams.train]
source = "parquet"
paths = ["data"]
resize = [{_SIDE}, {_SIDE}]
length = "image"
budget = "{_ROWS * _SIDE} steps"
"""


def rows(folder: Path, rounds: int) -> list[Row]:
    """JPEG of 300 to 500 pixels a side."""
    _write(folder / "data")
    (folder / "job.toml").write_text(_JOB)
    job = JobFile(folder / "job.toml")
    index_streams(job, ["train"], processes=1)
    with stoker(folder / "job.toml") as ours:
        return interleaved("hub_images", {"stoker": ours, "datasets + Pillow": _peer(folder, job)}, rounds)


def _write(folder: Path) -> None:
    """A shard as the hub has it, without `datasets`, which need not be there."""
    import pyarrow as pa
    import pyarrow.parquet
    from PIL import Image

    folder.mkdir(parents=True)
    draw, files = np.random.default_rng(0), []
    for number in range(_SAMPLES):
        height, width = draw.integers(300, 500, 2)
        # Large areas and edges with some noise, as photographs have.
        coarse = Image.fromarray(draw.integers(0, 255, (9, 12, 3), np.uint8)).resize((width, height))
        noisy = np.clip(np.asarray(coarse) + draw.normal(0, 6, (height, width, 3)), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(noisy).save(file, format="jpeg", quality=90)
        files.append({"bytes": file.getvalue(), "path": f"{number}.jpg"})
    about = json.dumps(
        {"info": {"features": {"image": {"_type": "Image"}, "label": {"dtype": "int64", "_type": "Value"}}}}
    )
    column = pa.array(files, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    table = pa.table({"image": column, "label": pa.array(np.arange(_SAMPLES) % 10)})
    table = table.replace_schema_metadata({"huggingface": about})
    pyarrow.parquet.write_table(table, folder / "train-00000-of-00001.parquet", row_group_size=_GROUP)


def _pixels(raw: bytes) -> Any:
    from PIL import Image

    image = Image.open(io.BytesIO(raw)).convert("RGB")
    return np.array(image.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR))


def _peer(folder: Path, job: JobFile) -> Callable[[], Pass]:
    opened: list[Callable[[], Pass]] = []

    def read() -> Pass:
        import datasets  # a peer that may not be there

        if not opened:
            datasets.disable_progress_bars()
            paths = sorted(str(path) for path in (folder / "data").iterdir())
            found = datasets.Dataset.from_parquet(paths, cache_dir=str(folder / "datasets"))
            found = found.cast_column("image", datasets.Image(decode=False))
            _refuse_other_pixels(job, found)
            opened.append(torch_loader(len(found), _ROWS, lambda place: _pixels(found[place]["image"]["bytes"])))
        return opened[0]()

    return read


def _refuse_other_pixels(job: JobFile, found: Any) -> None:
    """Raise an AssertionError unless both sides have the same pixels."""
    source = Stream(job, "train").source
    for sample, raw in enumerate(source.read(range(20))):
        assert np.array_equal(source.decode(sample, raw)["image"], _pixels(found[sample]["image"]["bytes"]))
