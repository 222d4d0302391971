"""Recordings of a batch that are transformed at once: the bytes that each gives alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.sources.files.file_facts import FilePlaces
from loader_server.transforms.chain import Chain
from shared.wire.batch_layout import Field

if TYPE_CHECKING:
    from pathlib import Path

RAW = (
    Field(key="audio", dtype="float32", shape=(None,), per_second=8000.0),
    Field(key="text", dtype="int32", shape=(None,)),
)
LOGMEL = {"rate": 8000, "bands": 40}

CHAINS: dict[str, dict[str, dict[str, Any]]] = {
    "nothing": {},
    "our log-mel": {"logmel": LOGMEL},
    **{f"log-mel of {name}": {"logmel": LOGMEL | {"convention": name}} for name in ("kaldi", "librosa", "torchaudio")},
    "log-mel of long windows": {"logmel": LOGMEL | {"window": "200 ms", "hop": "50 ms"}},
    "mfcc": {"mfcc": {"rate": 8000}},
    "waveform": {"waveform": {"rate": 8000, "dtype": "int16"}},
    "log-mel of a waveform at another rate": {"waveform": {"rate": 16_000}, "logmel": LOGMEL},
    "normalised log-mel": {"logmel": LOGMEL, "normalise": {}},
    "characters": {"characters": {}},
    "all for training": {"logmel": LOGMEL, "normalise": {}, "characters": {}},
}


def recording(frames: int) -> np.ndarray:
    audio = np.random.default_rng(frames).normal(0, 0.1, frames).astype(np.float32)
    audio[frames // 2 :] *= frames % 2  # silence as well
    return audio


#: Shorter than a window, just as long, longer than what is transformed at once; and two at other rates.
LENGTHS = (0, 199, 200, 201, 279, 280, 1, 9300, 28_800, 60_000, 3000, 19_300, 28_920, 4001, 19_400, 700, 2600)
SAMPLES = [
    {"audio": recording(frames), "audio_rate": (8000, 16_000, 11_025)[max(0, place - 14)], "text": "seven one" * place}
    for place, frames in enumerate(LENGTHS)
]


@pytest.mark.parametrize("samples", [SAMPLES, SAMPLES[::-1], SAMPLES[6:7], []], ids=["all", "reversed", "one", "none"])
@pytest.mark.parametrize("name", CHAINS)
def test_the_samples_of_a_batch_become_what_each_becomes_alone(
    tmp_path: Path, name: str, samples: list[dict[str, Any]]
) -> None:
    tables = CHAINS[name]
    chain = Chain.make(
        tuple(tables), tables, "streams.train", RAW[: 2 if "characters" in tables else 1], FilePlaces(tmp_path)
    )
    assert chain.takes_columns
    alone = [chain.apply(_copied(sample), seed=1, epoch=0, number=0) for sample in samples]
    copies = [_copied(sample) for sample in samples]
    together = chain.on_columns({key: [one[key] for one in copies] for key in SAMPLES[0]})
    assert together.keys() == {field.key for field in chain.fields}
    for key, column in together.items():
        assert isinstance(column, list)
        assert [value.shape for value in column] == [one[key].shape for one in alone]
        assert [value.tobytes() for value in column] == [one[key].tobytes() for one in alone]


def _copied(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"audio": sample["audio"].copy()}


@pytest.mark.parametrize("name", ["our log-mel", "mfcc", "waveform", "characters"])
def test_what_is_no_list_is_left_to_one_at_a_time(tmp_path: Path, name: str) -> None:
    tables = CHAINS[name]
    chain = Chain.make(tuple(tables), tables, "streams.train", RAW, FilePlaces(tmp_path))
    with pytest.raises(TypeError, match="is no list"):
        chain.on_columns({"audio": np.zeros(3, np.float32), "audio_rate": [8000] * 3, "text": np.zeros(3, np.int32)})
