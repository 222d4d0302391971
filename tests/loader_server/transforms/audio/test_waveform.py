"""`waveform`: audio at one rate, in float32 or in 16 bits."""

import functools

import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st

from loader_server.transforms.audio.waveform import Waveform, WaveformSettings
from loader_server.transforms.chain import Chain
from shared.errors import SettingsError
from shared.wire.batch_layout import Field

RNG = np.random.default_rng(0)
RAW = (Field(key="audio", dtype="float32", shape=(None,), per_second=8000.0),)


def waveform_of(audio, rate=8000, **settings):
    sample = {"audio": audio, "audio_rate": rate}
    Waveform(WaveformSettings(**settings))(sample, RNG)
    return sample


def test_the_numbers_are_those_of_soxr():
    audio = np.random.default_rng(1).normal(0, 0.1, 4000).astype(np.float32)
    made = waveform_of(audio, rate=8000)
    assert (made["audio"] == soxr.resample(audio, 8000, 16_000)).all()
    assert made["audio_rate"] == 16_000


def test_audio_of_that_rate_is_passed_on_as_it_is():
    audio = np.linspace(-1, 1, 99, dtype=np.float32)
    assert waveform_of(audio, rate=8000)["audio"] is not audio
    assert waveform_of(audio, rate=16_000)["audio"] is audio


def test_16_bits_come_out_as_they_were_recorded():
    recorded = np.arange(-(2**15), 2**15).astype(np.int16)
    audio = recorded.astype(np.float32) / 2**15
    before = audio.copy()
    made = waveform_of(audio, rate=16_000, dtype="int16")["audio"]
    assert made.dtype == np.int16
    assert (made == recorded).all()
    assert (audio == before).all()


def test_16_bits_are_rounded_and_cut_at_full_scale():
    loud = np.array([-1.5, -1, 1, 1.5, 2.4 / 2**15, 2.6 / 2**15], np.float32)
    made = waveform_of(loud, rate=16_000, dtype="int16")["audio"]
    assert made.tolist() == [-32768, -32768, 32767, 32767, 2, 3]


@functools.cache
def chain_of(*names):
    """One for all examples: it holds nothing of the samples that went through it."""
    return Chain.make(names, {name: {"rate": 12_000} for name in names}, "job", RAW)


@given(frames=st.integers(0, 3000), file_rate=st.sampled_from([8000, 11025, 16000, 44100]))
def test_it_is_as_long_as_declared_and_later_transforms_know_its_rate(frames, file_rate):
    chain = chain_of("waveform", "logmel")
    sample = {"audio": np.zeros(frames, np.float32), "audio_rate": file_rate}
    made = chain.apply(sample, seed=0, epoch=0, number=0)
    lengths = chain.lengths({"audio": np.array([frames]), "audio_rate": np.array([file_rate])})
    assert len(made["audio"]) == lengths["audio"][0]


@given(frames=st.integers(0, 3000), file_rate=st.sampled_from([8000, 11025, 16000, 44100]))
def test_alone_it_is_as_long_as_declared(frames, file_rate):
    chain = chain_of("waveform")
    sample = {"audio": np.zeros(frames, np.float32), "audio_rate": file_rate}
    made = chain.apply(sample, seed=0, epoch=0, number=0)
    lengths = chain.lengths({"audio": np.array([frames]), "audio_rate": np.array([file_rate])})
    assert len(made["audio"]) == lengths["audio"][0]


def test_budgets_in_seconds_work():
    (field,) = Chain.make(("waveform",), {"waveform": {"rate": 8000, "dtype": "int16"}}, "job", RAW).fields
    assert (field.dtype, field.shape, field.per_second) == ("int16", (None,), 8000)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rate": 10}, r"waveform, rate: expected an integer from 1000 to 384000, got 10\."),
        ({"dtype": "int8"}, r'waveform, dtype: expected one of "float32", "int16", perhaps "int16", got .int8.'),
        ({"rates": 8000}, r'waveform: expected a known setting, perhaps "rate", got "rates"'),
    ],
)
def test_bad_settings(table, message):
    with pytest.raises(SettingsError, match=message):
        Chain.make(("waveform",), {"waveform": table}, "job", RAW)
