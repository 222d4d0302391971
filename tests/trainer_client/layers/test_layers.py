"""Layers make of waveforms what the transforms of loaders make of recordings."""

from __future__ import annotations

import numpy as np
import pytest

from loader_server.transforms.audio.logmel import LogMelSettings, LogMelTransform
from loader_server.transforms.spec_augment import SpecAugmentSettings, SpecAugmentTransform
from shared.audio.conventions import NAMED
from shared.errors import SettingsError
from shared.quick_import import quick_import
from shared.settings.tables import read_table
from trainer_client import layers
from trainer_client.layers import LogMel, SpecAugment

with quick_import():
    import keras
    import tensorflow as tf

CONVENTIONS = (None, *NAMED)
RNG = np.random.default_rng(0)
#: Whole seconds and odd ends, less than a window, one sample, none (a masked row).
LENGTHS = (8000, 4321, 199, 100, 1, 0)


def tabled(convention, **said):
    return {"rate": 8000, "bands": 40, **said, **({"convention": convention} if convention else {})}


def recordings(lengths=LENGTHS, loudness=0.1):
    """A rising tone in noise, loud, then soft, then silence, as 16 bits hold it."""
    rng, time = np.random.default_rng(3), np.arange(max(lengths)) / 8000
    loud = loudness * np.select([time < 0.5, time < 0.8], [1, 0.01], 0)
    sound = loud * (np.sin(2 * np.pi * (200 + 1500 * time) * time) + 0.1 + 0.05 * rng.standard_normal(len(time)))
    return [np.rint(2**15 * sound[:length]).astype(np.int16) for length in lengths]


def padded(rows, dtype="float32", room=0):
    sound = np.zeros((len(rows), room or max(map(len, rows))), dtype)
    for place, row in zip(sound, rows, strict=True):
        place[: len(row)] = row if dtype == "int16" else row.astype(np.float32) / np.float32(2**15)
    return sound, np.array([len(row) for row in rows], np.int32)


def in_loaders(row, table):
    sample = {"audio": row.astype(np.float32) / np.float32(2**15), "audio_rate": 8000}
    LogMelTransform(read_table(LogMelSettings, table, "here"))(sample, RNG)
    return sample["audio"]


def assert_close(made, wanted, convention):
    """Within 1e-4 in log for bands above 1e-6 of the frame's largest; below, energies within 1e-6 of that largest."""
    scale = np.log(10) / 10 if convention in ("librosa", "torchaudio") else 1
    made, wanted = scale * made.astype(np.float64), scale * wanted.astype(np.float64)
    largest = wanted.max(axis=1, keepdims=True)
    high = wanted > largest + np.log(1e-6)
    assert np.abs(made - wanted)[high].max(initial=0) < 1e-4
    assert np.abs(np.exp(made - largest) - np.exp(wanted - largest))[~high].max(initial=0) < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "int16"])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_bands_are_those_of_the_transform(convention, dtype):
    table, rows = tabled(convention, window="25 ms", low_hz=30, high_hz=3900), recordings()
    bands, frames = LogMel(**table)(*padded(rows, dtype))
    assert bands.dtype == tf.float32
    for made, count, row in zip(bands.numpy(), frames.numpy(), rows, strict=True):
        wanted = in_loaders(row, table)
        assert count == len(wanted)
        assert not made[count:].any()
        assert_close(made[:count], wanted, convention)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_row_is_the_same_whatever_stands_behind_and_beside_it(convention):
    (sound, length), layer = padded(recordings(), room=9000), LogMel(**tabled(convention))
    bands, frames = layer(sound, length)
    own = np.arange(9000) < length[:, np.newaxis]
    others, counts = layer(np.where(own, sound, 0.5).astype(np.float32), length)
    np.testing.assert_array_equal(bands, others)
    np.testing.assert_array_equal(frames, counts)
    alone, _ = layer(sound[1:2, : length[1]], length[1:2])
    assert_close(bands[1, : frames[1]].numpy(), alone[0].numpy(), convention)


