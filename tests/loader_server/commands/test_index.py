"""What `loader-server index` refuses before it looks at the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from shared.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
[job]
name = "texts"

[streams.train]
source = "lines"
paths = ["a.txt"]
length = "text"
budget = "100 characters"
"""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('transforms = ["characters"]\nlength = "txt"', r'length: expected length = "text", got "txt"'),
        ('length = "text"', r'length: expected length = a key with a padded axis, got "text"'),
    ],
)
def test_a_length_that_no_sample_has_is_refused_before_the_data_are_looked_at(
    tmp_path: Path, more: str, message: str
) -> None:
    (tmp_path / "a.txt").write_text("one line\n")
    (tmp_path / "job.toml").write_text(JOB.replace('length = "text"', more))
    job = JobFile(tmp_path / "job.toml")
    with pytest.raises(SettingsError, match=message):
        index_streams(job, ["train"])
    assert not list(tmp_path.rglob("index-train"))
