"""Features in Kaldi's archives, compressed as recipes make them: kaldiio in a torch DataLoader reads the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from tests.benchmarks.sources.row import Row, interleaved, stoker
from tests.benchmarks.sources.torch_peer import torch_loader

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["rows"]

_UTTERANCES = 3000
_BANDS = 80
_ROWS = 16
_COMPRESSED = 2
_JOB = f"""
[job]
name = "bench"
workers = 1
listen = "tcp://127.0.0.1:0"

[streams.train]
source = "kaldi"
paths = ["data"]
values = "features"
length = "features"
budget = "{_ROWS * 400} frames"
"""


def rows(folder: Path, rounds: int) -> list[Row]:
    """Uncompressed matrices, and compressed ones."""
    return [row for how in ("kaldi", "kaldi_compressed") for row in _rows(how, folder / how, rounds)]


def _rows(name: str, folder: Path, rounds: int) -> list[Row]:
    import kaldiio  # it makes the data, too

    (folder / "data").mkdir(parents=True)
    draw = np.random.default_rng(0)
    lengths = draw.gamma(4, 60, _UTTERANCES).astype(int).clip(20, 1200)
    arrays = {f"u{place:05}": draw.normal(size=(n, _BANDS)).astype(np.float32) for place, n in enumerate(lengths)}
    compression = _COMPRESSED if name.endswith("compressed") else None
    ark, scp = str(folder / "data/feats.ark"), str(folder / "data/feats.scp")
    kaldiio.save_ark(ark, arrays, scp=scp, compression_method=compression)
    (folder / "job.toml").write_text(_JOB)
    index_streams(JobFile(folder / "job.toml"), ["train"], processes=1)
    theirs = kaldiio.load_scp(scp)
    keys = list(theirs)

    def read(place: int) -> Any:
        return np.array(theirs[keys[place]], np.float32)

    with stoker(folder / "job.toml") as ours:
        sides = {"stoker": ours, "torch DataLoader + kaldiio": torch_loader(len(keys), _ROWS, read)}
        return interleaved(name, sides, rounds)
