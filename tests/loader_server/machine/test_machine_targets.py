"""One list for all jobs of a machine: as each coordinator tells it, or as it told it last while it is silent."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from loader_server.machine import machine_targets
from loader_server.machine.machine_targets import MachineTargets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Coordinator:
    """An HTTP server that answers `/targets`, as a coordinator's metrics port does, once `wait` returns."""

    def __init__(self, name: str) -> None:
        self.wait: Callable[[], object] = lambda: None
        self.content = json.dumps([{"targets": [name], "labels": {"job": name}}])
        self.headers: list[str | None] = []
        coordinator = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                coordinator.headers.append(self.headers.get("Authorization"))
                coordinator.wait()
                self.send_response(200 if self.path == "/targets" else 404)
                self.end_headers()
                self.wfile.write(coordinator.content.encode())

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.child = SimpleNamespace(metrics=f"0.0.0.0:{self._server.server_port}", is_serving=True)
        self.job: Any = SimpleNamespace(coordinator=self.child, has_own_coordinator=True)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(60)
        self._server.server_close()


@pytest.fixture
def digits() -> Iterator[_Coordinator]:
    coordinator = _Coordinator("digits")
    yield coordinator
    coordinator.close()


@pytest.fixture
def words() -> Iterator[_Coordinator]:
    coordinator = _Coordinator("words")
    yield coordinator
    coordinator.close()


def _names(targets: MachineTargets) -> list[str]:
    return [target["labels"]["job"] for target in targets.listed("127.0.0.1")]


def test_the_jobs_of_a_machine_are_in_one_list_whatever_is_added_or_ends(
    digits: _Coordinator, words: _Coordinator
) -> None:
    jobs = {"digits": digits.job}
    targets = MachineTargets(jobs, "")
    assert _names(targets) == ["digits"]
    jobs["words"] = words.job
    assert _names(targets) == ["digits", "words"]
    del jobs["digits"]
    assert _names(targets) == ["words"]


def test_a_coordinator_that_is_silent_or_gone_counts_with_its_last_list(
    digits: _Coordinator, words: _Coordinator
) -> None:
    targets = MachineTargets({"digits": digits.job, "words": words.job}, "")
    assert _names(targets) == ["digits", "words"]
    digits.content, words.child.is_serving = "", False
    assert _names(targets) == ["digits", "words"]
    digits.content = "[]"
    assert _names(targets) == ["words"]


def test_coordinators_are_asked_at_the_same_time(
    digits: _Coordinator, words: _Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_targets, "_ANSWER_S", 60.0)
    both_asked = threading.Barrier(2, timeout=60)
    digits.wait = words.wait = both_asked.wait  # neither answers before the other was asked
    assert _names(MachineTargets({"digits": digits.job, "words": words.job}, "")) == ["digits", "words"]


@pytest.mark.parametrize("content", ["", "{}", '[{"targets": ', "\xff"])
def test_without_a_whole_list_there_is_nothing_to_tell(digits: _Coordinator, content: str) -> None:
    digits.content = content
    assert _names(MachineTargets({"digits": digits.job}, "")) == []


def test_a_list_that_was_told_for_another_host_does_not_count(digits: _Coordinator) -> None:
    targets = MachineTargets({"digits": digits.job}, "")
    assert _names(targets) == ["digits"]
    digits.content = ""
    assert targets.listed("127.0.0.2") == []  # its addresses may be of no use there


def test_a_job_that_was_joined_is_listed_by_its_coordinator_elsewhere(digits: _Coordinator) -> None:
    digits.job.has_own_coordinator = False
    assert _names(MachineTargets({"digits": digits.job}, "")) == []
    assert digits.headers == []


def test_coordinators_are_shown_the_token(digits: _Coordinator) -> None:
    _names(MachineTargets({"digits": digits.job}, "0123456789abcdef"))
    _names(MachineTargets({"digits": digits.job}, ""))
    assert digits.headers == ["Bearer 0123456789abcdef", None]


def test_a_job_that_ended_is_forgotten_and_not_told_again_under_its_name(digits: _Coordinator) -> None:
    jobs = {"digits": digits.job}
    targets = MachineTargets(jobs, "")
    _names(targets)
    jobs.clear()
    assert _names(targets) == []
    digits.content = ""
    jobs["digits"] = digits.job
    assert _names(targets) == []
