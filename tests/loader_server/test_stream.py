"""An opened stream: what its batches carry, and in which shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.commands.index import index_missing
from loader_server.stream import JobFile
from shared.wire.layout import BucketShape
from tests.support.askers import write_synthetic

if TYPE_CHECKING:
    from pathlib import Path


def test_marks_of_packed_rows_are_as_long_as_the_rows_and_nothing_else_has_a_length(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path, samples=20, length=20, budget=400)
    path.write_text(path.read_text().replace("shapes = 2", 'packing = "100 steps"'))
    job = JobFile(path)
    index_missing(job)
    stream = job.open("train")
    stream.close()
    lengths = dict.fromkeys(("features", "features_segment", "features_position"), 100)
    assert stream.shapes == (BucketShape(rows=4, lengths=lengths),)
