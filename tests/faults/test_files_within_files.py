"""Values that a data file takes from other files, and recordings that lost their end: refused or left out by name, and
never trained on as zeros, as somebody else's bytes, or as half of what was said.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest
import soundfile

import trainer_client
from shared.errors import DataError
from tests.end_to_end.test_several_jobs import command
from tests.support.corpora import utterances
from tests.support.loaders import ask, running, wait_until, write_job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.loaders import Loaders

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


def by_a_virtual_dataset(folder: Path, parts: str = "parts") -> None:
    (folder / parts).mkdir(parents=True, exist_ok=True)
    layout = h5py.VirtualLayout((2 * _ROWS, _STEPS), np.float32)
    for number in range(2):
        write_part(folder / parts / f"{number}.h5", number + 1)
        source = h5py.VirtualSource(f"{parts}/{number}.h5", "audio", (_ROWS, _STEPS), np.float32)
        layout[number * _ROWS : (number + 1) * _ROWS] = source
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_virtual_dataset("audio", layout)


def write_part(path: Path, value: int) -> None:
    with h5py.File(path, "w") as file:
        file["audio"] = np.full((_ROWS, _STEPS), value, np.float32)


def by_parts_elsewhere(folder: Path) -> None:
    by_a_virtual_dataset(folder, "../elsewhere")


_WAYS: dict[str, tuple[Callable[[Path], None], str]] = {
    "raw external storage": (by_raw_storage, 'values of "audio" in the file itself, .*got raw external .* /etc/passwd'),
    "an external link": (by_a_link, 'values of "audio" in the file itself, .* got an external link to part.h5:audio'),
    "virtual parts elsewhere": (by_parts_elsewhere, "expected parts below the paths of the stream, got .*/elsewhere/0"),
}


@pytest.mark.fault(54)
@pytest.mark.parametrize("way", _WAYS)
def test_values_in_other_files_are_refused_by_name_before_a_job_is_served(tmp_path: Path, way: str) -> None:
    write, reason = _WAYS[way]
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder)
    (folder / "job.toml").write_text(_JOB)
    code, out, said = command("run", folder / "job.toml", "--workers", "1")
    assert code == 1
    assert re.search(reason, said), said
    assert "is served" not in out + said


def gone(part: Path) -> None:
    part.unlink()


def cut(part: Path) -> None:
    os.truncate(part, part.stat().st_size // 2)


def rewritten(part: Path) -> None:
    """By other values, in a file of equal size whose time is put back."""
    times, other = part.stat(), part.with_suffix(".other")
    write_part(other, 7)  # the library would not write into a file that loaders have open
    part.write_bytes(other.read_bytes())
    assert part.stat().st_size == times.st_size
    os.utime(part, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.fault(54)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_part_of_a_virtual_dataset_that_changes_under_a_job_is_refused_and_never_read_as_zeros(
    tmp_path: Path,
) -> None:
    by_a_virtual_dataset(tmp_path)
    (tmp_path / "job.toml").write_text(_JOB + "evaluation = true\n")
    part = tmp_path / "parts/1.h5"
    content, times = part.read_bytes(), part.stat()
    with running(tmp_path / "job.toml", workers=1) as loaders:
        before = values_of(loaders)
        assert before == sorted([1.0] * _ROWS + [2.0] * _ROWS)
        for change in (rewritten, cut, gone):
            change(part)
            refused(loaders, part)
            kill_the_worker(loaders)
            wait_until(lambda: ask(loaders.endpoint)["failing"], "the worker says why it does not come back")
            refused(loaders, part, lost_timeout_s=1.0)
            part.write_bytes(content)
            os.utime(part, ns=(times.st_atime_ns, times.st_mtime_ns))
            assert values_of(loaders) == before
            wait_until(lambda: not ask(loaders.endpoint)["failing"], "the worker is back")
    rewritten(part)
    code, out, said = command("run", tmp_path / "job.toml", "--workers", "1")
    assert (code, "is served" in out + said) == (1, False)
    assert "parts/1.h5" in said


def kill_the_worker(loaders: Loaders) -> None:
    [worker] = loaders.workers()
    worker.kill()
    wait_until(lambda: [one.pid for one in loaders.workers()] not in ([], [worker.pid]), "there is another worker")


def refused(loaders: Loaders, part: Path, lost_timeout_s: float = 60.0) -> None:
    with pytest.raises(DataError) as caught:
        values_of(loaders, lost_timeout_s)
    assert str(part) in caught.value.where


def values_of(loaders: Loaders, lost_timeout_s: float = 1000.0) -> list[float]:
    """The first value of each sample of an epoch."""
    with trainer_client.connect(loaders.endpoint, lost_timeout_s=lost_timeout_s) as feed:
        rows = [batch["audio"][np.flatnonzero(batch["weight"]), 0].tolist() for batch in feed]
    return sorted(value for row in rows for value in row)


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
