"""A coordinator whose journal is torn, flipped or held by another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import trainer_client
from tests.support.forked import run_module
from tests.support.loaders import running, write_job

if TYPE_CHECKING:
    from pathlib import Path


def coordinator(job: Path) -> tuple[int, str]:
    """One that is expected to end by itself: its exit code, and what it complained of."""
    code, _, complained = run_module("loader_server", "coordinator", str(job), "--listen", "tcp://127.0.0.1:*")
    return code, complained


def read_some(job: Path) -> list[tuple[int, int]]:
    """Read two epochs, so that there is progress to keep."""
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        return [(batch.number, batch.digest) for _ in range(2) for batch in feed]


@pytest.mark.fault(13)
def test_a_journal_with_a_damaged_fact_is_used_without_it_and_says_so(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=40)
    calm = read_some(job)
    journal = tmp_path / ".stoker" / "tones" / "journal.sqlite"
    damaged = journal.read_bytes().replace(b"GroupFixed/train", b"GroupFixed/trail")
    assert damaged != journal.read_bytes()
    journal.write_bytes(damaged)
    assert read_some(job) == calm
    logs = "".join(path.read_text() for path in tmp_path.glob("loaders-*.log"))
    assert "damaged fact is dropped" in logs


@pytest.mark.fault(13)
def test_a_torn_journal_is_refused_with_what_to_do(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=40)
    calm = read_some(job)
    journal = tmp_path / ".stoker" / "tones" / "journal.sqlite"
    whole = journal.read_bytes()
    journal.write_bytes(whole[: len(whole) // 3])
    code, complained = coordinator(job)
    assert code != 0
    assert "expected a whole journal" in complained
    assert "Move the file away and start again" in complained
    journal.rename(journal.with_suffix(".damaged"))
    assert read_some(job) == calm


@pytest.mark.fault(15)
def test_a_second_coordinator_on_one_journal_refuses_and_the_first_serves_on(tmp_path: Path, read) -> None:
    job = write_job(tmp_path, samples=40)
    with running(job, workers=1) as loaders:
        calm = read(loaders)
        code, complained = coordinator(job)
        assert code != 0
        assert "that holds the journal" in complained
        assert read(loaders) == calm
