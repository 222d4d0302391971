"""Long recordings end to end: chunks as samples, and chunks whose rows carry state from batch to batch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import trainer_client
from tests.support.corpora import make_corpus, utterances
from tests.support.loaders import running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.loaders import Loaders

PAGE = (Path(__file__).parents[2] / "docs" / "chunks.md").read_text("utf-8")
SPOKEN = utterances(30, longest_s=2.0)
STEPS = 1600

SOUND = f"""
[job]
name = "sound"
seed = 7
listen = "tcp://127.0.0.1:*"

[streams.train]
source = "manifest"
paths = ["csv.csv"]
transforms = ["characters"]
length = "audio"
budget = "{3 * STEPS} frames"
chunk = "0.2 s"
carry = true

[streams.dev]
like = "train"
order = "as_is"
"""


def blocks(language: str) -> list[str]:
    """The blocks of the documentation in this language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    folder = tmp_path_factory.mktemp("sound")
    make_corpus(folder, samples=len(SPOKEN), longest_s=2.0)
    (folder / "job.toml").write_text(SOUND)
    with running(folder / "job.toml", workers=2) as loaders:
        yield loaders


class Lanes:
    """What a trainer puts together that keeps the rows of each rank apart."""

    def __init__(self) -> None:
        self.recordings: list[np.ndarray] = []
        self.texts: list[np.ndarray] = []
        self._held: dict[tuple[int, int], list[np.ndarray]] = {}

    def take(self, rank: int, batch: trainer_client.Batch) -> None:
        """Go on in each row, from its beginning where it says so."""
        for row in range(len(batch["weight"])):
            held = self._held.setdefault((rank, row), [])
            if batch["weight"][row] == 0:
                assert not batch["reset"][row]
                continue
            assert batch["reset"][row] or held, "a row begins with a recording"
            if batch["reset"][row] and held:
                self.recordings.append(np.concatenate(held))
                held.clear()
            held.append(batch["audio"][row, : batch["audio_length"][row]].copy())
            if batch["text_length"][row]:
                self.texts.append(batch["text"][row, : batch["text_length"][row]].copy())

    def finish(self) -> list[np.ndarray]:
        """All recordings."""
        return self.recordings + [np.concatenate(held) for held in self._held.values() if held]


def as_spoken(recordings: list[np.ndarray]) -> list[int]:
    """Which utterance each recording is, to the last step."""
    return [next(n for n, one in enumerate(SPOKEN) if is_same(one.audio, recording)) for recording in recordings]


def is_same(spoken: np.ndarray, recording: np.ndarray) -> bool:
    """But for what a WAV file rounds off."""
    return len(spoken) == len(recording) and bool(np.allclose(spoken, recording, atol=1e-4))


@pytest.mark.heritage("R10")
def test_each_recording_is_put_together_from_one_row_of_one_rank(sound: Loaders) -> None:
    lanes = Lanes()
    with (
        trainer_client.connect(sound.endpoint, rank=0, world=2) as first,
        trainer_client.connect(sound.endpoint, rank=1, world=2) as second,
    ):
        for batches in zip(first, second, strict=True):
            for rank, batch in enumerate(batches):
                assert batch["reset"].dtype == bool
                lanes.take(rank, batch)
    assert sorted(as_spoken(lanes.finish())) == list(range(len(SPOKEN)))
    assert sorted(len(one) for one in lanes.texts) == sorted(len(one.text) for one in SPOKEN)


def test_an_evaluation_stream_carries_its_state_in_each_opening(sound: Loaders) -> None:
    with trainer_client.connect(sound.endpoint, stream="dev") as feed:
        for _ in range(2):
            lanes = Lanes()
            for batch in feed:
                lanes.take(0, batch)
            assert sorted(as_spoken(lanes.finish())) == list(range(len(SPOKEN)))


