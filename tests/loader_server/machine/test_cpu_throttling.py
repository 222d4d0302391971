"""For how long control groups were throttled: by made-up files of both versions, and by a real quota."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from loader_server.machine import cpu_throttling as module
from loader_server.machine.cpu_throttling import throttled_us
from tests.support.control_groups import cpu_quota_group

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(module, "_GROUPS", tmp_path / "groups")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_nothing_is_throttled_if_nothing_can_be_read(root: Path) -> None:
    assert throttled_us() == 0
    write(root / "proc/self/cgroup", "0::/job\n4:memory:/a\n1:cpu:/b\n")
    assert throttled_us() == 0
    write(root / "groups/job/cpu.stat", "usage_usec 17\n")
    assert throttled_us() == 0


def test_the_second_version_tells_microseconds(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/job/worker\n")
    write(root / "groups/job/worker/cpu.stat", "usage_usec 9\nnr_throttled 2\nthrottled_usec 1234\n")
    assert throttled_us() == 1234


def test_the_first_version_tells_nanoseconds(root: Path) -> None:
    write(root / "proc/self/cgroup", "3:cpuset:/other\n2:cpu,cpuacct:/job\n")
    write(root / "groups/cpu,cpuacct/job/cpu.stat", "nr_throttled 2\nthrottled_time 1234567\n")
    write(root / "groups/cpuset/other/cpu.stat", "throttled_time 99999999999\n")
    assert throttled_us() == 1234


def test_of_a_group_and_its_parents_that_one_counts_which_waited_longest(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/a/b/c\n")
    for group, waited_us in (("a/b/c", 10), ("a/b", 300), ("a", 20), ("", 5)):
        write(root / "groups" / group / "cpu.stat", f"throttled_usec {waited_us}\n")
    assert throttled_us() == 300


def test_a_container_s_group_may_be_mounted_as_the_root(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/docker/4711\n")
    write(root / "groups/cpu.stat", "throttled_usec 8\n")
    assert throttled_us() == 8


def test_a_process_with_a_tenth_of_a_core_is_throttled_for_most_of_the_time_in_which_it_computes() -> None:
    program = (
        "import sys, time\n"
        "from loader_server.machine.cpu_throttling import throttled_us\n"
        "sys.stdin.readline()\n"
        "before, began_s, cpu_s = throttled_us(), time.monotonic(), time.process_time()\n"
        "while time.process_time() - cpu_s < 0.2: pass\n"
        "print((throttled_us() - before) / 1e6, time.monotonic() - began_s)\n"
    )
    with cpu_quota_group(0.1) as group:
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        group.take([process.pid])
        throttled_s, over_s = map(float, process.communicate("\n", timeout=60)[0].split())
    # A fifth of a second of computing takes two; a busy machine makes it longer without throttling.
    assert over_s > 1.5
    assert 0.5 < throttled_s < over_s + 0.1