def test_the_loudest_of_a_row_is_one_of_its_own_frames():
    """The frame behind the last one would have the beep in its middle."""
    beep, table = np.zeros(239, np.int16), tabled("librosa")
    beep[199:] = 30_000 * np.sin(2 * np.pi / 8 * np.arange(40))
    sound, length = padded([beep, *recordings([4000])])
    bands, (frames, _) = LogMel(**table)(sound, length)
    assert_close(bands[0, :frames].numpy(), in_loaders(beep, table), "librosa")


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_batch_without_any_sample_has_no_frames(convention):
    bands, frames = LogMel(**tabled(convention))(np.zeros((3, 500), np.float32), np.zeros(3, np.int32))
    assert not bands.numpy().any()
    assert frames.numpy().tolist() == [0, 0, 0]
    bands, frames = LogMel(**tabled(convention))(np.zeros((2, 0), np.float32), np.zeros(2, np.int32))
    assert not bands.numpy().any()
    assert frames.numpy().tolist() == [0, 0]


def test_odd_windows_need_no_power_of_two():
    table, (row,) = tabled("torchaudio", window="25.125 ms", hop="12.5 ms"), recordings([3000])
    bands, _ = LogMel(**table)(*padded([row]))
    assert_close(bands[0].numpy(), in_loaders(row, table), "torchaudio")


def test_whole_numbers_of_sound_that_is_no_recording_of_16_bits():
    """They are off by half a step of 16 bits: 0.01 in log for bands above 1e-5 of a loud frame's largest."""
    sound = (0.3 * np.sin(np.linspace(0, 900, 8000)) + 0.05 * RNG.standard_normal(8000)).astype(np.float32)
    layer, length = LogMel(rate=8000, bands=40), np.array([8000])
    exact, rounded = (
        layer(one[np.newaxis], length)[0].numpy()
        for one in (sound, np.clip(np.rint(sound * 2**15), -(2**15), 2**15 - 1).astype(np.int16))
    )
    high = exact > exact.max(axis=2, keepdims=True) + np.log(1e-5)
    assert 0 < np.abs(exact - rounded)[high].max() < 0.01


def test_float32_whatever_the_model_computes_in():
    rows = padded(recordings())
    wanted, _ = LogMel(rate=8000)(*rows)
    half, _ = LogMel(rate=8000, dtype="mixed_float16")(*rows)
    np.testing.assert_array_equal(half, wanted)


def test_traced_without_knowing_any_shape():
    layer, (sound, length) = LogMel(**tabled("torchaudio")), padded(recordings())
    spec = [tf.TensorSpec((None, None), tf.float32), tf.TensorSpec((None,), tf.int32)]
    wanted, made = layer(sound, length), tf.function(layer, input_signature=spec)(sound, length)
    np.testing.assert_allclose(made[0], wanted[0], atol=1e-3)
    np.testing.assert_array_equal(made[1], wanted[1])


def test_a_saved_model_keeps_its_features(tmp_path):
    sound, length = keras.Input((None,), dtype="int16"), keras.Input((), dtype="int32")
    bands, frames = LogMel(**tabled("kaldi", window="30 ms"), name="features")(sound, length)
    outputs = SpecAugment(time_width=3, fill="zero")(bands, frames)
    model = keras.Model([sound, length], [outputs, frames])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    rows = padded(recordings(), "int16")
    for made, wanted in zip(again(rows), model(rows), strict=True):
        np.testing.assert_array_equal(made, wanted)
    assert again.get_layer("features").get_config() == model.get_layer("features").get_config()
    assert again.layers[-1].settings == model.layers[-1].settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LogMel(rate=8000, high_hz=5000), "expected low_hz < high_hz <= 4000"),
        (lambda: LogMel(window=25), "LogMel, window: expected an amount with its unit"),
        (lambda: LogMel(band=40), 'perhaps "bands", got "band"'),
        (lambda: SpecAugment(fill="noise"), 'SpecAugment, fill: expected one of "mean", "zero"'),
    ],
)
def test_settings_are_those_of_the_job_file(make, message):
    with pytest.raises(SettingsError, match=message):
        make()


