"""`noise`: mixed in at the ratio that was drawn, from the place that was drawn."""

import os

import numpy as np
import pytest
import soundfile

from loader_server.sources.files.file_facts import FilePlaces
from loader_server.transforms.audio import drawn_recordings
from loader_server.transforms.audio.noise import mixed, part_of
from loader_server.transforms.chain import Chain
from loader_server.transforms.generators import generator_for
from shared.errors import DataError, ReadError, SampleError, SettingsError
from shared.wire.batch_layout import Field

RAW = (Field(key="audio", dtype="float32", shape=(None,), per_second=8000.0),)
TABLE = {"recordings": {"source": "manifest", "paths": ["noises.csv"]}}
NOISES = [np.random.default_rng(n).normal(0, 0.1, length).astype(np.float32) for n, length in enumerate((900, 5000))]


@pytest.fixture
def folder(tmp_path):
    for number, noise in enumerate(NOISES):
        soundfile.write(tmp_path / f"{number}.wav", noise, 8000, subtype="FLOAT")
    (tmp_path / "noises.csv").write_text("audio\n0.wav\n1.wav\n")
    return tmp_path


def chain(folder, **said):
    return Chain.make(("noise",), {"noise": {**TABLE, **said}}, "job", RAW, FilePlaces(folder))


def speech(length=2000):
    return np.random.default_rng(7).normal(0, 0.2, length).astype(np.float32)


def noised(made, number, length=2000, epoch=0):
    sample = {"audio": speech(length), "audio_rate": 8000}
    return made.apply(sample, seed=1, epoch=epoch, number=number)["audio"]


def power(audio):
    return np.square(audio.astype(np.float64)).mean()


def test_what_is_mixed_in_is_a_noise_of_the_source_at_the_ratio_asked_for(folder):
    made = chain(folder, snr_db=[10])
    for number in range(6):
        added = noised(made, number) - speech()
        assert 10 * np.log10(power(speech()) / power(added)) == pytest.approx(10, abs=0.01)
        alike = [np.correlate(np.resize(noise, 8000), added).max() / np.linalg.norm(added) for noise in NOISES]
        assert max(alike) > 0


def test_the_numbers_are_those_of_the_definition(folder):
    """Whether, which, from where, how loud: whoever draws otherwise gives other bytes."""
    rng = generator_for(1, 0, 3)
    assert rng.random() < 1
    noise = NOISES[rng.integers(2)]
    start = rng.integers(len(noise) - 2000 + 1) if len(noise) >= 2000 else rng.integers(len(noise))
    part = np.roll(np.tile(noise, 9), -start)[:2000].astype(np.float64)
    ratio = rng.uniform(5, 20)
    wanted = speech() + part * np.sqrt(power(speech()) / power(part)) * 10 ** (-ratio / 20)
    np.testing.assert_allclose(noised(chain(folder, snr_db=[20, 5]), 3), wanted, atol=1e-5)


def test_the_same_sample_draws_the_same_wherever_it_is_built(folder):
    one, other = chain(folder), chain(folder)
    in_order = [noised(one, number) for number in range(8)]
    for number in reversed(range(8)):
        assert (noised(other, number) == in_order[number]).all()
    assert (noised(one, 0, epoch=1) != in_order[0]).any()


