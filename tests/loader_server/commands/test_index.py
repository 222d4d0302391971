"""What `loader-server index` refuses before it looks at the data, and `loader-server run` of data that are indexed."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from loader_server.cli import main
from loader_server.commands import index
from loader_server.commands.index import index_missing, index_streams
from loader_server.job_file import JobFile
from loader_server.sources.audio.recorded_source import RecordedSource
from shared.errors import ReadError, SettingsError
from tests.loader_server.sources.speech.kaldi_data import write_features, write_recordings
from tests.support.corpora import make_corpus
from tests.support.shards import write_shard

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


def test_a_stream_that_the_job_does_not_have_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("one line\n")
    (tmp_path / "job.toml").write_text(JOB)
    with pytest.raises(SystemExit, match="1"):
        main(["index", str(tmp_path / "job.toml"), "--stream", "trian"])
    assert "expected one of the streams train, got trian" in capsys.readouterr().err
    assert not list(tmp_path.rglob("index-train"))


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


@pytest.fixture
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """All files are looked at, however busy the machine is."""
    monkeypatch.setattr(index, "_LOOK_S", 1000.0)


@pytest.mark.usefixtures("no_hurry")
@pytest.mark.parametrize("name", RECORDED)
def test_data_that_changed_since_they_were_indexed_are_refused_before_a_job_is_served(
    tmp_path: Path, name: str
) -> None:
    stream, file, where = RECORDED[name]
    job = write_recorded_job(tmp_path, stream)
    index_missing(job)
    changed = tmp_path / file
    changed.write_bytes(changed.read_bytes()[:-1] + b"\x55")
    os.utime(changed, ns=(1, 1))
    with pytest.raises(ReadError, match=rf"{where}.*: expected the .* that was indexed \(\d+ bytes\), got .* since"):
        index_missing(job)


@pytest.mark.usefixtures("no_hurry")
def test_a_recording_that_is_gone_is_refused_before_a_job_is_served(tmp_path: Path) -> None:
    job = write_recorded_job(tmp_path, f"{MANIFEST}\n{OF_AUDIO}")
    (tmp_path / "clips/00003.wav").unlink()
    with pytest.raises(ReadError, match=r"00003\.wav .*: expected the file that was indexed .*, got No such file or"):
        index_missing(job)


@pytest.mark.usefixtures("no_hurry")
def test_a_shard_that_was_written_anew_with_the_same_headers_is_refused_before_a_job_is_served(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [("1.txt", b"one")])
    stream = 'source = "webdataset"\npaths = ["a.tar"]\ntransforms = ["characters"]\nlength = "text"'
    job = write_recorded_job(tmp_path, f'{stream}\nbudget = "99 characters"')
    os.utime(tmp_path / "a.tar", ns=(1, 1))
    index_missing(job)
    write_shard(tmp_path / "a.tar", [("1.txt", b"six")])
    with pytest.raises(ReadError, match=r"a\.tar: expected the file that was indexed \(10240 bytes\), got another one"):
        index_missing(job)


def two_streams(folder: Path, stream: str) -> JobFile:
    make_corpus(folder, samples=4)
    (folder / "job.toml").write_text(f'[job]\nname = "j"\n[streams.train]\n{stream}\n[streams.dev]\n{stream}\n')
    job = JobFile(folder / "job.toml")
    index_streams(job, ["train", "dev"], processes=1)
    return job


def test_the_time_to_look_is_that_of_a_job_and_what_one_stream_does_not_need_another_has(
    tmp_path: Path, no_hurry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []
    job = two_streams(tmp_path, f"{MANIFEST}\n{OF_AUDIO}")
    monkeypatch.setattr(RecordedSource, "look_for_changes", lambda _, time_s: times.append(time_s))
    index_missing(job)
    assert times[0] == 500.0
    assert 500.0 < times[1] <= 1000.0


def test_what_a_stream_took_of_the_time_others_do_not_have(
    tmp_path: Path, no_hurry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []
    job = two_streams(tmp_path, f"{MANIFEST}\n{OF_AUDIO}")
    monkeypatch.setattr(RecordedSource, "look_for_changes", lambda _, time_s: times.append(time_s))
    monkeypatch.setattr(index, "time", SimpleNamespace(monotonic=iter((0.0, 900.0, 900.0, 2000.0)).__next__))
    index_missing(job)
    assert times == [500.0, 100.0]


#: Notes each time that it is made.
OWN = """
class Words:
    def __init__(self):
        with open("{made}", "a") as file:
            file.write("x")

    def __len__(self):
        return 2

    def __getitem__(self, number):
        return {{"text": "one"}}
"""


def test_a_class_of_a_users_own_is_not_made_to_look_at_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "made"
    (tmp_path / "own_words.py").write_text(OWN.format(made=made))
    monkeypatch.syspath_prepend(tmp_path)
    stream = 'source = "own_words:Words"\ntransforms = ["characters"]\nlength = "text"\nbudget = "99 characters"'
    job = two_streams(tmp_path, stream)
    assert made.read_text()
    made.unlink()
    index_missing(job)
    assert not made.exists()
