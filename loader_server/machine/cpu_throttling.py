"""How long the kernel kept this process's control groups from running because they had used up their CPU quota.

Rules: what cannot be read counts as no throttling. A look takes some tens of microseconds, so it is for heartbeats.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["throttled_us"]

_PROC = Path("/proc")

#: Where control groups are mounted.
_GROUPS = Path("/sys/fs/cgroup")

#: In `cpu.stat`, microseconds in cgroup v2, and nanoseconds in v1.
_THROTTLED = re.compile(r"^throttled_(usec|time) (\d+)$", re.MULTILINE)


def throttled_us() -> int:
    """Return for how many microseconds our control group, or the parent that had to wait longest, was throttled.

    Time since the group was made; each CPU on which it was kept from running adds its own. Return 0 if no group has a
    quota, or if their files cannot be read.
    """
    return max((_throttled_us(text) for text in _stats()), default=0)


def _throttled_us(stat: str) -> int:
    found = _THROTTLED.search(stat)
    if found is None:
        return 0
    return int(found[2]) if found[1] == "usec" else int(found[2]) // 1000


def _stats() -> Iterator[str]:
    """Yield the CPU statistics of our control groups and their parents that can be read, in cgroup v2 and v1."""
    for line in _read(_PROC / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own = Path(path.lstrip("/"))
        if not controllers:
            folders = (_GROUPS, _GROUPS / "unified")
        elif "cpu" in controllers.split(","):
            folders = (_GROUPS / controllers, _GROUPS / "cpu")
        else:
            continue
        # In a container our group may be mounted as the root of the hierarchy: then its own path is not found there.
        for group in (own, *own.parents):
            yield from (_read(folder / group / "cpu.stat") for folder in dict.fromkeys(folders))


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""
