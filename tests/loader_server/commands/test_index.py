"""What `loader-server index` refuses before it looks at the data, and `loader-server run` of data that are indexed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from loader_server.commands.index import index_missing, index_streams
from loader_server.job_file import JobFile
from shared.errors import ReadError, SettingsError
from tests.loader_server.sources.speech.kaldi_data import write_features, write_recordings
from tests.support.corpora import make_corpus

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


def write_recorded_job(folder: Path, stream: str) -> JobFile:
    """A stream of recordings, or of features of archives, as `stream` says; it is indexed."""
    make_corpus(folder, samples=4)
    write_recordings(folder / "kaldi", "a", "b", "c", seconds=0.1)
    write_features(folder / "archives", {f"u{n}": np.ones((n, 2), np.float32) for n in (1, 2, 3)})
    (folder / "a.txt").write_text("one line\n")
    (folder / "job.toml").write_text(f'[job]\nname = "j"\n[streams.train]\n{stream}\n')
    job = JobFile(folder / "job.toml")
    index_streams(job, ["train"], processes=1)
    return job


MANIFEST = 'source = "manifest"\npaths = ["csv.csv"]'
OF_AUDIO = 'length = "audio"\nbudget = "10 s"'
#: What the job has, which file of it changes, and what is said of that.
RECORDED = {
    "a manifest": (f"{MANIFEST}\n{OF_AUDIO}", "clips/00003.wav", r"clips/00003\.wav \(.*csv\.csv, line 5\)"),
    "chunks": (f'{MANIFEST}\n{OF_AUDIO}\nchunk = "0.1 s"', "clips/00003.wav", r"clips/00003\.wav"),
    "a mixture": (
        f'length = "text"\nbudget = "99 characters"\ntransforms = ["characters"]\n'
        f'[[streams.train.sources]]\nsource = "lines"\npaths = ["a.txt"]\n[[streams.train.sources]]\n{MANIFEST}',
        "clips/00003.wav",
        r"clips/00003\.wav",
    ),
    "recordings of Kaldi": (f'source = "kaldi"\npaths = ["kaldi"]\n{OF_AUDIO}', "kaldi/c.wav", r"c\.wav"),
    "archives of Kaldi": (
        'source = "kaldi"\npaths = ["archives"]\nvalues = "features"\nlength = "features"\nbudget = "9 steps"',
        "archives/feats.ark",
        r"feats\.ark",
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_data_that_changed_since_they_were_indexed_are_refused_before_a_job_is_served(
    tmp_path: Path, name: str
) -> None:
    stream, file, where = RECORDED[name]
    job = write_recorded_job(tmp_path, stream)
    index_missing(job)
    os.utime(tmp_path / file, ns=(1, 1))
    with pytest.raises(ReadError, match=rf"{where}.*: expected the .* that was indexed \(\d+ bytes\), got .* since"):
        index_missing(job)


def test_a_recording_that_is_gone_is_refused_before_a_job_is_served(tmp_path: Path) -> None:
    job = write_recorded_job(tmp_path, f"{MANIFEST}\n{OF_AUDIO}")
    (tmp_path / "clips/00003.wav").unlink()
    with pytest.raises(ReadError, match=r"00003\.wav .*: expected the file that was indexed .*, got No such file or"):
        index_missing(job)
