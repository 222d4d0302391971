"""Seconds become frames: rounded to the nearest, cut half a second after the end, whole files known as such."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from loader_server.sources.audio import stretches
from loader_server.sources.audio.stretches import WHOLE_FILE, AudioStretch, Headers, Stretch
from loader_server.sources.files.opening import Files

WHERE = ("list", 3)


@pytest.fixture
def recording(tmp_path: Path) -> str:
    soundfile.write(tmp_path / "a.wav", np.zeros(8000), 8000)
    return str(tmp_path / "a.wav")


@pytest.mark.parametrize(
    ("stretch", "found"),
    [
        (Stretch(), (WHOLE_FILE, 8000)),
        (Stretch(0, 1.5), (WHOLE_FILE, 8000)),
        (Stretch(0, 0.5), (0, 4000)),
        (Stretch(1.4 / 8000, 2.6 / 8000), (1, 3)),
        (Stretch(1.5 / 8000, 0.5 / 8000), (2, 1)),
        (Stretch(-0.4 / 8000, 0.5), (0, 4000)),
        (Stretch(0.9999, 0.5), (7999, 1)),
        (Stretch(0.75, 0.75), (6000, 2000)),
        (Stretch(0.75, 0.7502), "outside_recording"),
        (Stretch(0.99996, 0.1), "outside_recording"),
        (Stretch(0.5, 0.4 / 8000), "empty_stretch"),
    ],
)
def test_seconds_are_the_nearest_frames(recording: str, stretch: Stretch, found: tuple[int, int] | str) -> None:
    got = Headers(Files(Path(recording).parent)).find(recording, stretch, WHERE)
    if isinstance(got, AudioStretch):
        assert (got.start, got.frames) == found
    else:
        assert ((got.where, got.line), got.reason) == (WHERE, found)


def test_a_header_is_read_once_for_all_stretches_of_a_file(recording: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at, header_of = [], stretches.header_of
    monkeypatch.setattr(stretches, "header_of", lambda path, seen: looked_at.append(path) or header_of(path, seen))
    headers = Headers(Files(Path(recording).parent))
    for start in range(5):
        headers.find(recording, Stretch(start / 10), WHERE)
        headers.find("gone.wav", Stretch(), WHERE)
    assert looked_at == [recording, "gone.wav"]
