"""Features in an HDF5 file, ragged by offsets: h5py, row by row, in a torch DataLoader reads the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from tests.benchmarks.sources.row import Row, interleaved, stoker
from tests.benchmarks.sources.torch_peer import torch_loader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["rows"]

_SAMPLES = 3000
_BANDS = 80
_ROWS = 16
_KINDS: dict[str, dict[str, Any]] = {"hdf5": {}, "hdf5_chunks": {"chunks": (256, _BANDS), "compression": "gzip"}}
_JOB = f"""
[job]
name = "bench"
workers = 1
listen = "tcp://127.0.0.1:0"

[streams.train]
source = "hdf5"
paths = ["train.h5"]
length = "audio"
budget = "{_ROWS * 400} frames"
"""


def rows(folder: Path, rounds: int) -> list[Row]:
    """A dataset in one piece, and one in compressed chunks."""
    return [row for name, how in _KINDS.items() for row in _rows(name, how, folder / name, rounds)]


def _rows(name: str, how: dict[str, Any], folder: Path, rounds: int) -> list[Row]:
    folder.mkdir()
    _make(folder / "train.h5", how)
    (folder / "job.toml").write_text(_JOB)
    index_streams(JobFile(folder / "job.toml"), ["train"], processes=1)
    with stoker(folder / "job.toml") as ours:
        theirs = torch_loader(_SAMPLES, _ROWS, _row_reader(folder / "train.h5"))
        return interleaved(name, {"stoker": ours, "torch DataLoader + h5py": theirs}, rounds)


def _make(path: Path, how: dict[str, Any]) -> None:
    import h5py  # other benchmarks do without

    draw = np.random.default_rng(0)
    offsets = np.cumsum([0, *draw.gamma(4, 60, _SAMPLES).astype(int).clip(20, 1200)])
    with h5py.File(path, "w") as file:
        values = draw.normal(size=(offsets[-1], _BANDS)).astype(np.float32)
        file.create_dataset("audio_values", data=values, **how)
        file["audio_offsets"] = offsets


def _row_reader(path: Path) -> Callable[[int], Any]:
    """Opens the file in the process that reads, once, as h5py's users are told to."""
    opened: list[Any] = []

    def read(place: int) -> Any:
        if not opened:
            import h5py  # other benchmarks do without

            file = h5py.File(path)
            opened[:] = file["audio_values"], file["audio_offsets"][:]
        values, offsets = opened
        return values[offsets[place] : offsets[place + 1]]

    return read
