"""Files that are overwritten by others of equal size, whose times are put back: they are refused, also after a restart.
Files that only got another owner's rights, another name or another place are the same, and so are their batches.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile

from shared.errors import DataError
from tests.end_to_end.test_formats import JOB, STREAM
from tests.faults.test_cut_files import put_back, read
from tests.loader_server.sources.speech.kaldi_data import table, write_features
from tests.support.loaders import ask, running, wait_until
from tests.support.shards import npy, write_shard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.loaders import Loaders

pytestmark = pytest.mark.slow

_SAMPLES, _STEPS = 60, 400
#: What each stream says, the key of its values, and one of its files.
_STREAMS = {
    "manifest": ('paths = ["clips.csv"]', "audio", "7.wav"),
    "kaldi": ('paths = ["data"]\nvalues = "features"', "features", "data/feats.ark"),
    "numpy": ('paths = ["arrays.npz"]', "audio", "arrays.npz"),
    "hdf5": ('paths = ["a.h5"]', "audio", "a.h5"),
    "parquet": ('paths = ["a.parquet"]', "audio", "a.parquet"),
    "arrow": ('paths = ["a.arrow"]', "audio", "a.arrow"),
    "webdataset": ('paths = ["a.tar"]', "npy", "a.tar"),
}

#: Those whose files a worker looks at before it serves any stream; of others it reads them first.
_LOOKED_AT_WHEN_OPENED = ("numpy", "hdf5", "parquet", "arrow")


def write_files(folder: Path, sign: int = 1) -> None:
    """The same samples in each format, or others that fill files of equal sizes."""
    folder.mkdir(exist_ok=True)
    values = sign * np.linspace(0.1, 0.5, _SAMPLES * _STEPS, dtype=np.float32).reshape(_SAMPLES, _STEPS)
    for number, one in enumerate(values):
        soundfile.write(folder / f"{number}.wav", one, 8000, subtype="PCM_24" if number % 2 else "PCM_16")
    (folder / "clips.csv").write_text("audio\n" + "".join(f"{number}.wav\n" for number in range(_SAMPLES)))
    write_features(folder / "data", {f"u{number}": one for number, one in enumerate(values)})
    table(folder / "data", "text", *(f"u{number} x" for number in range(_SAMPLES)))
    offsets = np.arange(_SAMPLES + 1) * _STEPS
    np.savez(folder / "arrays.npz", audio_values=values.ravel(), audio_offsets=offsets)
    with h5py.File(folder / "a.h5", "w") as file:
        file["audio_values"], file["audio_offsets"] = values.ravel(), offsets
    columns = pa.table({"audio": pa.array(list(values), pa.list_(pa.float32()))})
    pq.write_table(columns, folder / "a.parquet", row_group_size=20, compression="none", use_dictionary=False)
    with pa.ipc.new_stream(folder / "a.arrow", columns.schema) as stream:
        stream.write_table(columns, max_chunksize=20)
    write_shard(folder / "a.tar", [(f"{number:03}.npy", npy(one)) for number, one in enumerate(values)])


def write_job(folder: Path) -> Path:
    write_files(folder)
    said = [STREAM.format(kind, paths, key) for kind, (paths, key, _) in _STREAMS.items()]
    text = JOB + "".join(f"{one.replace('30 steps', '4000 steps')}evaluation = true\n" for one in said)
    (folder / "job.toml").write_text(text)
    return folder / "job.toml"


def write_others(folder: Path) -> dict[str, tuple[bytes, bytes]]:
    """What each file holds, and the other bytes that it will hold."""
    write_files(folder / "others", -1)
    files = {kind: file for kind, (_, _, file) in _STREAMS.items()}
    found = {
        kind: ((folder / file).read_bytes(), (folder / "others" / file).read_bytes()) for kind, file in files.items()
    }
    assert all(len(own) == len(other) and own != other for own, other in found.values())
    return found


def overwrite(file: Path, content: bytes) -> None:
    """Write over a file, and put its time back, as `touch -r` does."""
    put_back(file, content, file.stat())


def digests(loaders: Loaders) -> dict[str, list[tuple[int, int]]]:
    return {kind: read(loaders.endpoint, kind) for kind in _STREAMS}


@pytest.mark.fault(55)
@pytest.mark.timeout(300)
def test_other_bytes_of_equal_size_and_time_are_refused_while_a_job_runs_and_after_a_restart(tmp_path: Path) -> None:
    job, contents = write_job(tmp_path), write_others(tmp_path)
    with running(job, workers=1) as loaders:
        before = digests(loaders)
        for kind, (own, other) in contents.items():
            file = tmp_path / _STREAMS[kind][2]
            overwrite(file, other)
            refused(loaders, kind, file)
            kill_the_worker(loaders)
            if kind in _LOOKED_AT_WHEN_OPENED:
                wait_until(lambda: ask(loaders.endpoint)["failing"], "the worker says why it does not come back")
                refused(loaders, kind, file, lost_timeout_s=1.0)
            else:
                refused(loaders, kind, file)
            overwrite(file, own)
            assert read(loaders.endpoint, kind) == before[kind]
            wait_until(lambda: not ask(loaders.endpoint)["failing"], "the worker is back")
        assert digests(loaders) == before


@pytest.mark.fault(55)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", _STREAMS)
def test_other_bytes_of_equal_size_and_time_are_refused_when_a_job_is_started_again(tmp_path: Path, kind: str) -> None:
    job, contents = write_job(tmp_path), write_others(tmp_path)
    with running(job, workers=1) as loaders:
        before = read(loaders.endpoint, kind)
    overwrite(tmp_path / _STREAMS[kind][2], contents[kind][1])
    with pytest.raises(AssertionError, match="run loader-server index"):
        running(job, workers=1).__enter__()
    overwrite(tmp_path / _STREAMS[kind][2], contents[kind][0])
    with running(job, workers=1) as loaders:
        assert read(loaders.endpoint, kind) == before


def refused(loaders: Loaders, kind: str, file: Path, lost_timeout_s: float = 60.0) -> None:
    with pytest.raises(DataError) as caught:
        read(loaders.endpoint, kind, lost_timeout_s=lost_timeout_s)
    assert str(file) in caught.value.where
    assert "changed" in f"{caught.value.got} {caught.value.remedy}"


def kill_the_worker(loaders: Loaders) -> None:
    [worker] = loaders.workers()
    worker.kill()
    wait_until(lambda: [one.pid for one in loaders.workers()] not in ([], [worker.pid]), "there is another worker")


def chmod(file: Path) -> None:
    file.chmod(0o600)


def link(file: Path) -> None:
    os.link(file, f"{file}.linked")


def replace_by_its_copy(file: Path) -> None:
    shutil.copy2(file, f"{file}.copy")
    file.with_name(f"{file.name}.copy").replace(file)


@pytest.mark.fault(55)
@pytest.mark.timeout(300)
def test_files_that_are_only_touched_linked_or_copied_with_their_times_are_the_same(tmp_path: Path) -> None:
    job = write_job(tmp_path / "here")
    with running(job, workers=1) as loaders:
        before = digests(loaders)
        for change in (chmod, link, replace_by_its_copy):
            for_each_file(tmp_path / "here", change)
            assert digests(loaders) == before
            kill_the_worker(loaders)
            assert digests(loaders) == before
    for_each_file(tmp_path / "here", chmod)
    for name, ignored in (("with its index", ()), ("without", (".stoker",))):
        # As `cp -a` and `rsync -a` bring them to another host.
        shutil.copytree(tmp_path / "here", tmp_path / name, ignore=shutil.ignore_patterns(*ignored))
        with running(tmp_path / name / "job.toml", workers=1) as loaders:
            assert digests(loaders) == before


def for_each_file(folder: Path, change: Callable[[Path], None]) -> None:
    for _, _, file in _STREAMS.values():
        change(folder / file)
    for number in range(0, _SAMPLES, 5):
        change(folder / f"{number}.wav")
