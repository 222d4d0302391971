"""Whole recordings of every format hold what soundfile reads of them, to the last bit; FLAC costs no seeking."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from loader_server.sources.audio.audio_files import decoded_audio
from shared.errors import SampleError

FORMATS = {
    "flac": ("FLAC", "PCM_16"),
    "24 bits": ("FLAC", "PCM_24"),
    "ogg": ("OGG", "VORBIS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "wav": ("WAV", "PCM_24"),
}


def recording(name: str, channels: int = 2) -> bytes:
    """A few blocks of noise."""
    container, subtype = FORMATS[name]
    noise = np.random.default_rng(1).uniform(-0.3, 0.3, (20_000, channels))
    soundfile.write(file := io.BytesIO(), noise, 8000, format=container, subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("name", FORMATS)
def test_a_recording_is_what_soundfile_reads(name: str, channels: int) -> None:
    raw = recording(name, channels)
    wanted, rate = soundfile.read(io.BytesIO(raw), dtype="float32", always_2d=True)
    audio, got_rate = decoded_audio(raw, "here")
    assert (len(audio), got_rate) == (len(wanted), rate)
    assert len(audio) >= 20_000
    assert audio.tobytes() == wanted.mean(axis=1, dtype=np.float32).tobytes()
    last, _ = decoded_audio(raw, "here", channels - 1)
    assert last.tobytes() == wanted[:, -1].tobytes()


def test_a_recording_is_read_without_seeking(monkeypatch: pytest.MonkeyPatch) -> None:
    """libFLAC decodes again for each."""
    asked = []
    monkeypatch.setattr(soundfile.SoundFile, "seek", lambda *asked_for: asked.append(asked_for))
    decoded_audio(recording("flac"), "here")
    assert asked == []


def test_a_recording_that_is_cut_short_is_refused() -> None:
    raw = recording("flac", 1)
    with pytest.raises(SampleError, match=r"here: expected WAV, FLAC, OGG or MP3, got .*Mend or remove the file"):
        decoded_audio(raw[: len(raw) // 2], "here")


def test_bytes_that_are_no_recording_are_refused() -> None:
    with pytest.raises(SampleError, match="here: expected WAV, FLAC, OGG or MP3, got "):
        decoded_audio(b"none of this is sound" * 10, "here")
