"""Says to Prometheus where a process serves its metrics: one file a process, found by file discovery.

Rules: a file appears and changes whole; it is named by role and name, so that a process that was killed and started
again takes its file over; it goes when its process ends in good order. A process holds a lock on its file for as long
as it lives, kill -9 included, and so the files of dead ones are known and can be removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["TargetFile", "remove_dead_targets"]


class TargetFile:
    """The file of this process, from its making until `close`."""

    def __init__(self, folder: Path, address: str, labels: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = "-".join(value for key, value in labels.items() if key != "job")
        plain = re.sub(r"[^\w.-]", "_", name)
        self._path = folder / f"{plain}.json"
        draft = folder / f".{plain}.{os.getpid()}"  # hidden, and no .json: discovery passes it over
        self._file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        # Its own instance, not the address: series go on when a process comes back on another port.
        content = [{"targets": [address], "labels": {"instance": name, **labels}}]
        os.write(self._file, (json.dumps(content, indent=2) + "\n").encode())
        draft.replace(self._path)

    def close(self) -> None:
        """Remove the file, unless a newer process has taken its name."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == os.fstat(self._file).st_ino:
                self._path.unlink()
        os.close(self._file)


def remove_dead_targets(folder: Path) -> list[str]:
    """Remove the files of processes that are gone; their names."""
    dead = [path for path in sorted(folder.glob("*.json")) if not _is_locked(path)]
    for path in dead:
        path.unlink(missing_ok=True)
    return [path.stem for path in dead]


def _is_locked(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # it went by itself
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
