"""The demo's corpus: the same on every machine, as long as speech is, whole or not there."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import numpy as np
import pytest
import soundfile

from loader_server.demo.corpus import RATE, facts_of, make_corpus, utterance
from shared.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


def _make(folder: Path, samples: int = 12):
    return make_corpus(folder, samples=samples, job="[job]\n", progress=lambda done, total: None)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_recording_hangs_on_seed_and_number_alone() -> None:
    one, again = utterance(3), utterance(3)
    np.testing.assert_array_equal(one.audio, again.audio)
    assert one.digits == again.digits
    assert utterance(3, seed=1).digits != one.digits
    assert utterance(4).digits != one.digits


def test_transcripts_stay_as_they_are() -> None:
    assert [utterance(number).digits for number in (0, 1, 2, 8)] == [
        "3942287424682532",
        "197809",
        "7214755",
        "27268126851212",
    ]


def test_lengths_are_like_those_of_speech() -> None:
    seconds = np.array([len(utterance(number).audio) / RATE for number in range(400)])
    assert seconds.min() >= 0.5
    assert seconds.max() <= 15.0
    assert 1.5 < np.median(seconds) < seconds.mean() < 3.5
    assert np.percentile(seconds, 99) > 4 * np.median(seconds)


def test_each_digit_is_its_two_tones() -> None:
    """Heard with a Goertzel-like look at the keypad's frequencies."""
    keypad = np.array([697, 770, 852, 941, 1209, 1336, 1477])
    pairs = {"1": (697, 1209), "3": (697, 1477), "6": (770, 1477), "9": (852, 1477), "0": (941, 1336)}
    heard = 0
    for number in range(200):
        made = utterance(number)
        if made.digits in pairs:
            time = np.arange(len(made.audio)) / RATE
            power = np.abs(np.exp(-2j * np.pi * keypad[:, None] * time) @ made.audio)
            assert set(keypad[np.argsort(power)[-2:]]) == set(pairs[made.digits])
            heard += 1
    assert heard == 9


def test_a_corpus_holds_what_its_manifests_say(tmp_path: Path) -> None:
    facts = _make(tmp_path / "corpus", samples=12)
    train, dev = (_rows(tmp_path / "corpus" / f"{name}.csv") for name in ("train", "dev"))
    assert (len(train), len(dev)) == (facts.train, facts.dev) == (10, 2)
    assert not {row["audio"] for row in train} & {row["audio"] for row in dev}
    audio, rate = soundfile.read(tmp_path / "corpus" / train[0]["audio"], dtype="float32")
    made = utterance(1)
    assert (rate, train[0]["text"]) == (RATE, made.digits)
    np.testing.assert_allclose(audio, made.audio, atol=2**-15)


def test_a_corpus_is_known_again(tmp_path: Path) -> None:
    assert facts_of(tmp_path / "corpus") is None
    facts = _make(tmp_path / "corpus")
    assert facts_of(tmp_path / "corpus") == facts


def test_an_interrupted_corpus_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_corpus(tmp_path / "corpus", samples=12, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_demo_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".corpus.123.part"
    (left / "clips").mkdir(parents=True)
    _make(tmp_path / "corpus")
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_a_folder_of_someone_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(DataError, match=r"an earlier demo made, got one that holds something else.*--keep"):
        _make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    _make(tmp_path)
    assert (tmp_path / "job.toml").read_text() == "[job]\n"


def test_a_torn_description_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text('{"train": 1')
    with pytest.raises(DataError, match=r"Remove .*, or name another folder"):
        facts_of(tmp_path)
