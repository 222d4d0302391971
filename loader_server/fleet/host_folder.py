"""The folder of one `run ENDPOINT` below a state folder: `hosts/<host>/<job>`, or `hosts/<host>~2/<job>` and so on.

Rules: only one process writes there; it holds the lock of the file `in-use` as long as it lives. The file's content
distinguishes this host's workers from those of any other, whatever hosts are called. Folders are chosen under the lock
of the bundles, so nobody else checks the locks meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import secrets
from typing import TYPE_CHECKING

from loader_server.fleet.joined_folder import JoinedFolder
from loader_server.fleet.manifest import JOB_FILE
from shared.errors import MachineError, StokerError
from shared.stores.own_files import open_own, refuse_linked_folder

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

__all__ = ["HostFolder", "bundles_in_use", "lock"]

_IN_USE = "in-use"
_TAG = re.compile(r"[0-9a-f]{6}")


class HostFolder:
    """A folder that this process has for itself until `close`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        #: Part of the names of this host's workers.
        self.tag = _read_tag(descriptor)
        self._descriptor = descriptor

    @property
    def job_file(self) -> Path:
        """Return the path of the fetched job file."""
        return self.path / JOB_FILE

    @staticmethod
    def take(hosts: Path, job: str) -> HostFolder:
        """Lock and return the first folder of this host that no living process has."""
        for number in itertools.count(1):
            host = os.uname().nodename if number == 1 else f"{os.uname().nodename}~{number}"
            folder = hosts / host / job
            folder.mkdir(parents=True, exist_ok=True)
            refuse_linked_folder(folder)
            descriptor = open_own(folder / _IN_USE, os.O_RDWR | os.O_CREAT)
            try:
                lock(descriptor, folder)
                return HostFolder(folder, descriptor)
            except BlockingIOError:
                os.close(descriptor)
            except BaseException:  # nobody else closes it
                os.close(descriptor)
                raise
        raise AssertionError

    def close(self) -> None:
        """Release the folder for another process."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def lock(descriptor: int, folder: Path) -> None:
    """Lock an open file.

    Raises BlockingIOError if another process has it, MachineError if the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        raise MachineError(
            expected="a state folder whose file system can lock files, so that no two processes write the same ones",
            got=str(error),
            where=str(folder),
            remedy="Name a folder on a local disk by --state.",
        ) from error


def _read_tag(descriptor: int) -> str:
    known = os.pread(descriptor, 64, 0).decode("ascii", "replace")
    if _TAG.fullmatch(known):
        return known
    # Drawn once a folder, since hosts may have equal names and one host may join a job twice.
    tag = secrets.token_hex(3)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, tag.encode(), 0)
    return tag


def bundles_in_use(hosts: Path) -> set[str] | None:
    """Return the names of the bundles of all folders in use; None if one of them cannot be read."""
    found: set[str] = set()
    for path in hosts.glob(f"*/*/{_IN_USE}"):
        if not _is_held(path):
            continue
        try:
            joined = JoinedFolder.beside(path.with_name(JOB_FILE))
        except StokerError:
            return None
        found |= {joined.bundle} if joined is not None else set()
    return found


def _is_held(path: Path) -> bool:
    with contextlib.ExitStack() as opened:
        descriptor = open_own(path, os.O_RDWR)
        opened.callback(os.close, descriptor)
        try:
            lock(descriptor, path.parent)
        except BlockingIOError:
            return True
    return False
