"""The memory and descriptors that this process may still take, read from the kernel's files.

Rules: if a file cannot be read for want of descriptors or memory, nothing is free; a file that this kernel does not
have sets no limit. A look takes about a millisecond, too much for each sample.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from loader_server.machine.room import UNLIMITED, Room, group_folders, left_in_group, left_in_system

__all__ = ["free_room"]

_PROC = Path("/proc")

#: A control group's files of limit, use and statistics, in cgroup v2 and v1.
_FILES = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"),
)


def free_room() -> Room:
    """Return what this process may still take under all limits that apply to it; nothing if that cannot be read."""
    try:
        return Room(memory=_free_memory(), descriptors=_free_descriptors())
    except (OSError, MemoryError):
        # Opening these files takes memory and a descriptor itself, so failing to is an answer.
        return Room(memory=0, descriptors=0)


def _free_memory() -> int:
    sizes = [int(pages) * os.sysconf("SC_PAGE_SIZE") for pages in _read(_PROC / "self/statm").split()]
    own = [_left_of(resource.RLIMIT_AS, sizes[0]), _left_of(resource.RLIMIT_DATA, sizes[5])]
    system = left_in_system(_read(_PROC / "meminfo"), _read(_PROC / "sys/vm/overcommit_memory"))
    return min(system, _left_in_groups(), *own)


def _left_of(limit: int, used: int) -> int:
    soft, _ = resource.getrlimit(limit)
    return UNLIMITED if soft == resource.RLIM_INFINITY else max(0, soft - used)


def _left_in_groups() -> int:
    hierarchies = group_folders(_read(_PROC / "self/cgroup"), _read(_PROC / "self/mountinfo"))
    return min((_left_in(Path(folder)) for folders in hierarchies for folder in folders), default=UNLIMITED)


def _left_in(folder: Path) -> int:
    for names in _FILES:
        limit, used, stat = (_read(folder / name) for name in names)
        if limit and used:
            return left_in_group(limit, used, stat)
    return UNLIMITED


def _free_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = UNLIMITED if soft == resource.RLIM_INFINITY else soft - len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - numbers, not paths
    taken, unused, most = map(int, (_read(_PROC / "sys/fs/file-nr") or f"0 0 {UNLIMITED}").split())
    return max(0, min(own, most - taken + unused))


def _read(path: Path) -> str:
    """Return the text of a file; empty if it is missing or forbidden."""
    try:
        return path.read_text("ascii", "replace")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return ""
