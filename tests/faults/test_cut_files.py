"""A file that is cut short under a running job: who reads it is told which, all else is served, and once the file is
back all goes on; also if workers died meanwhile, so that others have to open it.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest

import trainer_client
from shared.errors import DataError
from tests.end_to_end.test_formats import JOB, STREAM
from tests.end_to_end.test_several_jobs import command
from tests.support.example_protos import example
from tests.support.loaders import ask, running, wait_until
from tests.support.records import write_records
from tests.support.shards import npy, write_shard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.loaders import Loaders

_SAMPLES, _STEPS = 300, 50
_AHEAD = 2
#: Files that are read in different ways, and what the lengths of their samples are called.
_FILES = {
    "jsonl": ("a.jsonl", "audio"),
    "numpy": ("arrays.npz", "audio"),
    "tfrecord": ("a.tfrecord", "audio"),
    "webdataset": ("a.tar", "npy"),
}


def write_files(folder: Path) -> None:
    values = np.arange(_SAMPLES * _STEPS, dtype=np.float32)
    samples = values.reshape(_SAMPLES, _STEPS)
    np.savez(folder / "arrays.npz", audio_values=values, audio_offsets=np.arange(_SAMPLES + 1) * _STEPS)
    (folder / "a.jsonl").write_text("\n".join(json.dumps({"audio": one.tolist()}) for one in samples))
    write_records(folder / "a.tfrecord", [example(audio=one.tolist()) for one in samples])
    write_shard(folder / "a.tar", [(f"{n:03}.npy", npy(one)) for n, one in enumerate(samples)])


def write_streams(folder: Path, *kinds: str) -> Path:
    """A job of these streams; its file."""
    write_files(folder)
    text = JOB
    for kind in kinds:
        file, length = _FILES[kind]
        said = STREAM.format(kind, f'paths = ["{file}"]', length).replace("30 steps", "400 steps")
        text += f"{said}evaluation = true\n"
    (folder / "job.toml").write_text(text)
    return folder / "job.toml"


def read(
    endpoint: str, stream: str = "numpy", then: Callable[[int], object] = bool, lost_timeout_s: float = 1000.0
) -> list[tuple[int, int]]:
    got = []
    with trainer_client.connect(endpoint, stream=stream, prefetch=_AHEAD, lost_timeout_s=lost_timeout_s) as feed:
        for batch in feed:
            got.append((batch.number, batch.digest))
            then(len(got))
    return got


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 8)


def put_back(file: Path, content: bytes, times: os.stat_result) -> None:
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.slow
@pytest.mark.fault(29)
def test_a_worker_refuses_what_was_cut_short_however_it_is_read_and_serves_all_else(tmp_path: Path) -> None:
    def cut_between_batches(read: int) -> None:
        """While nothing is built: whoever reads a mapped file at that very moment dies."""
        if read == 3:
            wait_until(lambda: is_idle_after(loaders, built + read + _AHEAD), "what is read ahead is built")
            cut(file)

    with running(write_streams(tmp_path, *_FILES), workers=1) as loaders:
        before = {kind: read(loaders.endpoint, kind) for kind in _FILES}
        built = sum(map(len, before.values()))
        [worker] = loaders.workers()
        for kind, (name, _) in _FILES.items():
            file = tmp_path / name
            content, times = file.read_bytes(), file.stat()
            with pytest.raises(DataError, match="the file has changed since") as caught:
                read(loaders.endpoint, kind, then=cut_between_batches)
            assert str(file) in caught.value.where
            assert caught.value.remedy.startswith("Put the file back")
            others = {other: read(loaders.endpoint, other) for other in _FILES if other != kind}
            assert others == {other: numbers for other, numbers in before.items() if other != kind}
            put_back(file, content, times)
            assert read(loaders.endpoint, kind) == before[kind]
            built += 3 + _AHEAD + sum(map(len, before.values()))
        assert [one.pid for one in loaders.workers()] == [worker.pid]


def is_idle_after(loaders: Loaders, built: int) -> bool:
    workers = ask(loaders.endpoint)["workers"]
    return [one["built"] >= built and not one["waiting"] + one["building"] for one in workers] == [True]


@pytest.mark.timeout(300)
def test_workers_that_died_while_a_file_was_cut_short_say_which_and_go_on_once_it_is_back(tmp_path: Path) -> None:
    job, file = write_streams(tmp_path, "numpy"), tmp_path / "arrays.npz"
    content, times = file.read_bytes(), file.stat()

    def cut_and_kill(read: int) -> None:
        if read == 3:
            stop_all(workers := loaders.workers())  # while they live, they refuse the file
            cut(file)
            for worker in workers:
                worker.kill()

    with running(job, workers=2) as loaders, ThreadPoolExecutor() as pool:
        expected = read(loaders.endpoint)
        reading = pool.submit(read, loaders.endpoint, then=cut_and_kill)
        wait_until(lambda: len(ask(loaders.endpoint)["failing"]) == 2, "both workers say why they do not come back")
        said = f"{file}, index {tmp_path}/.stoker/formats/index-numpy"
        needed = f"expected the file that the index was made from ({len(content)} bytes)"
        for one in ask(loaders.endpoint)["failing"]:
            assert one["where"] == said
            assert f"expected {one['expected']}" == needed
            assert one["got"] == f"another one ({len(content) // 8} bytes)"
        code, shown, _ = command("status", loaders.endpoint, "--once")
        assert code == 0
        assert "cannot serve" in shown
        assert "another one" in shown

        with pytest.raises(DataError, match="cannot serve, and there was no other for 1 s") as caught:
            read(loaders.endpoint, lost_timeout_s=1.0)
        assert (caught.value.where.startswith(said), caught.value.exit_code) == (True, 1)

        put_back(file, content, times)
        assert reading.result() == expected
        wait_until(lambda: not ask(loaders.endpoint)["failing"], "status tells of none any more")
        assert loaders.text().count(needed) <= 2 * 2, "each place says it once, and the coordinator"


def stop_all(workers: list[psutil.Process]) -> None:
    for worker in workers:
        worker.suspend()
    wait_until(lambda: {worker.status() for worker in workers} == {psutil.STATUS_STOPPED}, "workers are stopped")
