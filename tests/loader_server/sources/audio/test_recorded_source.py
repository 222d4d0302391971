"""Batches of recordings that are decoded and transformed at once: the bytes that taking one after another gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.building.builder import Builder
from loader_server.building.quarantine import Quarantine
from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.sources.audio import recordings
from loader_server.sources.audio.recorded_source import RecordedSource
from loader_server.stream import Stream
from tests.support.corpora import make_corpus
from tests.support.in_memory import Steps, memory_want

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

JOB = """
[job]
name = "tones"
seed = 7
listen = "tcp://127.0.0.1:*"

[streams.train]
source = "manifest"
paths = ["csv.csv"]
transforms = ["logmel", "characters"]
length = "audio"
budget = "2 s"
shapes = 3

[streams.train.logmel]
rate = 8000

[streams.train.characters]
unknown = "mask"
"""


@pytest.fixture
def open_job(tmp_path: Path) -> Iterator[Callable[..., Stream]]:
    """Opens the stream of a job with recordings of this kind, after its manifest was changed."""
    streams: list[Stream] = []

    def opened(suffix: str = "wav", change: Callable[[str], str] = str) -> Stream:
        manifest = make_corpus(tmp_path, samples=30, suffix=suffix)
        manifest.write_text(change(manifest.read_text()))
        (path := tmp_path / "job.toml").write_text(JOB)
        index_streams(JobFile(path), ["train"], processes=1)
        streams.append(Stream(JobFile(path), "train"))
        return streams[-1]

    yield opened
    for stream in streams:
        stream.close()


def built(stream: Stream, folder: Path) -> list[tuple[bytes, int, int]]:
    """Of each batch its bytes, how many rows are masked, and how many samples were decoded."""
    builder = Builder(stream, Quarantine(folder / "quarantine.jsonl"), Steps())
    found = []
    for number in range(builder.batches(0, 1)):
        prepared = builder.prepare(want := memory_want(number))
        payload = np.full(prepared.layout.nbytes, 0xA5, np.uint8)
        made = builder.build(want, prepared, payload)
        found.append((payload.tobytes(), made.masked, made.decoded))
    return found


def watched(stream: Stream) -> list[bool]:
    """For each batch whether all of its samples are decoded at once, as soon as it is built."""
    decode_all, noted = stream.source.decode_all, list[bool]()

    def decode(samples: Any, raw: Any) -> Any:
        columns = decode_all(samples, raw)
        noted.append(columns is not None)
        return columns

    stream.source.decode_all = decode  # type: ignore[method-assign]
    return noted


def one_by_one(stream: Stream) -> None:
    stream.source.decode_all = lambda _samples, _raw: None  # type: ignore[method-assign]


def with_stretches(manifest: str) -> str:
    head, *rows = manifest.splitlines()
    return "\n".join([f"{head},offset,duration", *(f"{row},0.01,0.05" for row in rows), ""])


def with_one_flac(manifest: str) -> str:
    return manifest.replace("clips/00003.wav", "clips/00004.flac")


@pytest.mark.parametrize(
    ("suffix", "change"), [("wav", str), ("flac", str), ("wav", with_one_flac), ("wav", with_stretches)]
)
def test_recordings_are_decoded_at_once_and_give_the_same_bytes(
    open_job: Callable[..., Stream], tmp_path: Path, suffix: str, change: Callable[[str], str]
) -> None:
    make_corpus(tmp_path, samples=5, suffix="flac")
    stream = open_job(suffix, change)
    noted = watched(stream)
    together = built(stream, tmp_path)
    assert noted == [True] * len(together) != []
    assert sum(decoded for _, _, decoded in together) == 30
    one_by_one(stream)
    assert built(stream, tmp_path) == together


def test_one_sample_that_cannot_be_used_is_masked_alone(open_job: Callable[..., Stream], tmp_path: Path) -> None:
    stream = open_job(change=lambda text: text.replace("00007.wav,", "00007.wav,ß"))
    together = built(stream, tmp_path)
    assert sum(masked for _, masked, _ in together) == 1
    assert (tmp_path / "quarantine.jsonl").read_text().count("unknown_character") == 1
    one_by_one(stream)
    assert built(stream, tmp_path) == together


def test_batches_that_take_long_are_decoded_one_by_one(
    open_job: Callable[..., Stream], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = open_job()
    noted = watched(stream)
    together = built(stream, tmp_path)
    monkeypatch.setattr(recordings, "_MOST_AT_ONCE", 11_000)
    del noted[:]
    assert built(stream, tmp_path) == together
    assert set(noted) == {True, False}


def test_stretches_that_have_to_be_sought_are_decoded_one_by_one(
    open_job: Callable[..., Stream], tmp_path: Path
) -> None:
    stream = open_job("flac", with_stretches)
    noted = watched(stream)
    built(stream, tmp_path)
    assert set(noted) == {False}


class OfSomeSpeakers(RecordedSource):
    """Says of some samples only who speaks."""

    class _recordings:
        decode_all = staticmethod(
            lambda samples, raw: ([np.zeros(1, np.float32)] * len(samples), [8000] * len(samples))
        )

    def values_beside_audio(self, sample: int) -> dict[str, Any]:
        return {"text": "a"} | ({"speaker": "b"} if sample % 2 else {})


@pytest.mark.parametrize("samples", [[0, 1], [1, 0]])
def test_what_only_some_samples_have_is_not_lost(samples: list[int]) -> None:
    source = object.__new__(OfSomeSpeakers)
    assert source.decode_all(samples, [b"", b""]) is None
    together = source.decode_all([1, 3], [b"", b""])
    assert together is not None
    assert (together["speaker"], together["audio_rate"]) == (["b", "b"], [8000, 8000])
