"""Recordings of a low rate: the bands that are said to get nothing get nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.transforms.audio.low_rates import LowRate, low_rates
from loader_server.transforms.chain import Chain

if TYPE_CHECKING:
    from numpy.typing import NDArray


def found(rates: list[int], *names: str, **tables: dict[str, Any]) -> list[LowRate]:
    return list(low_rates(Chain.make(names, tables, "job", ()), np.array(rates)))


def energies(own_rate: int, **settings: Any) -> NDArray[np.float64]:
    """The mean logarithm of each band of white noise that was recorded at this rate."""
    noise = np.random.default_rng(0).standard_normal(4 * own_rate).astype(np.float32) / 10
    (step,) = Chain.make(("logmel",), {"logmel": settings}, "job", ()).steps
    sample = {"audio": noise, "audio_rate": own_rate}
    step.call(sample, np.random.default_rng(0))
    return sample["audio"].mean(axis=0)


@pytest.mark.parametrize(
    "settings", [{}, {"convention": "kaldi"}, {"convention": "torchaudio"}, {"rate": 22_050, "bands": 128}]
)
def test_bands_that_are_said_to_be_empty_have_no_energy_and_the_others_have(settings: dict[str, Any]) -> None:
    (low,) = found([8000] * 3, "logmel", logmel=settings)
    lost_db = 10 / np.log(10) * (energies(settings.get("rate", 16_000), **settings) - energies(8000, **settings))
    if settings.get("convention") == "torchaudio":  # which is in decibels already
        lost_db *= np.log(10) / 10
    first_empty = low.bands - low.empty_bands
    assert low.samples == 3
    assert 0 < low.empty_bands < low.bands / 2
    assert lost_db[first_empty:].min() > 20
    assert lost_db[: first_empty - 2].max() < 20


def test_each_lower_rate_is_told_with_its_samples_and_no_other() -> None:
    rates = [8000, 16_000, 11_025, 8000, 44_100, 0]
    assert [(low.own_rate, low.samples, low.highest_hz) for low in found(rates, "logmel")] == [
        (8000, 2, 4000.0),
        (11_025, 1, 5512.5),
    ]


def test_bands_that_end_below_are_not_empty() -> None:
    assert found([8000], "logmel", logmel={"high_hz": 4000.0}) == []
    assert found([8000], "mfcc", mfcc={"rate": 8000}) == []


def test_cepstra_are_made_of_bands() -> None:
    (low,) = found([8000], "mfcc")
    assert (low.transform, low.bands) == ("mfcc", 23)
    assert 0 < low.empty_bands < 23


def test_a_waveform_has_no_bands_and_what_it_made_is_no_richer() -> None:
    told = found([8000], "waveform", "logmel")
    assert [(low.transform, low.bands) for low in told] == [("waveform", 0), ("logmel", 80)]
    assert [low.transform for low in found([16_000], "waveform", "logmel", waveform={"rate": 8000})] == ["logmel"]
