"""Target files that tell Prometheus where processes serve metrics: one per process, for file discovery.

Rules: a file appears and changes atomically; its name is made of role and name, so that a process that was killed and
restarted takes over its file; a process that ends in good order removes it. A living process holds a lock on its file,
which goes even with kill -9, so the files of dead processes are recognised and can be removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import TYPE_CHECKING

from shared.metrics.job_targets import instance_of
from shared.stores.locks import has_name, lock
from shared.stores.own_files import draft_of, open_own

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["TargetFile", "remove_dead_targets"]


class TargetFile:
    """Target file of this process, which exists until `close`."""

    def __init__(self, folder: Path, address: str, labels: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = instance_of(labels)
        plain = re.sub(r"[^\w.-]", "_", name)
        self._path = folder / f"{plain}.json"
        draft = draft_of(self._path)  # no .json: discovery ignores it
        self._file = open_own(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        lock(self._file, wait=True)
        # The instance is a name, not the address: series continue when a process comes back on another port.
        content = [{"targets": [address], "labels": {"instance": name, **labels}}]
        os.write(self._file, (json.dumps(content, indent=2) + "\n").encode())
        draft.replace(self._path)

    def close(self) -> None:
        """Remove the file, unless a newer process has replaced it."""
        # By inode: a successor of the same name may have renamed its own file into place.
        with contextlib.suppress(FileNotFoundError):
            if has_name(self._file, self._path):
                self._path.unlink()
        os.close(self._file)


def remove_dead_targets(folder: Path) -> list[str]:
    """Remove the files of dead processes, and return their names."""
    dead = [path for path in sorted(folder.glob("*.json")) if not _is_locked(path)]
    for path in dead:
        path.unlink(missing_ok=True)
    return [path.stem for path in dead]


def _is_locked(path: Path) -> bool:
    """Return whether a living process holds the file; True also if the file cannot be opened."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return True  # its process has just removed it, or is another user's
    try:
        return not lock(file, wait=False)
    finally:
        os.close(file)
