"""What is free for this process and how many cores it has, by this machine's own files and by made-up ones."""

from __future__ import annotations

import math
import os
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest

from loader_server.machine import free_room as module
from loader_server.machine.free_room import free_room, granted_cores
from loader_server.machine.room import UNLIMITED, Room, quota_cores


@contextmanager
def limited(limit, soft):
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(limit, before)


def test_some_of_both_is_free_here():
    room = free_room()
    assert 0 < room.memory < UNLIMITED
    assert 0 < room.descriptors < UNLIMITED


def test_descriptors_that_are_open_are_not_free():
    # Earlier tests may have left some that are not collected yet.
    most = len(list(Path("/proc/self/fd").iterdir())) + 100
    with limited(resource.RLIMIT_NOFILE, most):
        before = free_room().descriptors
        assert before <= 100
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
        assert before - free_room().descriptors == 20
        for descriptor in opened:
            os.close(descriptor)


def test_the_space_of_addresses_may_be_the_least():
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    with limited(resource.RLIMIT_AS, size + 2**26):
        assert free_room().memory <= 2**26


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"memory.max": "5000", "memory.current": "2000", "memory.stat": "inactive_file 500\n"}, 3500),
        ({"memory.limit_in_bytes": "5000", "memory.usage_in_bytes": "2000", "memory.stat": ""}, 3000),
        ({"memory.max": "max", "memory.current": "2000", "memory.stat": ""}, UNLIMITED),
        ({}, UNLIMITED),
    ],
)
def test_the_least_of_a_groups_own_and_its_parents_limits_counts(tmp_path, monkeypatch, files, left):
    inner = tmp_path / "sys/pod/one"
    inner.mkdir(parents=True)
    for name, text in files.items():
        (inner.parent / name).write_text(text)
    (inner / "memory.max").write_text("9000")
    (inner / "memory.current").write_text("0")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/pod/one\n")
    (tmp_path / "self/mountinfo").write_text(f"30 22 0:26 / {tmp_path}/sys rw - cgroup2 cgroup2 rw\n")
    monkeypatch.setattr(module, "_PROC", tmp_path)
    assert module._left_in_groups() == min(left, 9000)


def test_without_a_descriptor_to_look_there_is_none_of_anything(monkeypatch):
    def no_more(*_arguments):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(module.Path, "read_text", no_more)
    assert free_room() == Room(memory=0, descriptors=0)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("200000 100000\n", 2.0),
        ("150000 100000", 1.5),
        ("max 100000\n", math.inf),
        ("-1\n 100000\n", math.inf),
        ("", math.inf),
        ("100000", math.inf),
        ("100000 0", math.inf),
    ],
)
def test_what_a_quota_grants(text, cores):
    assert quota_cores(text) == cores


@pytest.mark.parametrize(("quota", "granted"), [("150000 100000", 2), ("10000 100000", 1), ("max 100000", 3)])
def test_the_least_of_all_limits_counts_and_half_a_core_is_one(monkeypatch, tmp_path, quota, granted):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/slice/job\n")
    (tmp_path / "slice" / "job").mkdir(parents=True)
    (tmp_path / "slice" / "cpu.max").write_text(quota)
    (tmp_path / "slice" / "job" / "cpu.max").write_text("max 100000")
    monkeypatch.setattr(module, "_PROC", tmp_path)
    monkeypatch.setattr(module, "_GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 5})
    assert granted_cores() == granted


def test_the_first_version_has_quota_and_period_in_two_files(monkeypatch, tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("4:memory:/a\n3:cpu,cpuacct:/a\n")
    folder = tmp_path / "cpu,cpuacct" / "a"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("250000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    monkeypatch.setattr(module, "_PROC", tmp_path)
    monkeypatch.setattr(module, "_GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    assert granted_cores() == 3


def test_without_control_groups_affinity_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_PROC", tmp_path / "none")
    assert granted_cores() == len(os.sched_getaffinity(0))
