"""The number of cores that this process may use, by its affinity and its control groups' quotas.

Rules: a file that this kernel does not have sets no limit; a fraction of a core counts as one.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["granted_cores", "quota_cores"]

_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def granted_cores() -> int:
    """Return how many workers this process has cores for; at least one."""
    quota = min((quota_cores(_read(folder)) for folder in _folders()), default=math.inf)
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), quota)))


def quota_cores(text: str) -> float:
    """Return the cores granted by a `cpu.max` (cgroup v2) or by quota and period (v1); infinity if unlimited."""
    words = text.split()
    if len(words) < 2 or not all(word.isdecimal() for word in words[:2]) or not int(words[1]):
        return math.inf  # "max", -1, or no such file
    return int(words[0]) / int(words[1])


def _folders() -> list[tuple[Path, ...]]:
    """Return the files that may hold a CPU quota: of our control groups and their parents, cgroup v2 and v1."""
    found: list[tuple[Path, ...]] = []
    for line in _read((_GROUPS,)).splitlines():
        _, controllers, path = line.split(":", 2)
        own = Path(path.lstrip("/"))
        groups = [own, *own.parents]
        if not controllers:
            found += [(_ROOT / group / "cpu.max",) for group in groups]
        elif "cpu" in controllers.split(","):
            root = _ROOT / controllers
            found += [(root / group / "cpu.cfs_quota_us", root / group / "cpu.cfs_period_us") for group in groups]
    return found


def _read(files: tuple[Path, ...]) -> str:
    try:
        return " ".join(file.read_text("ascii", "replace") for file in files)
    except OSError:
        return ""
