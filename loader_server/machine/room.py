"""How much memory and how many descriptors a process may still take, worked out from what the kernel says in its files.

Rules: pure: texts in, numbers out; `free_room` reads them. The least of all limits counts: what the system has
available, each control group on the way up, of both versions, and the process's own limits. Memory that holds pages of
files counts as free, in a control group as in the system: the kernel takes it back before it refuses anything.
"""

from __future__ import annotations

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
    "shown_bytes",
    "shown_room",
]

#: So many have to be free for a sample that runs out to be at fault, beside as much memory as the largest may take.
NEEDED_DESCRIPTORS = 64

#: Stands for a limit that there is not.
UNLIMITED = 2**63

#: Pages that a group gives back when it needs room, by their names in either version's `memory.stat`.
_RECLAIMABLE = ("active_file", "inactive_file", "slab_reclaimable", "total_active_file", "total_inactive_file")

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes of memory and descriptors that are free, or needed."""

    memory: int
    descriptors: int

    def holds(self, needed: Room) -> bool:
        """Return whether there is as much of both."""
        return self.memory >= needed.memory and self.descriptors >= needed.descriptors


def shown_bytes(nbytes: int) -> str:
    """Return a number of bytes in the largest unit of which there is one."""
    amount, unit = float(nbytes), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.4g} {_UNITS[unit]}"


def shown_room(room: Room) -> str:
    """Return it in words."""
    return f"{shown_bytes(room.memory)} of memory and {room.descriptors} descriptors"


def left_in_system(meminfo: str, overcommit: str) -> int:
    """Return the bytes that the system has available; one that overcommits no memory may have promised more of it."""
    facts = {name: 1024 * int(number) for name, number in re.findall(r"^(\w+):\s+(\d+) kB$", meminfo, re.MULTILINE)}
    available = facts.get("MemAvailable", facts.get("MemFree", 0))
    if overcommit.strip() == "2":
        available = min(available, facts.get("CommitLimit", 0) - facts.get("Committed_AS", 0))
    return max(0, available)


def left_in_group(limit: str, used: str, stat: str) -> int:
    """Return the bytes that a control group may still take, from the texts of its files."""
    if limit.strip() == "max":
        return UNLIMITED
    facts = dict(line.split(" ", 1) for line in stat.splitlines() if " " in line)
    # The first version has numbers of the group alone beside those of the tree below it, which its usage is of.
    names = [name for name in _RECLAIMABLE if name.startswith("total_") or f"total_{name}" not in facts]
    reclaimable = sum(int(facts.get(name, 0)) for name in names)
    return max(0, int(limit) - max(0, int(used) - reclaimable))


def group_folders(groups: str, mounts: str) -> Iterator[tuple[str, ...]]:
    """Yield the folders of each hierarchy that may limit memory, from the process's own group up to the root of what
    is mounted, given the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`.
    """
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            for root, place in _mounted(mounts, second=not controllers):
                yield tuple(_upwards(root, place, path))


def _mounted(mounts: str, *, second: bool) -> Iterator[tuple[str, str]]:
    """Yield which part of the hierarchy is mounted, and where."""
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
