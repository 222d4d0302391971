"""The memory, descriptors and cores that this process may use, read from the kernel's files.

Rules: if a file cannot be read for want of descriptors or memory, nothing is free; a file that this kernel does not
have sets no limit; a fraction of a core counts as one. A look takes about a millisecond, too much for each sample.
"""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from loader_server.machine.room import UNLIMITED, Room, group_folders, left_in_group, left_in_system, quota_cores

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["free_room", "granted_cores"]

_PROC = Path("/proc")

#: Where control groups are mounted, for CPU quotas.
_GROUPS = Path("/sys/fs/cgroup")

#: Errors that mean that a file sets no limit; others, such as a want of descriptors, are an answer themselves.
_MISSING = (FileNotFoundError, NotADirectoryError, PermissionError)

#: A control group's files of limit, use and statistics, in cgroup v2 and v1.
_FILES = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"),
)


def free_room() -> Room:
    """Return what this process may still take under all limits that apply to it.

    Return no memory and no descriptors if one of the kernel's files is there but cannot be read, such as for want of
    either; missing or forbidden files of control groups set no limit. Raise ValueError if a control group's file holds
    no number.
    """
    try:
        return Room(memory=_free_memory(), descriptors=_free_descriptors())
    except (OSError, MemoryError):
        # Opening these files takes memory and a descriptor itself, so failing to is an answer.
        return Room(memory=0, descriptors=0)


def _free_memory() -> int:
    """Return the smallest number of bytes that the system, each control group and our own limits leave.

    Raise OSError if a file cannot be read although it is there and may be read, such as for want of descriptors. Raise
    ValueError if a control group's file holds no number. Without `/proc/meminfo` the system leaves 0.
    """
    sizes = [int(pages) * os.sysconf("SC_PAGE_SIZE") for pages in _read(_PROC / "self/statm").split()]
    own = [_left_of(resource.RLIMIT_AS, sizes[0]), _left_of(resource.RLIMIT_DATA, sizes[5])]
    system = left_in_system(_read(_PROC / "meminfo"), _read(_PROC / "sys/vm/overcommit_memory"))
    return min(system, _left_in_groups(), *own)


def _left_of(limit: int, used: int) -> int:
    soft, _ = resource.getrlimit(limit)
    return UNLIMITED if soft == resource.RLIM_INFINITY else max(0, soft - used)


def _left_in_groups() -> int:
    # A parent's limit holds for all that is below it, and in a container our own group often has none.
    hierarchies = group_folders(_read(_PROC / "self/cgroup"), _read(_PROC / "self/mountinfo"))
    return min((_left_in(Path(folder)) for folders in hierarchies for folder in folders), default=UNLIMITED)


def _left_in(folder: Path) -> int:
    """Return the bytes that a control group may still take; unlimited unless a version has limit and use.

    Raise OSError if a file cannot be read although it is there and may be read, such as for want of descriptors. Raise
    ValueError if a file holds no number.
    """
    for names in _FILES:
        limit, used, stat = (_read(folder / name) for name in names)
        if limit and used:
            return left_in_group(limit, used, stat)
    return UNLIMITED


def _free_descriptors() -> int:
    """Return how many descriptors this process may still open: the smaller of what it and the whole system have left.

    Raise OSError if this process's descriptors cannot be listed, or if the system's numbers are there but cannot be
    read, such as for want of descriptors; missing numbers set no limit.
    """
    own = _left_of(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - numbers, not paths
    taken, unused, most = map(int, (_read(_PROC / "sys/fs/file-nr") or f"0 0 {UNLIMITED}").split())
    return max(0, min(own, most - taken + unused))


def granted_cores() -> int:
    """Return how many workers this process has cores for, by its affinity and its CPU quotas; at least one.

    A fraction of a core counts as one; quotas that cannot be read set no limit.
    """
    quota = min(map(quota_cores, _quotas()), default=math.inf)
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), quota)))


def _quotas() -> Iterator[str]:
    """Yield the texts of the CPU quotas of our control groups and their parents, in cgroup v2 and v1.

    A text is blank, or lacks a number, if its files cannot be read; none is yielded if our groups cannot be read.
    """
    for line in _read(_PROC / "self/cgroup", OSError).splitlines():
        _, controllers, path = line.split(":", 2)
        own = Path(path.lstrip("/"))
        for group in (own, *own.parents):
            if not controllers:
                yield _read(_GROUPS / group / "cpu.max", OSError)
            elif "cpu" in controllers.split(","):
                files = (_GROUPS / controllers / group / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
                yield " ".join(_read(file, OSError) for file in files)


def _read(path: Path, missing: type[OSError] | tuple[type[OSError], ...] = _MISSING) -> str:
    """Return the text of a file; empty if reading it fails with one of the errors `missing`.

    By default these mean that the file is missing or forbidden. Raise any other OSError.
    """
    try:
        return path.read_text("ascii", "replace")
    except missing:
        return ""
