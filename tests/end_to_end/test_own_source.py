"""A user's own class beside the job file, as a source: every process makes its own, and a bad sample is masked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import trainer_client
from tests.support.loaders import running

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
[job]
name = "own"
listen = "tcp://127.0.0.1:*"
[streams.train]
source = "my_numbers:Numbers"
length = "tokens"
budget = "60 tokens"
shapes = 3
[streams.train.arguments]
count = 50
torn = 7
"""

#: It believes its own lengths, so that a sample that raises is met while batches are built.
CLASS = """
import os, pathlib
import numpy as np

class Numbers:
    def __init__(self, count, torn):
        self.count, self.torn = count, torn
        folder = pathlib.Path(__file__).parent / "made"
        folder.mkdir(exist_ok=True)
        (folder / str(os.getpid())).touch()

    def __len__(self):
        return self.count

    def lengths(self):
        return {"tokens": [1 + i % 9 for i in range(self.count)]}

    def __getitem__(self, i):
        if i == self.torn:
            raise ValueError("torn")
        return {"tokens": np.full(1 + i % 9, i, np.int32), "half": i / 2}
"""


def test_a_class_beside_the_job_file_is_trained_on(tmp_path: Path) -> None:
    (tmp_path / "my_numbers.py").write_text(CLASS)
    (tmp_path / "job.toml").write_text(JOB)
    got: dict[int, float] = {}
    with running(tmp_path / "job.toml", workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        for batch in feed:
            for row in range(len(batch["tag"])):
                if batch["weight"][row]:
                    number = int(batch["tag"][row])
                    assert batch["tokens"][row, : batch["tokens_length"][row]].tolist() == [number] * (1 + number % 9)
                    got[number] = float(batch["half"][row])
        assert feed.tag(7) == "my_numbers:Numbers, sample 7"
        workers = {str(worker.pid) for worker in loaders.workers()}
    assert got == {number: number / 2 for number in range(50) if number != 7}
    assert workers <= {path.name for path in (tmp_path / "made").iterdir()}
    (line,) = (tmp_path / ".stoker/own/quarantine.jsonl").read_text().splitlines()
    assert json.loads(line)["name"] == "my_numbers:Numbers, sample 7"
