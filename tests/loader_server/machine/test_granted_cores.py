"""How many cores a host grants: by quota and by affinity."""

from __future__ import annotations

import math
import os

import pytest

from loader_server.machine import granted_cores as module
from loader_server.machine.granted_cores import granted_cores, quota_cores


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
    (tmp_path / "groups").write_text("0::/slice/job\n")
    (tmp_path / "slice" / "job").mkdir(parents=True)
    (tmp_path / "slice" / "cpu.max").write_text(quota)
    (tmp_path / "slice" / "job" / "cpu.max").write_text("max 100000")
    monkeypatch.setattr(module, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(module, "_ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 5})
    assert granted_cores() == granted


def test_the_first_version_has_quota_and_period_in_two_files(monkeypatch, tmp_path):
    (tmp_path / "groups").write_text("4:memory:/a\n3:cpu,cpuacct:/a\n")
    folder = tmp_path / "cpu,cpuacct" / "a"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("250000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    monkeypatch.setattr(module, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(module, "_ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    assert granted_cores() == 3


def test_without_control_groups_affinity_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_GROUPS", tmp_path / "none")
    assert granted_cores() == len(os.sched_getaffinity(0))
