"""An Audio column of Parquet files to log-mel, beside `datasets` with soundfile in a torch DataLoader.

Rules: both sides make the same features, by the stream's own numpy transform, shuffle, pad, and leave arrays that can
be used. The peer reads bytes (`decode=False`), as users do who have no torchcodec, from the memory-mapped copy that
`datasets` makes before the clock runs.
"""

from __future__ import annotations

import io
import json
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

    from tests.benchmarks.sources.row import Pass

__all__ = ["rows"]

_SAMPLES, _SHARDS, _RATE, _ROWS = 5000, 2, 16000, 16
#: Rows of a group, as `datasets` writes recordings.
_GROUP = 100
_JOB = f"""
[job]
name = "bench"
workers = 1
listen = "tcp://127.0.0.1:0"

[streams.train]
source = "parquet"
paths = ["data"]
columns = ["audio"]
transforms = ["logmel"]
length = "audio"
budget = "{_ROWS * 260} frames"

[streams.train.logmel]
rate = {_RATE}
bands = 80
"""


def rows(folder: Path, rounds: int) -> list[Row]:
    """FLAC and WAV, 2.4 s on average."""
    return [row for suffix in ("flac", "wav") for row in _rows(suffix, folder / suffix, rounds)]


def _rows(suffix: str, folder: Path, rounds: int) -> list[Row]:
    _write(folder / "data", suffix)
    (folder / "job.toml").write_text(_JOB)
    job = JobFile(folder / "job.toml")
    index_streams(job, ["train"], processes=1)
    with stoker(folder / "job.toml") as ours:
        return interleaved(f"hub_audio_{suffix}", {"stoker": ours, "datasets + soundfile": _peer(folder, job)}, rounds)


def _write(folder: Path, suffix: str) -> None:
    """Shards as the hub has them, without `datasets`, which need not be there."""
    import pyarrow as pa
    import pyarrow.parquet

    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for shard in range(_SHARDS):
        files = []
        for number, seconds in enumerate(draw.gamma(6, 0.4, _SAMPLES // _SHARDS).clip(0.4, 8)):
            file = io.BytesIO()
            # A gliding tone in noise, so that FLAC has something to predict, as in speech.
            time = np.arange(int(seconds * _RATE)) / _RATE
            audio = 0.3 * np.sin(2 * np.pi * (200 + 50 * time) * time) + draw.normal(0, 0.01, len(time))
            soundfile.write(file, audio, _RATE, format=suffix, subtype="PCM_16")
            files.append({"bytes": file.getvalue(), "path": f"{number}.{suffix}"})
        about = json.dumps({"info": {"features": {"audio": {"sampling_rate": _RATE, "_type": "Audio"}}}})
        column = pa.array(files, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
        table = pa.table({"audio": column}).replace_schema_metadata({"huggingface": about})
        name = f"train-{shard:05}-of-{_SHARDS:05}.parquet"
        pyarrow.parquet.write_table(table, folder / name, row_group_size=_GROUP)


def _peer(folder: Path, job: JobFile) -> Callable[[], Pass]:
    opened: list[Callable[[], Pass]] = []

    def read() -> Pass:
        import datasets  # a peer that may not be there

        if not opened:
            datasets.disable_progress_bars()
            paths = sorted(str(path) for path in (folder / "data").iterdir())
            found = datasets.Dataset.from_parquet(paths, cache_dir=str(folder / "datasets"))
            found = found.cast_column("audio", datasets.Audio(decode=False))
            opened.append(torch_loader(len(found), _ROWS, _features(job, found)))
        return opened[0]()

    return read


def _features(job: JobFile, found: Any) -> Callable[[int], Any]:
    """The stream's own transform, so that only reading, and what becomes of the features, are compared."""
    (step,) = Stream(job, "train").chain.steps

    def read(place: int) -> Any:
        audio, rate = soundfile.read(io.BytesIO(found[place]["audio"]["bytes"]), dtype="float32")
        sample = {"audio": audio, "audio_rate": rate}
        step.call(sample, np.random.default_rng(0) if step.refusing is None else step.refusing)
        return sample["audio"]

    return read
