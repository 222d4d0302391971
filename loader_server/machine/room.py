"""The memory, descriptors and cores that a process may still take, computed from the kernel's files.

Rules: pure: texts in, numbers out; `free_room` reads them. The smallest of all limits counts: what the system has
available, each control group on the way up (cgroup v1 and v2), and the process's own limits. Memory that holds pages of
files counts as free, in a control group as in the system: the kernel reclaims it before it refuses anything.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "NEEDED_DESCRIPTORS",
    "UNLIMITED",
    "Room",
    "group_folders",
    "left_in_group",
    "left_in_system",
    "quota_cores",
    "shown_bytes",
    "shown_room",
]

#: Descriptors that must be free (beside as much memory as the largest sample may take) before a sample that runs out of
#: them counts as the culprit.
NEEDED_DESCRIPTORS = 64

#: Stands for the absence of a limit.
UNLIMITED = 2**63

#: Keys in `memory.stat` (cgroup v2 and v1) of pages that the kernel reclaims when the group needs room.
_RECLAIMABLE = ("active_file", "inactive_file", "slab_reclaimable", "total_active_file", "total_inactive_file")

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes of memory and descriptors that are free, or needed."""

    memory: int
    descriptors: int

    def holds(self, needed: Room) -> bool:
        """Return whether there is at least this much of both."""
        return self.memory >= needed.memory and self.descriptors >= needed.descriptors


def shown_bytes(nbytes: int) -> str:
    """Return a number of bytes as text such as "1.5 GiB": in the largest unit, up to PiB, that gives at least 1."""
    amount, unit = float(nbytes), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.4g} {_UNITS[unit]}"


def shown_room(room: Room) -> str:
    """Return the room for a message: the memory in a readable unit, and the number of descriptors."""
    return f"{shown_bytes(room.memory)} of memory and {room.descriptors} descriptors"


def left_in_system(meminfo: str, overcommit: str) -> int:
    """Return the bytes that the system has available, less those promised already if it does not overcommit.

    The arguments are the texts of `/proc/meminfo` and `/proc/sys/vm/overcommit_memory`. Return 0 if the first has none
    of the needed numbers, or if nothing is left.
    """
    facts = {name: 1024 * int(number) for name, number in re.findall(r"^(\w+):\s+(\d+) kB$", meminfo, re.MULTILINE)}
    available = facts.get("MemAvailable", facts.get("MemFree", 0))
    if overcommit.strip() == "2":
        available = min(available, facts.get("CommitLimit", 0) - facts.get("Committed_AS", 0))
    return max(0, available)


def left_in_group(limit: str, used: str, stat: str) -> int:
    """Return the bytes that a control group may still take, from the texts of its files; 0 if it is full.

    Memory that the kernel can reclaim counts as free. Return UNLIMITED if the limit is "max"; raise ValueError if a
    text holds no number.
    """
    if limit.strip() == "max":
        return UNLIMITED
    facts = dict(line.split(" ", 1) for line in stat.splitlines() if " " in line)
    # cgroup v1 has numbers of the group alone beside the totals of its subtree; its usage counts the subtree, so only
    # the totals are comparable.
    names = [name for name in _RECLAIMABLE if name.startswith("total_") or f"total_{name}" not in facts]
    reclaimable = sum(int(facts.get(name, 0)) for name in names)
    return max(0, int(limit) - max(0, int(used) - reclaimable))


def group_folders(groups: str, mounts: str) -> Iterator[tuple[str, ...]]:
    """Yield the folders that may limit memory, for each hierarchy, from the process's own group up to the mount.

    `groups` and `mounts` are the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`. Yield none if no hierarchy of
    memory is mounted; raise ValueError for a malformed line of `groups`.
    """
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        # Version 2 has one hierarchy for all controllers, and names none.
        if not controllers or "memory" in controllers.split(","):
            for root, place in _mounted(mounts, second=not controllers):
                yield tuple(_upwards(root, place, path))


def quota_cores(text: str) -> float:
    """Return the cores granted by a `cpu.max` (cgroup v2) or by quota and period (v1).

    Return infinity if they are unlimited, or if the text does not begin with two numbers, the second above 0.
    """
    words = text.split()
    if len(words) < 2 or not all(word.isdecimal() for word in words[:2]) or not int(words[1]):
        return math.inf  # "max", -1, or no such file
    return int(words[0]) / int(words[1])


def _mounted(mounts: str, *, second: bool) -> Iterator[tuple[str, str]]:
    """Yield each part of the memory hierarchy that is mounted, and where; of version 2 if `second`, else of v1."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(" ", 2), "", ""][:3]
        if kind == "cgroup2" if second else kind == "cgroup" and "memory" in options.split(","):
            root, place = before.split(" ")[3:5]
            yield root, place


def _upwards(root: str, place: str, path: str) -> Iterator[str]:
    inside = path.removeprefix(root).strip("/") if (path + "/").startswith(root.rstrip("/") + "/") else ""
    parts = [part for part in inside.split("/") if part not in ("", "..")]
    for end in range(len(parts), -1, -1):
        yield "/".join([place.rstrip("/"), *parts[:end]])