def test_another_world_is_refused_before_training(sound: Loaders) -> None:
    with trainer_client.connect(sound.endpoint, rank=0, world=2) as feed:
        state = feed.state() | {"epoch": 3, "number": 2, "group": 2}
    with (
        trainer_client.connect(sound.endpoint, stream="dev") as other,
        pytest.raises(Exception, match=r"expected a world of group = 2 ranks.*got a world of 1") as refused,
    ):
        other.restore(state | {"stream": "dev", "plan_digest": other.state()["plan_digest"]})
    assert "Start 2 ranks" in str(refused.value)


def test_a_reader_that_begins_in_mid_epoch_forgets_all_state_once(sound: Loaders) -> None:
    with trainer_client.connect(sound.endpoint, stream="dev") as feed:
        whole = [(batch["tag"].copy(), batch["reset"].copy()) for batch in feed]
        state = feed.state()
    with trainer_client.connect(sound.endpoint, stream="dev") as feed:
        feed.restore(state | {"number": 5})
        rest = [(batch["tag"].copy(), batch["reset"].copy()) for batch in feed]
    np.testing.assert_array_equal([tags for tags, _ in rest], [tags for tags, _ in whole[5:]])
    assert not whole[5][1].all()
    assert rest[0][1].all()
    np.testing.assert_array_equal([resets for _, resets in rest[1:]], [resets for _, resets in whole[6:]])


def features(folder: Path) -> list[np.ndarray]:
    """Sequences of features in an .npz; returned as they are."""
    random = np.random.default_rng(3)
    made = [random.standard_normal((length, 5)).astype(np.float32) for length in (90, 13, 40, 61, 20, 55, 7, 100)]
    offsets = np.cumsum([0, *map(len, made)])
    frames = np.concatenate(made)
    labels = np.sign(frames[:, 0]).astype(np.int32)
    arrays = {"frames_values": frames, "frames_offsets": offsets, "labels_values": labels, "labels_offsets": offsets}
    np.savez(folder / "features.npz", **arrays)
    return made


def test_a_carried_state_is_that_of_one_pass_over_each_recording(tmp_path: Path) -> None:
    """The job file, the model and the dataset are those of the documentation."""
    (tmp_path / "job.toml").write_text(blocks("toml")[1])
    recordings = features(tmp_path)
    (code,) = blocks("python")
    with running(tmp_path / "job.toml", workers=2) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        said = {"feed": feed}
        exec(code, said)
        model = said["Carried"](rows=4, units=6)
        held: dict[int, list[np.ndarray]] = {}
        found: list[np.ndarray] = []
        for (frames, length, reset), labels, weight in said["data"]:
            np.testing.assert_array_equal(labels, np.sign(frames[:, :, 0]))
            outputs = model((frames, length, reset)).numpy()
            for row in np.flatnonzero(weight):
                if reset[row]:
                    found.append(np.concatenate(held.pop(row, [np.zeros((0, 6), np.float32)])))
                held.setdefault(row, []).append(outputs[row, : length[row]])
    found += [np.concatenate(rest) for rest in held.values()]
    found = [one for one in found if len(one)]
    assert len(found) == len(recordings)
    by_length = {len(one): one for one in found}
    for recording in recordings:
        whole, _ = model.gru(recording[None])
        np.testing.assert_allclose(by_length[len(recording)], whole[0], atol=1e-5)


def test_chunks_of_their_own_come_as_the_documentation_says(tmp_path: Path) -> None:
    make_corpus(tmp_path, samples=12, longest_s=2.0).rename(tmp_path / "train.csv")
    stream = blocks("toml")[0].replace('"10 s"', '"0.4 s"').replace('"5 s"', '"0.2 s"')
    assert stream != blocks("toml")[0]
    (tmp_path / "job.toml").write_text('[job]\nname = "own"\nlisten = "tcp://127.0.0.1:*"\n' + stream)
    rows = 0
    with running(tmp_path / "job.toml", workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        for batch in feed:
            assert "reset" not in batch
            valid = batch["weight"] > 0
            rows += int(valid.sum())
            assert batch["audio_length"][valid].max() <= 40
    lengths = [len(one.audio) for one in utterances(12, longest_s=2.0)]
    assert rows == sum(1 + -(-max(length - 3200, 0) // 1600) for length in lengths)
