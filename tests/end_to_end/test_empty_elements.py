"""Elements of a pipeline that are empty, of every dtype and rank: through real loaders into a trainer of its own, which
TensorFlow ended where a tensor had no elements.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from tests.support.forked import ROOT, start_module
from tests.support.loaders import running

if TYPE_CHECKING:
    from pathlib import Path

ALONE = "tests.end_to_end.alone_empty_elements"
NAMES = ("batches", "scalars", "flat", "deep", "ragged", "sparse", "padded")
JOB = """
[job]
name = "empty"
seed = 5
listen = "tcp://127.0.0.1:*"
accept_graphs = true

[streams.pipeline]
source = "pipeline"
pipeline = "tests.end_to_end.alone_empty_elements:pipeline"
producers = 2
"""
SENT = """
[streams.{name}_{producers}]
source = "graph"
producers = {producers}
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whatever_is_empty_in_an_element_comes_out_as_it_is(tmp_path: Path) -> None:
    job, said = tmp_path / "job.toml", tmp_path / "said"
    streams = [(name, producers) for name in NAMES for producers in (1, 2)]
    job.write_text(JOB + "".join(SENT.format(name=name, producers=producers) for name, producers in streams))
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    with running(job, tensorflow=True) as loaders:
        command = (ALONE, loaders.endpoint)
        trainer = start_module(command, folder=ROOT, log=said, environment=environment, tensorflow=True)
        try:
            code = trainer.wait(800)
        finally:
            trainer.kill()
    assert code == 0, said.read_text()
    read = re.findall(r"^(\w+), (\d+) at a time: (\d+) elements, (\d+)", said.read_text(), re.MULTILINE)
    assert [(name, int(most)) for name, most, _, _ in read] == [
        *((f"{name}_{producers}", most) for name, producers in streams for most in (16, 1)),
        ("pipeline", 16),
        ("pipeline", 1),
    ]
    by_stream = {name: (int(elements), int(empty)) for name, _, elements, empty in read}
    assert by_stream["batches_2"] == by_stream["flat_2"] == (5, 1)
    assert by_stream["pipeline"] == (6, 6)
