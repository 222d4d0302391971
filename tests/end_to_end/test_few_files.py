"""At the least number of open files that is accepted, loaders do serve: whoever comes is let in."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import trainer_client
from loader_server.cli import main
from tests.support.loaders import write_job

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = 40


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_with_as_few_files_as_are_accepted_trainers_are_let_in(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=SAMPLES, longest_s=0.5)
    with pytest.raises(SystemExit):
        main(["index", str(job)])
    line = f"ulimit -n 256 && exec {sys.executable} -m loader_server run {job} --workers 1 --listen tcp://127.0.0.1:0"
    with subprocess.Popen(["bash", "-c", line], stdout=subprocess.PIPE, text=True) as loaders:
        try:
            assert loaders.stdout is not None
            served = next(said for said in iter(loaders.stdout.readline, "") if " is served at " in said)
            endpoint = served.split(" at ")[1].split()[0]
            for _ in range(3):
                with trainer_client.connect(endpoint, stream="train") as feed:
                    assert sum(batch.rows for batch in feed) == SAMPLES
        finally:
            loaders.terminate()
