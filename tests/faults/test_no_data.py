"""Workers that have everything but their data: they do not serve what they lack, say so, and serve once it is there."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING

import pytest

import trainer_client
from shared.errors import DataError
from tests.end_to_end.test_probes import probe
from tests.end_to_end.test_several_jobs import command
from tests.support.corpora import make_corpus
from tests.support.fleet import fleet
from tests.support.loaders import ask, wait_until, write_job

if TYPE_CHECKING:
    from pathlib import Path

_FAR = """
[streams.far]
like = "train"
paths = ["far/csv.csv"]
evaluation = true
"""


def read(endpoint: str, stream: str) -> int:
    """How many samples the first epoch of a stream has."""
    with trainer_client.connect(endpoint, stream=stream, lost_timeout_s=60) as feed:
        batches = itertools.takewhile(lambda batch: batch.epoch == 0, feed)
        return sum(batch.rows - batch.masked for batch in batches)


@pytest.mark.slow
@pytest.mark.fault(64)
def test_a_worker_without_its_data_says_what_is_missing_and_serves_once_it_is_there(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=24)
    clips, aside = tmp_path / "clips", tmp_path / "aside"
    with fleet(job) as loaders:
        clips.rename(aside)
        worker = loaders.begin("vm-1")
        wait_until(lambda: ask(loaders.endpoint)["failing"], "the coordinator knows what is missing")
        (failing,) = ask(loaders.endpoint)["failing"]
        first = clips / "00000.wav"
        assert f"no data for stream dev: {first} missing (24 of 24 files looked at)" in failing["got"]
        assert f"no data for stream train: {first} missing (24 of 24 files looked at)" in failing["got"]
        code, shown, _ = command("status", loaders.endpoint, "--once")
        assert code == 0
        assert "worker vm-1 cannot serve" in shown
        assert loaders.members() == []
        (target,) = (tmp_path / ".stoker" / "tones" / "targets").glob("worker-*.json")
        assert probe(target, "/readyz") == "no_data"
        assert probe(target, "/healthz") == "ok"

        aside.rename(clips)
        wait_until(lambda: "vm-1" in loaders.members(), "the worker registers")
        assert ask(loaders.endpoint)["failing"] == []
        assert read(loaders.endpoint, "train") == 24
        assert probe(target, "/readyz") == "ok"
        assert worker.poll() is None
    said = loaders.text()
    assert said.count("no data: the stream is not served until they are there") == 2, "a line for each stream"


@pytest.mark.slow
@pytest.mark.fault(64)
def test_a_worker_that_has_some_of_its_data_serves_that(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=24)
    make_corpus(tmp_path / "far", samples=12)
    job.write_text(job.read_text() + _FAR)
    clips, aside = tmp_path / "far" / "clips", tmp_path / "aside"
    with fleet(job) as loaders:
        clips.rename(aside)
        loaders.join("vm-1")
        assert read(loaders.endpoint, "train") == 24
        wait_until(lambda: ask(loaders.endpoint)["failing"], "the coordinator knows what is missing")
        (failing,) = ask(loaders.endpoint)["failing"]
        assert failing["got"] == f"no data for stream far: {clips / '00000.wav'} missing (12 of 12 files looked at)"
        _, shown, _ = command("status", loaders.endpoint, "--once")
        assert "worker vm-1 serves only in part" in shown
        with (
            pytest.raises(DataError, match="no data for stream far"),
            trainer_client.connect(loaders.endpoint, stream="far", lost_timeout_s=3) as feed,
        ):
            list(feed)
        aside.rename(clips)
        assert read(loaders.endpoint, "far") == 12
        wait_until(lambda: not ask(loaders.endpoint)["failing"], "nothing is missing any more")


@pytest.mark.slow
@pytest.mark.fault(64)
def test_a_worker_without_its_index_waits_for_it(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=24)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "clips", elsewhere / "clips")  # with its times
    for file in (job, tmp_path / "csv.csv"):
        shutil.copy2(file, elsewhere)
    with fleet(job) as loaders:
        worker = loaders.begin("vm-1", job=elsewhere / "job.toml")
        wait_until(lambda: ask(loaders.endpoint)["failing"], "the coordinator knows what is missing")
        (failing,) = ask(loaders.endpoint)["failing"]
        assert (failing["expected"], failing["got"]) == ("an index", "none")
        (target,) = (elsewhere / ".stoker" / "tones" / "targets").glob("worker-*.json")
        assert probe(target, "/readyz") == "no_data"
        shutil.copytree(tmp_path / ".stoker" / "tones", elsewhere / ".stoker" / "tones", dirs_exist_ok=True)
        wait_until(lambda: "vm-1" in loaders.members(), "the worker registers")
        assert ask(loaders.endpoint)["failing"] == []
        assert read(loaders.endpoint, "train") == 24
        assert worker.poll() is None
