"""What is free, as the kernel's files say it."""

from __future__ import annotations

import pytest

from loader_server.machine.room import (
    UNLIMITED,
    Room,
    group_folders,
    left_in_group,
    left_in_system,
    shown_bytes,
    shown_room,
)

MEMINFO = """MemTotal:       24000000 kB
MemFree:         1000000 kB
MemAvailable:    3000000 kB
CommitLimit:     5000000 kB
Committed_AS:    4000000 kB
HugePages_Total:       0
"""

SECOND = "0::/kubepods/pod7/one\n"
SECOND_MOUNTS = """22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
"""
FIRST = """12:cpu,cpuacct:/docker/a
9:memory:/docker/a
1:name=systemd:/docker/a
0::/
"""
FIRST_MOUNTS = """31 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/a /sys/fs/cgroup/memory ro master:17 - cgroup cgroup rw,memory
"""


@pytest.mark.parametrize(
    ("overcommit", "left"), [("0\n", 3_000_000), ("1\n", 3_000_000), ("2\n", 1_000_000), ("", 3_000_000)]
)
def test_what_the_system_has_is_what_it_says_to_be_available(overcommit, left):
    assert left_in_system(MEMINFO, overcommit) == 1024 * left


def test_a_system_that_promised_more_than_it_may_has_nothing_left():
    assert left_in_system(MEMINFO.replace("4000000", "6000000"), "2") == 0
    assert left_in_system("", "0") == 0


@pytest.mark.parametrize(
    ("limit", "used", "stat", "left"),
    [
        ("max\n", "5", "", UNLIMITED),
        ("1000\n", "400\n", "", 600),
        ("1000", "400", "anon 100\ninactive_file 200\nactive_file 50\nslab_reclaimable 10\nshmem 30\n", 860),
        ("1000", "400", "inactive_file 10\nactive_file 10\ntotal_inactive_file 200\ntotal_active_file 50\n", 850),
        ("1000", "1400", "", 0),
        ("1000", "100", "inactive_file 200\n", 1000),
    ],
)
def test_a_group_gives_back_pages_of_files_before_it_refuses_anything(limit, used, stat, left):
    assert left_in_group(limit, used, stat) == left


def test_every_group_on_the_way_up_counts():
    (folders,) = group_folders(SECOND, SECOND_MOUNTS)
    assert folders == (
        "/sys/fs/cgroup/kubepods/pod7/one",
        "/sys/fs/cgroup/kubepods/pod7",
        "/sys/fs/cgroup/kubepods",
        "/sys/fs/cgroup",
    )


def test_in_a_container_the_group_is_what_is_mounted():
    assert list(group_folders(FIRST, FIRST_MOUNTS)) == [("/sys/fs/cgroup/memory",)]
    assert list(group_folders("0::/\n", SECOND_MOUNTS)) == [("/sys/fs/cgroup",)]
    assert list(group_folders("0::/../other\n", SECOND_MOUNTS)) == [("/sys/fs/cgroup/other", "/sys/fs/cgroup")]
    assert list(group_folders("9:memory:/else/b\n", FIRST_MOUNTS)) == [("/sys/fs/cgroup/memory",)]
    assert list(group_folders("", "")) == []


def test_room_holds_what_is_needed_of_both():
    needed = Room(memory=10, descriptors=5)
    assert needed.holds(needed)
    assert not Room(memory=9, descriptors=6).holds(needed)
    assert not Room(memory=11, descriptors=4).holds(needed)
    assert shown_room(needed) == "10 B of memory and 5 descriptors"


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (3 * 2**29, "1.5 GiB"),
        (4 * (2**36 - 1), "256 GiB"),
        (2**63, "8192 PiB"),
    ],
)
def test_bytes_are_shown_in_the_largest_unit(nbytes, shown):
    assert shown_bytes(nbytes) == shown
