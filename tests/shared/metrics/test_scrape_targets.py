"""Target files name processes that live, and only those."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from shared.metrics.scrape_targets import TargetFile, remove_dead_targets
from tests.support.another_user import as_another_user, folder_for_all

if TYPE_CHECKING:
    from pathlib import Path

LABELS = {"job": "tones", "role": "worker", "worker": "w-0"}

CHILD = """
import os, pathlib, signal, sys
from shared.metrics.scrape_targets import TargetFile
TargetFile(pathlib.Path(sys.argv[1]), "127.0.0.1:2", {"job": "tones", "role": "trainer", "rank": "0"})
os.kill(os.getpid(), signal.SIGKILL)
"""


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_is_what_file_discovery_reads(tmp_path: Path) -> None:
    target = TargetFile(tmp_path / "targets", "127.0.0.1:1", LABELS)
    path = tmp_path / "targets" / "worker-w-0.json"
    assert json.loads(path.read_text()) == [
        {"targets": ["127.0.0.1:1"], "labels": {"instance": "worker-w-0", **LABELS}},
    ]
    assert path.stat().st_mode & 0o044  # Prometheus is another user
    target.close()
    assert _names(tmp_path / "targets") == []


def test_one_that_came_back_keeps_its_file_when_its_predecessor_ends(tmp_path: Path) -> None:
    old = TargetFile(tmp_path, "127.0.0.1:1", LABELS)
    new = TargetFile(tmp_path, "127.0.0.1:2", LABELS)
    old.close()
    assert json.loads((tmp_path / "worker-w-0.json").read_text())[0]["targets"] == ["127.0.0.1:2"]
    new.close()
    assert _names(tmp_path) == []


def test_a_name_may_hold_what_a_path_may_not(tmp_path: Path) -> None:
    target = TargetFile(tmp_path, "127.0.0.1:1", {"job": "tones", "role": "worker", "worker": "../rack 3/w:0"})
    assert _names(tmp_path) == ["worker-.._rack_3_w_0.json"]
    target.close()


def test_the_files_of_processes_that_were_killed_are_removed_and_no_others(tmp_path: Path) -> None:
    target = TargetFile(tmp_path, "127.0.0.1:1", LABELS)
    subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], check=False)
    assert _names(tmp_path) == ["trainer-0.json", "worker-w-0.json"]
    assert remove_dead_targets(tmp_path) == ["trainer-0"]
    assert _names(tmp_path) == ["worker-w-0.json"]
    target.close()
    assert remove_dead_targets(tmp_path) == []
    assert remove_dead_targets(tmp_path / "nothing") == []


@pytest.mark.fault(66)
def test_the_files_of_another_user_are_left_alone() -> None:
    with folder_for_all() as folder:
        TargetFile(folder, "127.0.0.1:1", LABELS)
        with as_another_user():
            assert remove_dead_targets(folder) == []
        assert len(_names(folder)) == 1
