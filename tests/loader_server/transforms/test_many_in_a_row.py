"""A job whose stream augments, makes features, normalises and masks: from the job file to the bytes of its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import soundfile

from loader_server import cli
from loader_server.building.builder import Builder
from loader_server.building.quarantine import Quarantine
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from tests.support.in_memory import Steps, memory_want
from tests.support.loaders import write_job

if TYPE_CHECKING:
    from pathlib import Path

TABLES = """
[streams.train.noise]
snr_db = [0, 10]
share = 0.5

[streams.train.noise.recordings]
source = "manifest"
paths = ["noises.csv"]

[streams.train.reverberation]
recordings = { source = "manifest", paths = ["rooms.csv"] }
share = 0.5

[streams.train.normalise]
statistics = "statistics.json"

[streams.train.spec_augment]
fill = "zero"
band_width = 5

[streams.dev]
transforms = ["logmel", "normalise", "characters"]

[streams.dev.normalise]
statistics = "statistics.json"

[streams.dev.logmel]
rate = 8000
bands = 40
"""
AUGMENTED = ("speed_perturb", "reverberation", "noise", "logmel", "normalise", "spec_augment", "characters")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for name in ("noises", "rooms"):
        soundfile.write(tmp_path / f"{name}.wav", np.random.default_rng(len(name)).normal(0, 0.1, 700), 8000)
        (tmp_path / f"{name}.csv").write_text(f"audio\n{name}.wav\n")
    path = write_job(tmp_path, samples=24, longest_s=0.5, transforms=AUGMENTED)
    before, _, after = path.read_text().partition('[streams.dev]\nlike = "train"\n')
    source = 'source = "manifest"\npaths = ["csv.csv"]\nlength = "audio"\nbudget = "60 s"\n'
    path.write_text(before + TABLES.replace("[streams.dev]\n", f"[streams.dev]\n{source}{after}"))
    return path


def batches(path: Path, name: str, *, epoch: int = 0) -> list[tuple[dict[str, np.ndarray], int, bytes]]:
    """Of each batch the arrays, how many rows are masked, and its bytes; in reverse order."""
    stream = Stream(JobFile(path), name)
    builder = Builder(stream, Quarantine(path.parent / "quarantine.jsonl"), Steps())
    found = []
    for number in reversed(range(builder.batches(epoch, 1))):
        prepared = builder.prepare(want := memory_want(number, epoch=epoch))
        payload = np.full(prepared.layout.nbytes, 0xA5, np.uint8)
        built = builder.build(want, prepared, payload)
        found.append((dict(prepared.layout.arrays(payload)), built.masked, payload.tobytes()))
    stream.close()
    return found[::-1]


def test_from_the_job_file_to_the_bytes(path: Path) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["index", str(path), "--statistics"])
    made = batches(path, "train")
    assert sum(masked for _, masked, _ in made) == 0
    assert sorted(tag for arrays, _, _ in made for tag in arrays["tag"].tolist() if tag >= 0) == list(range(24))
    assert [one[2] for one in made] == [one[2] for one in batches(path, "train")]
    assert [one[2] for one in made] != [one[2] for one in batches(path, "train", epoch=1)]
    lengths = {
        int(tag): int(length)
        for arrays, _, _ in made
        for tag, length in zip(arrays["tag"], arrays["audio_length"], strict=True)
        if tag >= 0
    }
    plain = {
        int(tag): int(length)
        for arrays, _, _ in batches(path, "dev")
        for tag, length in zip(arrays["tag"], arrays["audio_length"], strict=True)
        if tag >= 0
    }
    assert {np.sign(lengths[tag] - plain[tag]) for tag in lengths} == {-1, 0, 1}
    for arrays, _, _ in made:
        for row, length in zip(arrays["audio"], arrays["audio_length"], strict=True):
            assert not row[length:].any()
            assert np.isfinite(row).all()
