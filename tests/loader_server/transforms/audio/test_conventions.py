"""`logmel` and `mfcc` give the numbers that Kaldi, librosa and torchaudio give for the same recording."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_server.transforms.audio.logmel import LogMelSettings, LogMelTransform
from loader_server.transforms.audio.mfcc import Mfcc, MfccSettings
from loader_server.transforms.chain import Chain
from shared.audio.conventions import NAMED
from shared.errors import SettingsError
from tests.support.golden_features import golden_cases

RNG = np.random.default_rng(0)
CASES = golden_cases()


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_of_the_package(name):
    transform, said, audio, wanted = CASES[name]
    made = {"audio": audio, "audio_rate": said["rate"]}
    call = LogMelTransform(LogMelSettings(**said)) if transform == "logmel" else Mfcc(MfccSettings(**said))
    call(made, RNG)
    assert made["audio"].shape == wanted.shape
    assert made["audio"].dtype == np.float32
    assert np.abs(made["audio"] - wanted).max() < 1e-3  # of 40 (Kaldi) to 130 (decibels); cepstra reach 600


def test_each_convention_is_held_against_its_package():
    """Over silence as well, where floors and ranges decide."""
    assert {(said["convention"], transform) for transform, said, _, _ in CASES.values()} == {
        (name, transform) for name in NAMED for transform in ("logmel", "mfcc")
    }
    for _, _, audio, wanted in CASES.values():
        assert not audio[-900:].any()
        assert (wanted[-1] == wanted[-2]).mean() > 0.9


def framed(frames, transform=LogMelTransform, kind=LogMelSettings, rate=8000, **said):
    ready = transform(kind(rate=8000, bands=8, low_hz=0.0, **said))
    sample = {"audio": np.linspace(-1, 1, frames, dtype=np.float32), "audio_rate": rate}
    ready(sample, RNG)
    lengths = {"audio": np.array([frames]), "audio_rate": np.array([rate])}
    return sample["audio"], ready.outputs.lengths["audio"](lengths)[0]


@given(
    frames=st.integers(0, 3000),
    convention=st.sampled_from(NAMED),
    window=st.sampled_from([0.02, 0.025, 0.0251, 0.032]),
    hop=st.sampled_from([0.005, 0.01, 0.0125]),
    rate=st.sampled_from([8000, 11_025, 16_000]),
)
@settings(max_examples=60)
def test_there_are_as_many_frames_as_the_declared_length(frames, convention, window, hop, rate):
    made, declared = framed(frames, convention=convention, window=window, hop=hop, rate=rate)
    assert made.shape == (declared, 8)
    assert np.isfinite(made).all()
    cepstra, foretold = framed(
        frames, Mfcc, MfccSettings, coefficients=5, convention=convention, window=window, hop=hop
    )
    assert cepstra.shape == (foretold, 5)


@pytest.mark.parametrize(
    ("convention", "samples", "frames"),
    [("kaldi", 1, 1), ("kaldi", 279, 1), ("kaldi", 280, 2), ("librosa", 1, 1), ("librosa", 79, 1), ("librosa", 80, 2)],
)
def test_whole_windows_or_frames_around_each_hop(convention, samples, frames):
    assert len(framed(samples, convention=convention)[0]) == frames


def test_the_audio_that_came_in_is_left_alone():
    for convention in NAMED:
        sample = {"audio": np.linspace(-1, 1, 500, dtype=np.float32), "audio_rate": 8000}
        audio, before = sample["audio"], sample["audio"].copy()
        LogMelTransform(LogMelSettings(rate=8000, convention=convention))(sample, RNG)
        assert (audio == before).all()


def test_budgets_in_seconds_work_with_cepstra():
    (field,) = Mfcc(MfccSettings(hop=0.0125)).outputs.fields
    assert (field.shape, field.per_second) == ((None, 13), 80.0)


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("logmel", {"convention": "htk"}, r'convention: expected one of "kaldi", "librosa", "torchaudio", got .htk.'),
        ("mfcc", {"convention": "kaldy"}, r'"torchaudio", perhaps "kaldi", got .kaldy.'),
        (
            "mfcc",
            {"coefficients": 24},
            r"mfcc, coefficients: expected at most 23 coefficients, as many as bands, got 24",
        ),
        ("mfcc", {"window": 25}, r"mfcc, window: expected an amount with its unit"),
        ("mfcc", {"high_hz": 9000}, r"mfcc, low_hz and high_hz: expected low_hz < high_hz <= 8000"),
    ],
)
def test_bad_settings(name, table, message):
    with pytest.raises(SettingsError, match=message):
        Chain.make((name,), {name: table}, "job", ())
