"""A file that is cut short under a running job: trainers and `status` hear which, and once it is back all goes on."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

import trainer_client
from loader_server.commands.status import ask
from shared.errors import DataError, StokerError
from tests.end_to_end.test_formats import JOB, STREAM
from tests.end_to_end.test_several_jobs import command
from tests.support.loaders import running, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SAMPLES, _STEPS = 300, 50
_AHEAD = 2


def write_job_of_arrays(folder: Path) -> Path:
    """Arrays, which workers map into memory: what is not there any more ends the process that looks at it."""
    np.savez(
        folder / "arrays.npz",
        audio_values=np.arange(_SAMPLES * _STEPS, dtype=np.float32),
        audio_offsets=np.arange(_SAMPLES + 1) * _STEPS,
        label=np.arange(_SAMPLES),
    )
    said = STREAM.format("numpy", 'paths = ["arrays.npz"]', "audio").replace("30 steps", "400 steps")
    (folder / "job.toml").write_text(f"{JOB}{said}evaluation = true\n")
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


@pytest.mark.timeout(300)
def test_trainers_and_status_hear_which_file_was_cut_short_and_go_on_once_it_is_back(tmp_path: Path) -> None:
    job, file = write_job_of_arrays(tmp_path), tmp_path / "arrays.npz"
    content, times = file.read_bytes(), file.stat()

    def cut(read: int) -> None:
        """While nothing is built: a batch that was read just before is refused by a check of the file after it."""
        if read == 3:
            built = len(expected) + read + _AHEAD
            wait_until(lambda: sum(one["built"] for one in ask(loaders.endpoint)["workers"]) >= built, "all is built")
            os.truncate(file, len(content) // 8)

    with running(job, workers=2) as loaders, ThreadPoolExecutor() as pool:
        expected = read(loaders.endpoint)
        reading = pool.submit(read, loaders.endpoint, then=cut)
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

        file.write_bytes(content)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert reading.result() == expected
        wait_until(lambda: not ask(loaders.endpoint)["failing"], "status tells of none any more")
        assert loaders.text().count(needed) <= 2 * 2, "each place says it once, and the coordinator"
        assert loaders.text().count("signal SIGBUS") == 2


def test_without_a_map_it_is_the_sentence_of_who_read_it(tmp_path: Path) -> None:
    rows = "\n".join(f'{{"audio": {[float(n)] * _STEPS}, "label": {n}}}' for n in range(_SAMPLES))
    file = tmp_path / "a.jsonl"
    file.write_text(rows)
    said = STREAM.format("jsonl", 'paths = ["a.jsonl"]', "audio").replace("30 steps", "400 steps")
    (tmp_path / "job.toml").write_text(JOB + said)
    with running(tmp_path / "job.toml", workers=2) as loaders:
        os.truncate(file, len(rows) // 8)
        with pytest.raises(StokerError, match="the file has changed since") as caught:
            read(loaders.endpoint, "jsonl")
        assert str(file) in caught.value.where
        assert "Put the file back" in caught.value.remedy
