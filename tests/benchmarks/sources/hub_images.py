"""An Image column of Parquet files, resized to 224 x 224, beside Pillow in a torch DataLoader.

Rules: both sides decode and resize by the same Pillow, in one process each, and give equal pixels, which is looked at
before the clock runs; both shuffle and stack. The peer has the bytes of its files in memory already.
"""

from __future__ import annotations

import io
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

_SAMPLES, _ROWS, _GROUP, _SIZE = 1000, 32, 100, (224, 224)
_JOB = f"""
[job]
name = "bench"
workers = 1
listen = "tcp://127.0.0.1:0"

[streams.train]
source = "parquet"
paths = ["data.parquet"]
rows = {_ROWS}
"""
#: By the source while it decodes, and by a transform, which takes any size.
_HOW = {
    "source": f"resize = {list(_SIZE)}\n",
    "transform": 'any_size = true\ntransforms = ["resize_image"]\n'
    f"[streams.train.resize_image]\nsize = {list(_SIZE)}\n",
}


def rows(folder: Path, rounds: int) -> list[Row]:
    """JPEG files of about 500 x 375 pixels, each of another size."""
    folder.mkdir(parents=True, exist_ok=True)
    files = _write(folder)
    return [row for how in _HOW for row in _rows(how, folder, files, rounds)]


def _rows(how: str, folder: Path, files: list[bytes], rounds: int) -> list[Row]:
    """One way to resize beside the peer."""
    (folder / "job.toml").write_text(_JOB + _HOW[how])
    job = JobFile(folder / "job.toml")
    index_streams(job, ["train"], processes=1)
    stream = Stream(job, "train")
    for sample, raw in enumerate(stream.source.read(range(_ROWS))):
        assert np.array_equal(stream.values(0, sample, raw)["image"], _decoded(files[sample])), sample
    stream.close()
    with stoker(folder / "job.toml") as ours:
        return interleaved(f"hub_images_{how}", {"stoker": ours, "Pillow + torch": _peer(files)}, rounds)


def _write(folder: Path) -> list[bytes]:
    import pyarrow as pa
    import pyarrow.parquet
    from PIL import Image

    draw = np.random.default_rng(0)
    files = []
    for rows, columns in draw.integers((325, 450), (426, 551), (_SAMPLES, 2)):
        # Coarse noise made smooth, so that JPEG has as much to do as with photographs.
        coarse = Image.fromarray(draw.integers(0, 256, (rows // 12, columns // 12, 3), np.uint8))
        file = io.BytesIO()
        coarse.resize((int(columns), int(rows)), Image.Resampling.BICUBIC).save(file, "jpeg", quality=90)
        files.append(file.getvalue())
    column = pa.array(
        [{"bytes": raw, "path": None} for raw in files], pa.struct({"bytes": pa.binary(), "path": pa.string()})
    )
    pyarrow.parquet.write_table(pa.table({"image": column}), folder / "data.parquet", row_group_size=_GROUP)
    return files


def _decoded(raw: bytes) -> Any:
    from PIL import Image

    resized = Image.open(io.BytesIO(raw)).convert("RGB").resize(_SIZE[::-1], Image.Resampling.BILINEAR)
    return np.array(resized)


def _peer(files: list[bytes]) -> Callable[[], Pass]:
    return torch_loader(len(files), _ROWS, lambda place: _decoded(files[place]), padded=False)
