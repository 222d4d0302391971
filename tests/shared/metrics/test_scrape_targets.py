"""Target files name living processes only, and Prometheus is sent to the hosts that workers come from."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from shared.metrics import scrape_targets
from shared.metrics.scrape_targets import SWEEP_S, TargetFile, TargetSweep, remove_dead_targets
from tests.support.another_user import as_another_user, folder_for_all

if TYPE_CHECKING:
    from pathlib import Path

from shared.endpoints import scrape_address
from shared.metrics.scrape_targets import job_targets

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


def _kill_trainer(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", CHILD, str(folder)], check=False)


def test_who_begins_removes_the_files_of_those_that_were_killed(tmp_path: Path) -> None:
    _kill_trainer(tmp_path)
    target = TargetFile(tmp_path, "127.0.0.1:1", LABELS)
    assert _names(tmp_path) == ["worker-w-0.json"]
    target.close()


def test_a_sweep_looks_again_after_its_pause_only(tmp_path: Path) -> None:
    sweep = TargetSweep(tmp_path)
    assert sweep.look(100.0) == []
    _kill_trainer(tmp_path)
    assert sweep.look(100.0 + SWEEP_S - 0.1) == []
    assert sweep.look(100.0 + SWEEP_S) == ["trainer-0"]
    assert _names(tmp_path) == []


def test_a_sweep_of_a_folder_that_is_closed_to_it_removes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(_folder: Path) -> list[str]:
        raise PermissionError

    monkeypatch.setattr(scrape_targets, "remove_dead_targets", refuse)
    assert TargetSweep(tmp_path).look(0.0) == []


@pytest.mark.parametrize("links", [True, False])
def test_a_successor_that_comes_between_looking_and_removing_keeps_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, links: bool
) -> None:
    _kill_trainer(tmp_path)
    living: list[TargetFile] = []
    looks = []
    is_locked = scrape_targets._is_locked

    def look_and_let_come_back(path: Path) -> bool:
        found = is_locked(path)
        looks.append(path)
        if len(looks) == 1:
            living.append(TargetFile(tmp_path, "127.0.0.1:3", {"job": "tones", "role": "trainer", "rank": "0"}))
        return found

    def refuse(_self: Path, _target: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(scrape_targets, "_is_locked", look_and_let_come_back)
    if not links:
        monkeypatch.setattr(type(tmp_path), "hardlink_to", refuse)
    assert remove_dead_targets(tmp_path) == []
    assert json.loads((tmp_path / "trainer-0.json").read_text())[0]["targets"] == ["127.0.0.1:3"]
    (target,) = living
    target.close()
    assert _names(tmp_path) == []


@pytest.mark.fault(66)
def test_the_files_of_another_user_are_left_alone() -> None:
    with folder_for_all() as folder:
        TargetFile(folder, "127.0.0.1:1", LABELS)
        with as_another_user():
            assert remove_dead_targets(folder) == []
        assert len(_names(folder)) == 1


@pytest.mark.parametrize(
    ("bound", "peer_host", "address"),
    [
        ("0.0.0.0:9101", "10.0.0.7", "10.0.0.7:9101"),
        ("10.0.0.7:9101", "10.0.0.7", "10.0.0.7:9101"),
        ("0.0.0.0:9101", "::ffff:10.0.0.7", "10.0.0.7:9101"),
        ("[::]:9101", "2001:db8::7", "[2001:db8::7]:9101"),
        ("127.0.0.1:9101", "127.0.0.1", "127.0.0.1:9101"),
        ("0.0.0.0:9101", "127.0.0.1", ":9101"),
        ("127.0.0.1:9101", "10.0.0.7", ""),
        ("169.254.169.254:80", "10.0.0.7", ""),
        ("loader-1:9101", "10.0.0.7", ""),
        ("0.0.0.0:0", "10.0.0.7", ""),
        ("0.0.0.0:9101", "", ""),
        ("", "10.0.0.7", ""),
    ],
)
def test_a_target_is_where_its_connection_comes_from(bound, peer_host, address):
    assert scrape_address(bound, peer_host) == address


def _addresses(host, *metrics):
    workers = [{"name": f"w{number}", "metrics": address} for number, address in enumerate(metrics)]
    targets = job_targets({"job": "digits", "workers": workers, "streams": {}}, host, 9100)
    return {target["labels"]["instance"]: target["targets"] for target in targets}


def test_who_asks_from_elsewhere_is_sent_to_what_it_reaches():
    everywhere = ("10.0.0.7:9101", ":9102", "127.0.0.1:9103", "")
    assert _addresses("10.0.0.1", *everywhere) == {
        "coordinator": ["10.0.0.1:9100"],
        "worker-w0": ["10.0.0.7:9101"],
        "worker-w1": ["10.0.0.1:9102"],
    }
    assert _addresses("127.0.0.1", *everywhere) == {
        "coordinator": ["127.0.0.1:9100"],
        "worker-w0": ["10.0.0.7:9101"],
        "worker-w1": ["127.0.0.1:9102"],
        "worker-w2": ["127.0.0.1:9103"],
    }


def test_targets_carry_the_labels_of_the_files():
    trainers = [
        {"name": "gpu7:42", "rank": 3, "metrics": "10.0.0.8:9300"},
        {"name": "gpu7:43", "rank": 4, "metrics": ""},
    ]
    queue = [{"name": "gpu8:1", "rank": None, "metrics": ":9301"}]
    report = {
        "job": "digits",
        "workers": [{"name": "w0", "metrics": "10.0.0.7:9101"}],
        "streams": {"train": {"trainers": trainers}, "leased": {"trainers": queue}},
    }
    (_, worker, trainer, leased) = job_targets(report, "10.0.0.1", 1)
    assert worker["labels"] == {"instance": "worker-w0", "job": "digits", "role": "worker", "worker": "w0"}
    assert trainer["targets"] == ["10.0.0.8:9300"]
    own = {"role": "trainer", "rank": "3", "trainer": "train-gpu7-42"}
    assert trainer["labels"] == {"instance": "trainer-3-train-gpu7-42", "job": "digits", **own}
    assert leased["targets"] == ["10.0.0.1:9301"]
    assert leased["labels"]["rank"] == "none"
