"""Where frames lie by each convention, and which settings leave none."""

from __future__ import annotations

import pytest

from shared.audio.conventions import CONVENTIONS, OWN
from shared.audio.features import MelFrames, MelSettings, mel_frames
from shared.errors import SettingsError

SAID = MelSettings(rate=8000, window=0.025, hop=0.01, low_hz=30.0)


def test_frames_are_filled_up_or_stand_around_each_hop():
    assert mel_frames(SAID, OWN) == MelFrames(window=200, hop=80, fft=256, margin=0, edges_hz=(30.0, 4000.0))
    assert mel_frames(SAID, CONVENTIONS["kaldi"]) == mel_frames(SAID, OWN)
    centred = MelFrames(window=200, hop=80, fft=200, margin=100, edges_hz=(30.0, 4000.0))
    assert mel_frames(SAID, CONVENTIONS["librosa"]) == mel_frames(SAID, CONVENTIONS["torchaudio"]) == centred


def test_a_power_of_two_is_not_filled_up():
    assert mel_frames(MelSettings(rate=8000, window=0.032), OWN).fft == 256


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"window": 0.0001}, "a window of at least 2 samples and a hop of at least 1 at 8000 Hz, got 1 and 80"),
        ({"hop": 0.00001}, "got 200 and 0"),
        ({"low_hz": 4000.0}, "expected low_hz < high_hz <= 4000, half the rate, got low_hz = 4000 and high_hz = 4000"),
        ({"high_hz": 4001.0}, "got low_hz = 20 and high_hz = 4001"),
    ],
)
def test_settings_without_frames_or_bands_are_refused(said, message):
    with pytest.raises(SettingsError, match=message):
        mel_frames(MelSettings(rate=8000, **said), OWN)
