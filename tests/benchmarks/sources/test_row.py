"""The table of formats: what is compared with what, and who is left out."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from tests.benchmarks.sources.row import Pass, Row, interleaved, measured


def reading(*cpu_s: float):
    left = iter(cpu_s)
    return lambda: Pass(samples=100, wall_s=2.0, cpu_s=next(left))


def missing() -> Pass:
    raise ImportError("no module named reader")


def test_ratios_are_of_medians_of_cpu_and_the_first_epoch_stands_alone() -> None:
    sides = {"stoker": reading(4.0, 1.0, 9.0, 2.0), "usual": reading(8.0, 6.0, 7.0, 6.0), "other": reading(1, 3, 3, 3)}
    found = {(row.side, row.epoch): row for row in interleaved("x", sides, 4)}
    assert found["stoker", "first"] == Row(
        format="x", side="stoker", epoch="first", samples_per_s=50.0, cpu_us_per_sample=40_000.0, ratio=2.0
    )
    assert found["stoker", "later"].ratio == 3.0
    assert found["other", "later"].ratio == 2.0
    assert found["usual", "later"].ratio == 1.0


def test_a_peer_that_is_not_installed_is_named_as_left_out() -> None:
    rows = interleaved("x", {"stoker": reading(1.0), "usual": missing}, 1)
    assert [(row.side, row.left_out, row.ratio) for row in rows] == [
        ("stoker", "", 0.0),
        ("usual", "no module named reader", 0.0),
    ]


def test_a_pass_counts_samples_and_the_cpu_of_this_process() -> None:
    found = measured(len([n for n in range(1_000_000) if n % size]) * 0 + size for size in (2, 3))
    assert found.samples == 5
    assert 0 < found.cpu_s < 5


def burn() -> None:
    began_s = time.thread_time()
    while time.thread_time() - began_s < 0.3:
        pass


def test_what_a_side_is_still_doing_when_a_pass_begins_does_not_count() -> None:
    threading.Thread(target=burn).start()
    assert measured([1]).cpu_s < 0.25


def test_what_is_made_ahead_for_the_next_pass_counts() -> None:
    ahead = threading.Thread(target=burn)
    found = measured(ahead.start() or 1 for _ in range(1))
    ahead.join()
    assert (found.samples, found.cpu_s > 0.25) == (1, True)


_BURN = """
import sys, time
print(flush=True)
sys.stdin.readline()
began_s = time.process_time()
while time.process_time() - began_s < 0.3: pass
print(flush=True)
sys.stdin.read()
"""


def test_processes_below_count_while_they_live_and_once_they_have_ended() -> None:
    parent = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {_BURN!r}]))"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def burnt() -> int:
            asked.write(b"\n")
            asked.flush()
            return len(answers.readline())

        assert answers.readline()
        assert measured(burnt() for _ in range(1)).cpu_s > 0.25
        ended = measured(len(process.communicate()) for _ in range(1))
    assert ended.cpu_s < 0.25
