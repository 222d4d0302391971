"""Targets that tell Prometheus where processes serve metrics: by HTTP for a job, and by files, one per process.

Rules: a file appears and changes atomically; its name is made of role and name, so that a process that was killed and
restarted takes over its file; a process that ends in good order removes it. A living process holds a lock on its file,
which goes even with kill -9, so the files of dead processes are recognised and removed: by the supervisor of the job,
which looks every few seconds, and, where none runs, by the next process that writes its own file there. So a target
that does not answer is one of a process that lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import TYPE_CHECKING

from shared.endpoints import is_loopback
from shared.stores.locks import has_name, lock
from shared.stores.own_files import draft_of, open_own

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

__all__ = [
    "SWEEP_S",
    "TargetFile",
    "TargetSweep",
    "instance_of",
    "job_targets",
    "remove_dead_targets",
    "trainer_labels",
]

#: Pause between two looks for files of dead processes: as Prometheus, as we set it up, asks every 5 s.
SWEEP_S = 5.0


def instance_of(labels: Mapping[str, str]) -> str:
    """Return a process's instance name, the same wherever it serves: its labels but `job`, joined by "-"."""
    # A name, not the address: series continue when a process comes back on another port.
    return "-".join(value for key, value in labels.items() if key != "job")


def job_targets(report: Mapping[str, Any], host: str, port: int) -> list[dict[str, Any]]:
    """Return the scrape targets of a job, for HTTP service discovery: its coordinator, its workers and its trainers.

    `host` and `port` are where the coordinator was asked. A process is left out if it has no address, or if its address
    is a loopback one and the coordinator was not asked over loopback, because the scraper could not reach it. Raise
    SettingsError if `host` and `port`, or a process's address, form no endpoint.
    """
    is_local = is_loopback(f"tcp://{host}:{port}")
    job = report["job"]
    targets = [_target(f"{host}:{port}", {"job": job, "role": "coordinator"})]
    named = [(worker["metrics"], {"role": "worker", "worker": worker["name"]}) for worker in report["workers"]]
    named += [
        (trainer["metrics"], trainer_labels(stream, trainer["rank"], trainer["name"]))
        for stream, facts in report["streams"].items()
        for trainer in facts["trainers"]
    ]
    for address, labels in named:
        if address.startswith(":"):  # on the coordinator's machine, at all of its addresses
            address = host + address  # noqa: PLW2901
        if address and (is_local or not is_loopback(f"tcp://{address}")):
            targets.append(_target(address, {"job": job, **labels}))
    return targets


def trainer_labels(stream: str, rank: int | None, name: str) -> dict[str, str]:
    """Return the labels of a trainer's metrics but for the job's: role, rank ("none" in queue mode) and its own name.

    `name` is the trainer's, host and process, which may have a feed of each stream.
    """
    shown = "none" if rank is None else str(rank)
    return {"role": "trainer", "rank": shown, "trainer": f"{stream}-{name.replace(':', '-')}"}


def _target(address: str, labels: Mapping[str, str]) -> dict[str, Any]:
    return {"targets": [address], "labels": {"instance": instance_of(labels), **labels}}


class TargetFile:
    """Target file of this process, which exists until `close`.

    Making it makes the folder too, and removes files of dead processes from it; raises OSError if the file cannot be
    written or locked there, and MachineError if something else is in its place.
    """

    def __init__(self, folder: Path, address: str, labels: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        plain = re.sub(r"[^\w.-]", "_", instance_of(labels))
        self._path = folder / f"{plain}.json"
        draft = draft_of(self._path)  # no .json: discovery ignores it
        self._file = open_own(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        # Locked before it gets its name, or another process could take a file just written for a dead one's.
        lock(self._file, wait=True)
        os.write(self._file, (json.dumps([_target(address, labels)], indent=2) + "\n").encode())
        draft.replace(self._path)
        # A machine of trainers has no supervisor that would look, and their files are named for their process numbers.
        with contextlib.suppress(OSError):  # one that cannot be removed is no reason not to serve
            remove_dead_targets(folder)

    def close(self) -> None:
        """Remove the file, unless a newer process has replaced it or it is gone, and release its lock."""
        # By inode: a successor of the same name may have renamed its own file into place.
        with contextlib.suppress(FileNotFoundError):
            if has_name(self._file, self._path):
                self._path.unlink()
        os.close(self._file)


def remove_dead_targets(folder: Path) -> list[str]:
    """Remove the files of dead processes, and return their names without `.json`.

    Files of other users, which cannot be opened, stay. A missing folder has none. Raise OSError if a file cannot be
    locked or removed.
    """
    return [path.stem for path in sorted(folder.glob("*.json")) if not _is_locked(path) and _remove_dead(path)]


def _remove_dead(path: Path) -> bool:
    """Remove the file of a dead process; return False, and leave it, if a living one has taken its place meanwhile."""
    # Looked at under a name that nobody else uses: by the old one a successor may just have put its own file there.
    taken = draft_of(path)
    try:
        path.rename(taken)
    except FileNotFoundError:
        return False
    if not _is_locked(taken):
        taken.unlink(missing_ok=True)
        return True
    # Put back, unless a still newer one is there already; its process removes it by inode, so it finds it again.
    try:
        path.hardlink_to(taken)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        taken.rename(path)
    taken.unlink(missing_ok=True)
    return False


def _is_locked(path: Path) -> bool:
    """Return whether a living process holds the file; True if it is gone or another user's; other OSErrors pass."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return True  # its process has just removed it, or is another user's
    try:
        return not lock(file, wait=False)
    finally:
        os.close(file)


class TargetSweep:
    """Removal of dead processes' files from a folder, now and then, by a process that runs as long as the job."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.due_s = 0.0

    def look(self, now_s: float) -> list[str]:
        """Remove the files of dead processes if it is time, and return their names without `.json`.

        A folder that cannot be looked at is left alone: what serves the job must not end for it.
        """
        if now_s < self.due_s:
            return []
        self.due_s = now_s + SWEEP_S
        with contextlib.suppress(OSError):
            return remove_dead_targets(self._folder)
        return []
