"""Values that a data file takes from other files, and recordings that lost their end: refused or left out by name, and
never trained on as zeros, as somebody else's bytes, or as half of what was said.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest
import soundfile

import trainer_client
from tests.end_to_end.test_several_jobs import command
from tests.support.corpora import utterances
from tests.support.loaders import running, write_job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_ROWS, _STEPS = 40, 8
_JOB = """
[job]
name = "within"
listen = "tcp://127.0.0.1:*"

[streams.train]
source = "hdf5"
paths = ["a.h5"]
length = "audio"
budget = "64 steps"
"""


def by_raw_storage(folder: Path) -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("audio", (_ROWS, _STEPS), "uint8", external=[("/etc/passwd", 0, _ROWS * _STEPS)])


def by_a_link(folder: Path) -> None:
    with h5py.File(folder / "part.h5", "w") as file:
        file["audio"] = np.ones((_ROWS, _STEPS), np.float32)
    with h5py.File(folder / "a.h5", "w") as file:
        file["audio"] = h5py.ExternalLink("part.h5", "audio")


_WAYS: dict[str, tuple[Callable[[Path], None], str]] = {
    "raw external storage": (by_raw_storage, "got raw external storage in /etc/passwd"),
    "an external link": (by_a_link, "got an external link to part.h5:audio"),
}


@pytest.mark.fault(54)
@pytest.mark.parametrize("way", _WAYS)
def test_values_in_other_files_are_refused_by_name_before_a_job_is_served(tmp_path: Path, way: str) -> None:
    write, got = _WAYS[way]
    write(tmp_path)
    (tmp_path / "job.toml").write_text(_JOB)
    code, out, said = command("run", tmp_path / "job.toml", "--workers", "1")
    assert code == 1
    assert 'expected values of "audio" in the file itself' in said
    assert got in said
    assert "is served" not in out + said


#: Containers of recordings that lost their second half, by the number of the sample.
_CUT = {
    3: ("WAV", "PCM_U8"),
    8: ("WAV", "PCM_16"),
    13: ("WAV", "PCM_24"),
    18: ("WAV", "PCM_32"),
    23: ("WAV", "FLOAT"),
    28: ("WAVEX", "PCM_16"),
    33: ("RF64", "PCM_16"),
    38: ("OGG", "VORBIS"),
}
#: And one of which nobody knew how long it would be.
_FROM_A_PIPE = 43


@pytest.mark.fault(54)
def test_recordings_that_lost_their_second_half_are_left_out_and_named(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=60)
    made = utterances(60, longest_s=1.0)
    for number, (container, subtype) in _CUT.items():
        path = tmp_path / made[number].path
        soundfile.write(path, made[number].audio, 8000, format=container, subtype=subtype)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    path = tmp_path / made[_FROM_A_PIPE].path
    raw = path.read_bytes()
    path.write_bytes(raw[:4] + b"\xff" * 4 + raw[8:40] + b"\xff" * 4 + raw[44:])
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, stream="dev") as feed:
        rows = sum(np.count_nonzero(batch["weight"]) for batch in feed)
    assert rows == 60 - len(_CUT)
    [found] = (tmp_path / ".stoker/tones/index-train").glob("columns-*/bad_rows.jsonl")
    bad = [json.loads(line) for line in found.read_text().splitlines()]
    assert {one["line"] - 2: one["reason"] for one in bad} == dict.fromkeys(_CUT, "truncated")
    assert all("expected " in one["detail"] and ", got " in one["detail"] for one in bad)
