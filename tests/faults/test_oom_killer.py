"""Where memory runs out the kernel takes a process that can be replaced: one that tries samples, or else a worker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import trainer_client
from tests.support.bad_samples import job_with_texts, rows_of
from tests.support.control_groups import limited_group
from tests.support.loaders import ask, running

if TYPE_CHECKING:
    from tests.support.loaders import Loaders


def score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def others(loaders: Loaders) -> list[psutil.Process]:
    """Supervisor, nursery and coordinator."""
    nursery = next(child for child in loaders._children("nursery") if child.ppid() == loaders.process.pid)
    return [psutil.Process(loaders.process.pid), nursery, loaders.coordinator()]


@pytest.mark.fault(62)
@pytest.mark.slow
def test_workers_and_trials_offer_themselves_and_all_others_keep_their_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_TEST_KILLED", str(tmp_path / "killed"))
    monkeypatch.setenv("STOKER_TEST_SCORE", str(tmp_path / "score"))
    with running(job_with_texts(tmp_path, {7: "victim"}, transform="notes_its_score"), workers=1) as loaders:
        assert rows_of(loaders) == dict.fromkeys(range(60), 1.0)
        inherited = score(loaders.process.pid)
        assert [score(one.pid) for one in others(loaders)] == [inherited] * 3
        assert [score(one.pid) for one in loaders.workers()] == [min(1000, inherited + 500)]
        assert int((tmp_path / "score").read_text()) == min(1000, inherited + 800)
        assert "cannot offer" not in loaders.text()


@pytest.mark.fault(62)
@pytest.mark.slow
def test_of_ten_processes_that_the_kernel_kills_for_memory_none_is_one_that_holds_the_others(tmp_path: Path) -> None:
    """What runs full is no process's own, so that by size any of them might be taken."""
    job = job_with_texts(tmp_path, {7: "hoard"}, transform="hoards")
    # One worker: of two that hoard at a time (the sample of this epoch and of the next) the kernel may take both.
    with limited_group(256 * 2**20) as group, running(job, workers=1) as loaders:
        family = psutil.Process(loaders.process.pid)
        group.take([family.pid, *(one.pid for one in family.children(recursive=True))])
        before = [(one.pid, one.create_time()) for one in others(loaders)]
        while group.kills < 10:
            with pytest.raises(trainer_client.StokerError, match=r"clips/00007\.wav in hand: signal SIGKILL"):
                rows_of(loaders)
            assert loaders.process.poll() is None
        after = [(one.pid, one.create_time()) for one in others(loaders)]
        assert after[:2] == before[:2]
        # The kernel takes another process if one asks for memory before the file of the process that it took last is
        # freed: in 1 of 28 runs, with four times the work for the machine's cores.
        assert loaders.text().count('"child": "coordinator", "cause": "signal SIGKILL"') <= 1
        assert ask(loaders.endpoint)["culprits"] == []
