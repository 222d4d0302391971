"""`speed_perturb`: faster or slower by a factor that is drawn, never longer than declared."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.transforms.audio.speed_perturb import SpeedPerturb, SpeedPerturbSettings
from loader_server.transforms.chain import Chain
from shared.errors import SettingsError
from shared.wire.batch_layout import Field
from tests.support.corpora import tone

RAW = (Field(key="audio", dtype="float32", shape=(None,), per_second=8000.0),)


def perturbed(audio, *factors, seed=0):
    sample = {"audio": audio, "audio_rate": 8000}
    SpeedPerturb(SpeedPerturbSettings(factors=factors))(sample, np.random.default_rng(seed))
    return sample["audio"]


def chain(factors=(0.9, 1.0, 1.1)):
    return Chain.make(("speed_perturb",), {"speed_perturb": {"factors": list(factors)}}, "job", RAW)


@pytest.mark.parametrize(("factor", "length"), [(0.9, 8889), (1.1, 7273), (0.5, 16_000), (2, 4000)])
def test_a_faster_tone_is_higher_and_shorter(factor, length):
    made = perturbed(tone(3, 8000, 8000), factor)
    assert len(made) == length
    peak = np.abs(np.fft.rfft(made)).argmax() * 8000 / length
    assert peak == pytest.approx((300 + 150 * 3) * factor, abs=2)


def test_the_middle_of_the_tone_is_the_tone_of_that_pitch():
    time = np.arange(9000) / 8000
    made = perturbed(np.sin(2 * np.pi * 700 * time).astype(np.float32), 0.9)
    wanted = np.sin(2 * np.pi * 630 * np.arange(len(made)) / 8000)
    assert np.abs(made - wanted)[500:-500].max() < 1e-4


def test_factor_one_leaves_the_audio_alone():
    audio = tone(3, 800, 8000)
    assert perturbed(audio, 1.0) is audio


def test_each_factor_is_drawn_about_as_often_and_the_same_for_the_same_sample():
    def lengths(made_by, epoch, numbers):
        samples = ({"audio": np.zeros(990, np.float32)} for _ in numbers)
        made = (made_by.apply(one, seed=1, epoch=epoch, number=n) for one, n in zip(samples, numbers, strict=True))
        return [len(one["audio"]) for one in made]

    one = chain()
    made = lengths(one, 0, range(300))
    assert sorted(set(made)) == [900, 990, 1100]
    assert all(70 < made.count(length) < 130 for length in set(made))
    assert lengths(chain(), 0, [17, 4]) == [made[17], made[4]]
    assert lengths(one, 1, range(30)) != made[:30]


@given(
    frames=st.integers(0, 3000),
    factors=st.lists(st.integers(25, 400).map(lambda percent: percent / 100), min_size=1, max_size=4),
    seed=st.integers(0, 9),
)
def test_it_is_never_longer_than_declared_and_the_slowest_just_as_long(frames, factors, seed):
    declared = chain(factors).lengths({"audio": np.array([frames])})["audio"][0]
    assert len(perturbed(np.zeros(frames, np.float32), *factors, seed=seed)) <= declared
    assert len(perturbed(np.zeros(frames, np.float32), min(factors))) == declared


def test_it_keeps_seconds_for_budgets():
    assert chain().fields == RAW


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (
            [],
            r"expected a list with at least one entry, each a number from 0.25 to 4, got \[\]\. It means: one of these",
        ),
        ([0.9, "1"], r"speed_perturb, factors: expected a list .*, got \[0.9, '1'\]"),
        ([0.1], r"each a number from 0.25 to 4, got \[0.1\]"),
        ([True], r"each a number from 0.25 to 4, got \[True\]"),
    ],
)
def test_bad_settings(factors, message):
    with pytest.raises(SettingsError, match=message):
        chain(factors)
