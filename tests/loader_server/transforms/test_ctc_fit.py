"""Labels that do not fit their frames: bad rows where lengths tell, masked rows where only the labels do."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from loader_server.transforms.ctc_fit import CtcFit, CtcFitSettings
from shared.errors import DataError, SampleError, SettingsError
from tests.loader_server.sources.manifest.test_source import long_recording
from tests.support.sources import raw_of

JOB = """
[job]
name = "x"
[streams.train]
source = "manifest"
paths = ["m.jsonl"]
transforms = ["logmel", "characters", "ctc_fit"{more}]
length = "audio"
budget = "1000 frames"
[streams.train.logmel]
bands = 8
[streams.train.ctc_fit]
reduction = {reduction}
"""


def refused(labels, frames, **settings):
    try:
        CtcFit(CtcFitSettings(**settings))({"text": np.array(labels), "audio": np.zeros((frames, 2))}, None)
    except SampleError as error:
        return error.reason == "labels_do_not_fit" and error.got
    return False


@pytest.mark.parametrize(
    ("labels", "frames", "reduction", "got"),
    [
        ([1, 2, 3], 3, 1, False),
        ([1, 2, 3], 2, 1, "3 labels and 0 repeats"),
        ([1, 1, 1, 2], 6, 1, False),
        ([1, 1, 1, 2], 5, 1, "4 labels and 2 repeats"),
        ([1, 2, 3], 12, 4, False),
        ([1, 2, 3], 11, 4, "3 labels and 0 repeats"),
        ([], 0, 4, False),
        ([7], 1, 1, False),
        ([7], 0, 1, "1 labels and 0 repeats"),
    ],
)
def test_each_label_needs_a_frame_and_a_repeated_one_another(labels, frames, reduction, got):
    assert refused(labels, frames, reduction=reduction) == got


def test_lengths_say_which_samples_are_in_doubt():
    fit = CtcFit(CtcFitSettings(reduction=4))
    lengths = {"text": np.array([3, 3, 4, 0]), "audio": np.array([12, 11, 16, 0])}
    assert fit.may_refuse(lengths).tolist() == [False, True, False, False]


def written(folder, reduction=10, more=""):
    (folder / "job.toml").write_text(JOB.format(reduction=reduction, more=more))
    return JobFile(folder / "job.toml")


def made(folder, texts):
    """Rows of 0.4 s: 38 frames, so at most three labels."""
    long_recording(folder, "wav")
    rows = [{"audio": "long.wav", "offset": n / 10, "duration": 0.4, "text": text} for n, text in enumerate(texts)]
    (folder / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return written(folder)


def test_labels_that_do_not_fit_are_a_bad_row_by_name(tmp_path):
    job = made(tmp_path, ["abc", "abcd", "abc!?!", "abcdefg", "ab"])
    report = index_streams(job, ["train"])["train"]
    assert (report.samples, report.bad_counts) == (3, {"labels_do_not_fit": 2})
    assert [(bad.where, bad.line) for bad in report.bad] == [
        (str(tmp_path / "m.jsonl"), 2),
        (str(tmp_path / "m.jsonl"), 4),
    ]
    assert report.bad[0].detail == (
        'expected at most 3 labels and repeats of these in "text", as many as frames, got 4 labels and 0 repeats'
    )
    stream = Stream(job, "train")
    assert [stream.source.name(n) for n in range(3)] == ["long.wav@0.0", "long.wav@0.2", "long.wav@0.4"]


def test_repeats_that_do_not_fit_refuse_the_sample_when_it_is_built(tmp_path):
    job = made(tmp_path, ["abc", "aab"])
    assert index_streams(job, ["train"])["train"].bad == ()
    stream = Stream(job, "train")
    sample = stream.source.decode(1, raw_of(stream.source, 1))
    with pytest.raises(SampleError, match="got 3 labels and 1 repeats"):
        stream.chain.apply(sample, seed=0, epoch=0, number=1)


def test_an_index_that_was_made_with_other_transforms_is_refused_if_these_decide_what_fits(tmp_path):
    job = made(tmp_path, ["abc", "abcd"])
    first = index_streams(job, ["train"])["train"]
    assert index_streams(job, ["train"])["train"].fingerprint == first.fingerprint
    looser = written(tmp_path, reduction=2)
    with pytest.raises(DataError, match=r"without the samples that the transforms refuse.*Run loader-server index"):
        Stream(looser, "train")
    assert index_streams(looser, ["train"])["train"].samples == 2
    after = written(tmp_path, reduction=2, more=', "spec_augment"')
    assert Stream(after, "train").samples == 2


def test_it_does_not_matter_how_many_processes_try(tmp_path):
    job = made(tmp_path, ["abc", "abcdef"] * 9)
    one = index_streams(job, ["train"], processes=1)["train"]
    os.utime(tmp_path / "long.wav", ns=(5, 5))
    again = index_streams(job, ["train"], processes=2)["train"]
    assert (one.bad_counts, again.bad_counts) == ({"labels_do_not_fit": 9},) * 2


def test_a_key_that_is_not_there_is_named(tmp_path):
    job = made(tmp_path, ["abc"])
    text = (tmp_path / "job.toml").read_text()
    (tmp_path / "job.toml").write_text(f'{text}frames = "features"\n')
    with pytest.raises(SettingsError, match=r"ctc_fit: expected a length of 'features', got .*audio"):
        index_streams(JobFile(job.path), ["train"])
