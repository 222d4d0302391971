"""The deadline of a build: when its timer is set, and that it ends a process that nothing else would end."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from loader_server.building.deadline import Deadline

MS = 10**6


@pytest.fixture
def timer() -> list[float]:
    return []


@pytest.fixture
def deadline(timer: list[float]) -> Deadline:
    return Deadline(2.0, set_timer=timer.append)


def test_a_step_has_the_whole_time_and_at_most_a_tenth_more(deadline: Deadline, timer: list[float]) -> None:
    set_ms = None
    for now_ms in range(1, 1000, 7):
        deadline.begin(now_ms * MS)
        if timer:
            set_ms, (seconds,) = now_ms, timer
            timer.clear()
        assert set_ms is not None
        assert 2000 <= set_ms + 1000 * seconds - now_ms <= 2200


def test_setting_the_timer_is_left_out_while_a_tenth_of_the_time_goes_by(
    deadline: Deadline, timer: list[float]
) -> None:
    for now_ms in range(1, 1000):
        deadline.begin(now_ms * MS)
    assert len(timer) == 5


def test_after_the_last_step_no_timer_runs_and_the_next_one_sets_it_at_once(
    deadline: Deadline, timer: list[float]
) -> None:
    deadline.begin(0)
    deadline.end()
    deadline.begin(0)
    assert timer == [2.2, 0, 2.2]


_HANGS = """
import re, time
from loader_server.building.deadline import Deadline, let_deadlines_end_us
let_deadlines_end_us()
def matches():
    deadline = Deadline({seconds})
    deadline.begin(time.perf_counter_ns())
    {then}
    re.match(r"(a+)+$", "a" * 64 + "b")
matches()
"""


@pytest.mark.parametrize("inherited", ["default", "ignored", "blocked"])
def test_a_process_whose_c_code_holds_the_interpreter_ends_and_says_where_it_was(inherited: str) -> None:
    def inherit() -> None:
        if inherited == "ignored":
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
        if inherited == "blocked":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})

    command = [sys.executable, "-c", _HANGS.format(seconds=0.1, then="")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, preexec_fn=inherit)
    assert done.returncode == -signal.SIGALRM
    assert "in matches" in done.stderr


def test_a_process_that_builds_nothing_has_no_timer() -> None:
    then = "deadline.end(); import signal; raise SystemExit(signal.getitimer(signal.ITIMER_REAL) != (0, 0))"
    command = [sys.executable, "-c", _HANGS.format(seconds=60, then=then)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
