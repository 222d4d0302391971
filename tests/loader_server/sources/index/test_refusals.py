"""Refusals of bad rows: each reason once, with the first row that has it and a count."""

from __future__ import annotations

import pytest

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from shared.errors import DataError


def test_one_reason_of_ten_rows_is_said_once_with_a_count(tmp_path):
    rows = "".join(f"missing/{number}.wav,word\n" for number in range(25))
    (tmp_path / "train.csv").write_text("audio,text\n" + rows)
    job = tmp_path / "job.toml"
    job.write_text(
        '[job]\nname = "j"\n[streams.train]\nsource = "manifest"\npaths = ["train.csv"]\n'
        'transforms = ["logmel", "characters"]\nlength = "audio"\nbudget = "9 s"\n'
    )
    with pytest.raises(DataError) as caught:
        index_streams(JobFile(job), ["train"])
    shown = caught.value.remedy
    assert shown.count("line ") == 1
    assert "train.csv, line 2: " in shown
    assert "(and 9 more of the first 10)" in shown
    assert len(str(caught.value)) < 700