# --- stripes ---


def features(rows=300, steps=50, bands=20, length=40):
    made = RNG.uniform(1, 2, (rows, steps, bands)).astype(np.float32)
    made[:, length:] = 0
    made[-1] = 0
    return made, np.array([length] * (rows - 1) + [0], np.int32)


def runs(wiped):
    """The widths of what is wiped out of a row, neighbours together."""
    edges = np.flatnonzero(np.diff(np.r_[0, wiped.astype(int), 0]))
    return edges[1::2] - edges[::2]


def test_nothing_is_wiped_out_but_in_training():
    before, length = features()
    layer = SpecAugment()
    assert (layer(before, length).numpy() == before).all()
    assert (layer(before, length, training=True).numpy() != before).any()


@pytest.mark.parametrize("fill", ["mean", "zero"])
def test_each_row_has_stripes_of_its_own(fill):
    before, length = features()
    said = {"time_stripes": 1, "time_width": 30, "time_share": 0.25, "band_stripes": 1, "band_width": 5, "fill": fill}
    after = SpecAugment(seed=1, **said)(before, length, training=True).numpy()
    wiped = after != before
    assert not wiped[:, 40:].any(), "padding stays"
    assert not wiped[-1].any(), "a masked row stays"
    in_time, in_bands = wiped[:-1, :40].all(axis=2), wiped[:-1, :40].all(axis=1)
    assert (wiped[:-1, :40] == in_time[:, :, None] | in_bands[:, None, :]).all()
    # A quarter of 40 steps; widths and places from the first to the last are drawn, none among them.
    assert {len(runs(row)) for row in in_time} == {0, 1}
    assert {int(width) for row in in_time for width in runs(row)} == set(range(1, 11))
    assert {int(width) for row in in_bands for width in runs(row)} == set(range(1, 6))
    assert in_time[:, 0].any()
    assert in_time[:, 39].any()
    for row, own in zip(after[:-1, :40], before[:-1, :40], strict=True):
        filled = row[row != own]
        np.testing.assert_allclose(filled, own.mean() if fill == "mean" else 0, rtol=1e-5)


def test_as_much_is_wiped_out_as_in_loaders():
    before, length = features(rows=2001)
    said = {"time_width": 8, "time_share": 0.3, "band_width": 6}
    here = SpecAugment(seed=2, **said)(before, length, training=True).numpy() != before
    transform, rng = SpecAugmentTransform(SpecAugmentSettings(**said)), np.random.default_rng(2)
    there = np.zeros_like(here)
    for row, own in enumerate(before[:-1]):
        transform(sample := {"audio": own[:40]}, rng)
        there[row, :40] = sample["audio"] != own[:40]
    for axis in ((0, 1), (0, 2)):
        np.testing.assert_allclose(here.mean(axis=axis), there.mean(axis=axis), atol=0.04)


def test_other_stripes_each_time_and_the_same_for_one_seed():
    before, length = features(rows=5)
    first, second = SpecAugment(seed=3), SpecAugment(seed=3)
    one, two = (first(before, length, training=True).numpy() for _ in range(2))
    assert (one != two).any()
    assert (second(before, length, training=True).numpy() == one).all()
    again = SpecAugment.from_config(first.get_config())
    assert (again(before, length, training=True).numpy() == one).all()


def test_no_stripes_are_no_stripes():
    before, length = features(rows=5)
    layer = SpecAugment(time_stripes=0, band_stripes=0)
    assert (layer(before, length, training=True).numpy() == before).all()


def test_the_public_names():
    assert layers.__all__ == ["LogMel", "ServedEmbedding", "SpecAugment"]
