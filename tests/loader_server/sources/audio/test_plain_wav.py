"""The plainest WAV files are read as libsndfile reads them; all others are left to it."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from loader_server.sources.audio.plain_wav import plain_wav


def _wav(samples: list[int], *, rate: int = 8000, **how: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.array(samples, np.int16), rate, **{"format": "WAV", "subtype": "PCM_16", **how})
    return file.getvalue()


@given(st.lists(st.integers(-(2**15), 2**15 - 1), min_size=1, max_size=50), st.sampled_from([8000, 16_000, 44_100]))
def test_samples_are_libsndfiles_bit_for_bit(samples: list[int], rate: int) -> None:
    raw = _wav(samples, rate=rate)
    found = plain_wav(raw)
    assert found is not None
    wanted, wanted_rate = soundfile.read(io.BytesIO(raw), dtype="float32")
    assert found[0].dtype == np.float32
    assert (found[0].tobytes(), found[1]) == (wanted.tobytes(), wanted_rate)


@pytest.mark.parametrize("how", [{"subtype": "PCM_24"}, {"subtype": "FLOAT"}, {"format": "FLAC"}, {"format": "WAVEX"}])
def test_other_formats_are_left_alone(how: dict[str, str]) -> None:
    assert plain_wav(_wav([1, 2, 3], **how)) is None


def test_two_channels_are_left_alone() -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros((4, 2), np.int16), 8000, format="WAV", subtype="PCM_16")
    assert plain_wav(file.getvalue()) is None


@given(st.integers(0, 47), st.binary(max_size=3))
def test_what_is_cut_or_has_something_behind_it_is_left_alone(kept: int, more: bytes) -> None:
    raw = _wav([1, 2, 3])
    assert plain_wav(raw[:kept]) is None
    assert (plain_wav(raw + more) is None) == bool(more)