def test_noises_are_brought_to_the_rate_of_the_audio(folder):
    made = chain(folder, snr_db=[0]).apply({"audio": speech(), "audio_rate": 16_000}, seed=1, epoch=0, number=1)[
        "audio"
    ]
    added = np.abs(np.fft.rfft(made - speech()))
    assert np.square(added[: len(added) // 2]).sum() > 50 * np.square(added[len(added) * 11 // 20 :]).sum()


def test_a_share_of_samples_gets_noise(folder):
    made = chain(folder, share=0.25)
    changed = sum((noised(made, number, 50) != speech(50)).any() for number in range(200))
    assert 30 < changed < 70
    assert not any((noised(chain(folder, share=0), number, 50) != speech(50)).any() for number in range(20))


def test_parts_start_over_only_where_the_noise_is_too_short():
    noise, rng = np.arange(5, dtype=np.float32), np.random.default_rng(0)
    assert {tuple(part_of(noise, 4, rng)) for _ in range(50)} == {(0, 1, 2, 3), (1, 2, 3, 4)}
    assert {part_of(noise, 7, rng)[0] for _ in range(100)} == {0, 1, 2, 3, 4}
    assert all((np.diff(part_of(noise, 12, rng)) % 5 == 1).all() for _ in range(9))


def test_silence_stays_as_it_is_and_nothing_stays_nothing():
    audio = speech(9)
    assert mixed(audio, np.zeros(9, np.float32), 5) is audio
    assert not mixed(np.zeros(9, np.float32), audio, 5).any()
    assert len(mixed(np.zeros(0, np.float32), np.zeros(0, np.float32), 5)) == 0


def test_what_is_kept_is_bounded_and_changes_no_byte(folder, monkeypatch):
    kept = [noised(chain(folder), number).tobytes() for number in range(20)]
    monkeypatch.setattr(drawn_recordings, "_KEPT_BYTES", 1)
    made = chain(folder, snr_db=[5.0, 20.0])
    made.steps[0].call._noises._kept.clear()
    made.steps[0].call._noises._kept_bytes = 0
    assert [noised(made, number).tobytes() for number in range(20)] == kept
    noises = made.steps[0].call._noises
    assert len(noises._kept) == 1
    assert noises._kept_bytes == sum(one.nbytes for one in noises._kept.values())


def test_lengths_stay_and_other_noises_are_another_recipe(folder):
    made = chain(folder)
    assert made.fields == RAW
    assert made.lengths({"audio": np.array([5])})["audio"].tolist() == [5]
    before = made.recipe
    assert chain(folder).recipe == before
    (folder / "noises.csv").write_text("audio\n1.wav\n")
    assert chain(folder).recipe != before


def test_a_noise_that_goes_away_stops_the_job_and_masks_nothing(folder):
    made = chain(folder, snr_db=[3.0])
    noised(made, 0)
    made.steps[0].call._noises._kept.clear()
    made.steps[0].call._noises._kept_bytes = 0
    for path in folder.glob("*.wav"):
        os.truncate(path, 100)
    with pytest.raises(ReadError, match=r"expected the file that was indexed"):
        noised(made, 0)


def test_a_noise_without_a_rate_is_named(folder):
    (folder / "noises.jsonl").write_text('{"audio": [0.5]}\n')
    tables = {"noise": {"recordings": {"source": "jsonl", "paths": ["noises.jsonl"]}}}
    made = Chain.make(("noise",), tables, "job", RAW, FilePlaces(folder))
    with pytest.raises(
        SampleError,
        match=r"noise, recordings, .*noises\.jsonl.*: expected a recording with audio and audio_rate, got audio",
    ):
        noised(made, 0)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"snr_db": ["5 dB"]}, r"noise, snr_db: expected a list .*, got \['5 dB'\]"),
        ({"share": 1.5}, r"noise, share: expected a number from 0 to 1, got 1\.5"),
        ({"recordings": "noises.csv"}, r"noise, recordings: expected a table with a source .*, got 'noises.csv'"),
        ({"recordings": {"source": "manifest", "paths": ["gone.csv"]}}, r"gone\.csv"),
    ],
)
def test_bad_settings(folder, said, message):
    with pytest.raises((SettingsError, DataError), match=message):
        chain(folder, **said)


def test_a_source_of_texts_is_an_error_and_no_bad_sample(folder):
    (folder / "a.txt").write_text("no sound\n")
    with pytest.raises(SettingsError, match=r"noise, recordings: expected a source of recordings, got one of texts"):
        noised(chain(folder, recordings={"source": "lines", "paths": ["a.txt"]}), 0)
