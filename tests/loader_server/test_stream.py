"""An opened stream: what its batches carry, and in which shapes."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from loader_server.commands.index import index_missing
from loader_server.installed import processor_features
from loader_server.job_file import JobFile
from loader_server.sources.audio.audio_files import audio_versions
from loader_server.stream import Stream
from shared.errors import DataError
from shared.hashing import fingerprint
from shared.wire.batch_layout import BucketShape
from tests.support.askers import write_synthetic
from tests.support.corpora import utterances
from tests.support.loaders import write_job

if TYPE_CHECKING:
    from pathlib import Path


def test_marks_of_packed_rows_are_as_long_as_the_rows_and_nothing_else_has_a_length(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path, samples=20, length=20, budget=400)
    path.write_text(path.read_text().replace("shapes = 2", 'packing = "100 steps"'))
    job = JobFile(path)
    index_missing(job)
    stream = Stream(job, "train")
    stream.close()
    lengths = dict.fromkeys(("features", "features_segment", "features_position"), 100)
    assert stream.shapes == (BucketShape(rows=4, lengths=lengths),)


def test_libraries_that_decode_are_part_of_what_workers_have_to_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JobFile(write_job(tmp_path, samples=4))
    index_missing(job)
    before = Stream(job, "train")
    builder = before.builder
    assert before.source.versions.keys() == audio_versions().keys() >= {"soundfile", "libsndfile"}
    monkeypatch.setattr("loader_server.sources.manifest.source.audio_versions", lambda: {"soundfile": "0.0"})
    after = Stream(job, "train")
    assert (after.digest, after.builder == builder) == (before.digest, False)


def test_the_raw_lengths_of_a_sample_are_those_of_the_index(tmp_path: Path) -> None:
    job = JobFile(write_job(tmp_path, samples=4))
    index_missing(job)
    stream = Stream(job, "train")
    made = utterances(4, longest_s=1.0)
    lengths = [stream.raw_lengths(sample) for sample in range(4)]
    assert [one["audio"] for one in lengths] == [len(utterance.audio) for utterance in made]
    assert [one["text"] for one in lengths] == [len(utterance.text) for utterance in made]


def test_what_batches_are_shared_by_does_not_hang_on_who_indexed_the_data_but_on_the_data(tmp_path: Path) -> None:
    def shared(name: str) -> str:
        job = JobFile(tmp_path / f"{name}.toml")
        index_missing(job)
        stream = Stream(job, "train")
        stream.close()
        return stream.shared

    path = write_job(tmp_path, name="a", samples=4)
    for name in "bc":
        (tmp_path / f"{name}.toml").write_text(path.read_text().replace('name = "a"', f'name = "{name}"'))
    path.rename(tmp_path / "a.toml")
    before = shared("a")
    assert shared("b") == before
    os.utime(tmp_path / "clips/00003.wav", ns=(1, 1))
    assert shared("c") != before


def test_loops_that_the_environment_names_are_part_of_what_workers_have_to_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "OPENBLAS_CORETYPE"):
        monkeypatch.delenv(name, raising=False)
    job = JobFile(write_job(tmp_path, samples=4))
    index_missing(job)
    usual = Stream(job, "train")
    before = usual.builder, usual.steady
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")  # log-mel comes out otherwise in the last bits
    named = Stream(job, "train")
    assert named.digest == usual.digest
    assert named.builder != before[0]
    assert named.steady != before[1]
    monkeypatch.setenv("OPENBLAS_CORETYPE", "")
    assert Stream(job, "train").builder == before[0]


def test_without_a_level_the_features_of_the_processor_are_what_workers_have_to_share(tmp_path: Path) -> None:
    job = JobFile(write_job(tmp_path, samples=4))
    index_missing(job)
    stream = Stream(job, "train")
    assert stream.builder_parts()["processor"] == processor_features()
    assert stream.unproved_code == {}
    words = (stream.digest, stream.chain.fingerprint, "float32", processor_features())
    assert stream.builder == fingerprint(*words, repr(sorted(stream.source.versions.items())))


def test_an_index_that_was_made_before_digests_were_kept_is_refused(tmp_path: Path) -> None:
    job = JobFile(write_job(tmp_path, samples=4))
    index_missing(job)
    meta = job.index_folder("train") / "meta.json"
    said = json.loads(meta.read_text())
    meta.write_text(json.dumps({**said, "numbers": [name for name in said["numbers"] if name != "content"]}))
    with pytest.raises(DataError, match=r"expected an index with the columns content, got one without content"):
        Stream(job, "train")
