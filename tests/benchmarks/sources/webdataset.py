"""WebDataset shards of one second of audio (16-bit WAV) and a transcript each, beside the `webdataset` package.

Rules: all sides shuffle, decode, pad, and leave arrays that can be used; the peer decodes by soundfile, as its users do
who have no torchaudio, and pads each batch by numpy.
"""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from tests.benchmarks.sources.row import interleaved, measured, stoker
from tests.support.shards import write_shard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.benchmarks.sources.row import Pass, Row

__all__ = ["rows"]

_SHARDS, _SAMPLES, _BATCH = 8, 500, 32

_JOB = """
[job]
name = "shards"

[streams.train]
source = "webdataset"
paths = ["*.tar"]
length = "audio"
budget = "32 s"
"""


def rows(folder: Path, rounds: int) -> list[Row]:
    """A worker and a trainer, and the package in process."""
    for number in range(_SHARDS):
        write_shard(folder / f"{number}.tar", _members(number))
    (folder / "job.toml").write_text(_JOB)
    index_streams(JobFile(folder / "job.toml"), ["train"], processes=1)
    with stoker(folder / "job.toml") as epoch:
        return interleaved("webdataset", {"stoker": epoch, "webdataset": functools.partial(_peer, folder)}, rounds)


def _members(shard: int) -> Iterator[tuple[str, bytes]]:
    import soundfile  # an extra

    random = np.random.default_rng(shard)
    for number in range(_SAMPLES):
        file = io.BytesIO()
        audio = random.standard_normal(random.integers(4000, 12000)) / 9
        soundfile.write(file, audio, 8000, format="wav", subtype="PCM_16")
        yield f"{shard}/{number:06}.wav", file.getvalue()
        yield f"{shard}/{number:06}.txt", b"what was said"


def _peer(folder: Path) -> Pass:
    import soundfile  # an extra
    import webdataset  # a peer that need not be there

    def decoded(sample: dict[str, Any]) -> tuple[Any, str]:
        return soundfile.read(io.BytesIO(sample["wav"]), dtype="float32")[0], sample["txt"].decode()

    shards = sorted(str(path) for path in folder.glob("*.tar"))
    data = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(2048).map(decoded)
    return measured(len(_padded(batch)) for batch in data.batched(_BATCH, collation_fn=list))


def _padded(samples: list[tuple[Any, str]]) -> Any:
    longest = max(len(audio) for audio, _ in samples)
    made = np.zeros((len(samples), longest), np.float32)
    for row, (audio, _) in enumerate(samples):
        made[row, : len(audio)] = audio
    return made
