"""Refusals of bad rows: each reason once, with the first row that has it and a count."""

from __future__ import annotations

import pytest

from loader_server.commands.index import index_streams, show
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


_OBJECTS = """
import numpy as np

def words(sample, rng):
    if {}:
        sample["words"] = np.array(sample["text"].split(" "), object)
"""
_CONVERT = "Convert it in the transform, or remove the key."


def _write_job_of_objects(folder, monkeypatch, *, when: str) -> JobFile:
    """Write a job whose transform, which is measured, makes an array of objects of each line that `when` holds for."""
    name = f"objects_{abs(hash(str(folder)))}"
    (folder / f"{name}.py").write_text(_OBJECTS.format(when))
    monkeypatch.syspath_prepend(folder)
    (folder / "a.txt").write_text("".join(f"line {number}\n" for number in range(8)))
    job = folder / "job.toml"
    job.write_text(
        '[job]\nname = "j"\nmax_bad = "5 samples"\n[streams.train]\nsource = "lines"\npaths = ["a.txt"]\n'
        f'transforms = ["{name}:words", "characters"]\nlength = "text"\nbudget = "100 characters"\n'
    )
    return JobFile(job)


def test_arrays_of_objects_are_left_out_with_what_to_do_said_once_and_a_count(tmp_path, monkeypatch, capsys):
    job = _write_job_of_objects(tmp_path, monkeypatch, when='sample["text"] < "line 3"')
    show(index_streams(job, ["train"]), as_json=False)
    complained = capsys.readouterr().err
    assert complained.count(_CONVERT) == 1
    assert f"3 dtype: {_CONVERT}" in complained


def test_data_of_which_every_array_is_of_objects_are_refused_with_what_to_do_said_once(tmp_path, monkeypatch):
    job = _write_job_of_objects(tmp_path, monkeypatch, when="True")
    with pytest.raises(DataError) as caught:
        index_streams(job, ["train"])
    assert caught.value.remedy.count(_CONVERT) == 1
    assert "(and 7 more of the first 8)" in caught.value.remedy
