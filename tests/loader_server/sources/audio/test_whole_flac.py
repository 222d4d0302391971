"""FLAC by miniaudio: the samples of libsndfile, bit for bit, and nothing that is not whole."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_server.sources.audio import whole_flac as module
from loader_server.sources.audio.audio_files import audio_versions
from loader_server.sources.audio.whole_flac import whole_flac


@pytest.fixture(autouse=True)
def _has_library() -> None:
    pytest.importorskip("miniaudio")


def written(frames: int = 5000, channels: int = 1, subtype: str = "PCM_16", rate: int = 16000) -> bytes:
    file, draw = io.BytesIO(), np.random.default_rng(frames)
    sound = np.sin(np.arange(frames) / 9)[:, None] * draw.uniform(0.1, 1, (1, channels))
    soundfile.write(file, sound + draw.normal(0, 0.01, (frames, channels)), rate, format="flac", subtype=subtype)
    return file.getvalue()


def by_libsndfile(raw: bytes) -> Any:
    return soundfile.read(io.BytesIO(raw), dtype="float32", always_2d=True)


@pytest.mark.parametrize("subtype", ["PCM_S8", "PCM_16", "PCM_24"])
@pytest.mark.parametrize(("frames", "channels", "rate"), [(1, 1, 8000), (5000, 1, 16000), (9000, 2, 44100), (70, 8, 1)])
def test_samples_are_those_of_libsndfile(frames: int, channels: int, rate: int, subtype: str) -> None:
    raw = written(frames, channels, subtype, rate)
    decoded = whole_flac(raw, 0)
    assert decoded is not None
    samples, own_rate = by_libsndfile(raw)
    assert decoded[1] == own_rate == rate
    assert decoded[0].dtype == np.float32
    assert decoded[0].tobytes() == samples.tobytes()
    assert decoded[0].flags.writeable, "as what transforms may change"


def test_its_version_counts_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert audio_versions().keys() == {"soundfile", "libsndfile", "miniaudio"}
    monkeypatch.setattr(module, "_library", lambda: None)
    assert audio_versions().keys() == {"soundfile", "libsndfile"}
    assert whole_flac(written(), 0) is None


def test_what_is_no_whole_flac_file_is_left_to_libsndfile() -> None:
    raw = written()
    assert whole_flac(b"", 0) is None
    assert whole_flac(b"fLaC", 0) is None
    assert whole_flac(raw[:-50], 0) is None
    assert whole_flac(raw[:60], 0) is None
    assert whole_flac(b"RIFF" + raw[4:], 0) is None
    without_count = bytearray(raw)
    without_count[21] &= 0xF0
    without_count[22:26] = bytes(4)
    assert whole_flac(bytes(without_count), 0) is None


def test_one_that_would_be_too_large_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = written(5000, 2)
    assert whole_flac(raw, 40_000) is not None
    assert whole_flac(raw, 39_999) is None
    monkeypatch.setattr(module, "_MOST_BYTES", 39_999)
    assert whole_flac(raw, 0) is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_whatever_stands_in_the_file_samples_are_those_of_libsndfile_or_none(changes: list[tuple[int, int]]) -> None:
    raw = bytearray(written(3000, 2))
    for at, byte in changes:
        raw[at % len(raw)] = byte
    decoded = whole_flac(bytes(raw), 2**20)
    if decoded is not None:
        samples, rate = by_libsndfile(bytes(raw))
        assert (decoded[0].tobytes(), decoded[1]) == (samples.tobytes(), rate)
