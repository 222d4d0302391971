"""Recordings of a manifest to log-mel: soundfile and the same numpy transform in a torch DataLoader make the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import soundfile

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from tests.benchmarks.sources.row import Row, interleaved, stoker
from tests.benchmarks.sources.torch_peer import torch_loader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["rows"]

#: Enough that a pass takes a second: the first epoch has one.
_FILES = 5000
_RATE = 8000
_ROWS = 16
_JOB = f"""
[job]
name = "bench"
workers = 1
listen = "tcp://127.0.0.1:0"

[streams.train]
source = "manifest"
paths = ["train.csv"]
transforms = ["logmel"]
length = "audio"
budget = "{_ROWS * 260} frames"

[streams.train.logmel]
rate = {_RATE}
bands = 80
"""


def rows(folder: Path, rounds: int) -> list[Row]:
    """WAV, and FLAC."""
    return [row for suffix in ("wav", "flac") for row in _rows(suffix, folder / suffix, rounds)]


def _rows(suffix: str, folder: Path, rounds: int) -> list[Row]:
    folder.mkdir()
    names = _make(folder, suffix)
    (folder / "job.toml").write_text(_JOB)
    job = JobFile(folder / "job.toml")
    index_streams(job, ["train"], processes=1)
    with stoker(folder / "job.toml") as ours:
        theirs = torch_loader(_FILES, _ROWS, _reader(job, [str(folder / name) for name in names]))
        return interleaved(f"manifest_{suffix}", {"stoker": ours, "torch DataLoader + soundfile": theirs}, rounds)


def _make(folder: Path, suffix: str) -> list[str]:
    draw = np.random.default_rng(0)
    names = [f"{place:05}.{suffix}" for place in range(_FILES)]
    for name, seconds in zip(names, draw.gamma(6, 0.4, _FILES).clip(0.4, 8), strict=True):
        soundfile.write(folder / name, draw.uniform(-0.3, 0.3, int(seconds * _RATE)), _RATE, subtype="PCM_16")
    (folder / "train.csv").write_text("\n".join(["audio", *names]))
    return names


def _reader(job: JobFile, paths: list[str]) -> Callable[[int], Any]:
    """The stream's own transform, so that only reading, and what becomes of the features, are compared."""
    stream = Stream(job, "train")
    (step,) = stream.chain.steps

    def read(place: int) -> Any:
        audio, rate = soundfile.read(paths[place], dtype="float32")
        sample = {"audio": audio, "audio_rate": rate}
        step.call(sample, np.random.default_rng(0) if step.refusing is None else step.refusing)
        return sample["audio"]

    return read
