"""What our processes have in common: forked children keep none of their ports, and OOM scores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loader_server import cli
from loader_server.machine import processes
from loader_server.machine.processes import TRIAL_OFFER, WORKER_OFFER, offer_to_oom_killer

CHILD = """
import json, os, socket, sys
from loader_server.machine.processes import keep_ports_from_children

def serve():
    listening = socket.create_server(("127.0.0.1", 0))
    caller = socket.create_connection(listening.getsockname())
    return listening, listening.accept()[0], caller

ours, theirs = serve(), serve()
pair = socket.socketpair()
keep_ports_from_children([ours[0].getsockname()[1]])
if not os.fork():
    def is_open(one):
        try:
            return bool(os.fstat(one.fileno()))
        except OSError:
            return False
    print(json.dumps([[is_open(one) for one in some] for some in (ours, theirs, pair)]), flush=True)
    os._exit(0)
os.wait()
print(json.dumps(all(one.fileno() >= 0 and os.fstat(one.fileno()) for one in ours)))
"""


def test_a_forked_child_closes_what_it_inherits_of_our_ports_and_nothing_else():
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    child, parent = done.stdout.splitlines()
    listening, accepted, caller = json.loads(child)[0]
    assert (listening, accepted) == (False, False)
    assert caller, "its local port is another"
    assert json.loads(child)[1:] == [[True, True, True], [True, True]]
    assert json.loads(parent)


@pytest.mark.parametrize(
    ("inherited", "more", "raised"),
    [(0, 500, 500), (0, 800, 800), (-900, 500, -400), (300, 800, 1000), (1000, 500, 1000), (700, 0, 700)],
)
def test_a_score_is_raised_from_what_was_inherited_to_the_most_there_is(
    tmp_path: Path, inherited: int, more: int, raised: int
) -> None:
    (tmp_path / "score").write_text(f"{inherited}\n")
    assert offer_to_oom_killer(more, tmp_path / "score") == ""
    assert int((tmp_path / "score").read_text()) == raised


def test_trials_go_before_workers() -> None:
    assert (WORKER_OFFER, TRIAL_OFFER) == (500, 800)


def test_where_it_cannot_be_raised_the_reason_is_told(tmp_path: Path) -> None:
    assert "No such file" in offer_to_oom_killer(500, tmp_path / "none")
    (tmp_path / "score").write_text("nonsense")
    assert "invalid literal" in offer_to_oom_killer(500, tmp_path / "score")


@pytest.mark.fault(62)
def test_a_worker_offers_itself_before_it_does_anything_else_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the kernel may as well take those that hold the others."""
    did: list[object] = []
    monkeypatch.setattr(processes, "_offered", {})
    monkeypatch.setattr(processes, "offer_to_oom_killer", lambda more: did.append(more) or "why not")
    monkeypatch.setattr(cli, "main", did.append)
    cli._be_forked(["worker", "nowhere.toml"])
    assert did == [WORKER_OFFER, ["worker", "nowhere.toml"]]
    assert processes.offer_once(WORKER_OFFER) == "why not"
    assert len(did) == 2
    cli._be_forked(["coordinator", "nowhere.toml"])
    assert did[2:] == [["coordinator", "nowhere.toml"]]
