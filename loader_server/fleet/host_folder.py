"""The folder of one `run ENDPOINT` below a state folder: `hosts/<host>/<job>`, or `hosts/<host>~2/<job>` and so on.

It has the fetched job file and, in a file beside that, this host's own settings.

Rules: only one process writes there; it holds the lock of the file `in-use` as long as it lives. The file's content
distinguishes this host's workers from those of any other, whatever hosts are called. Folders are chosen under the lock
of the bundles, so nobody else checks the locks meanwhile. Settings that are bound to a machine are the host's own:
keys, state, caches, ports. So are the folder that stands for the job's, where relative paths of data start, and the
places of what was fetched.
"""

from __future__ import annotations

import dataclasses
import fcntl
import itertools
import json
import os
import re
import secrets
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from loader_server.fleet.manifest import JOB_FILE
from shared.errors import MachineError, SettingsError, StokerError
from shared.stores.own_files import open_own, refuse_linked_folder, replacing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from shared.settings.job import Job

__all__ = ["HostFolder", "JoinedFolder", "bundles_in_use", "lock"]

_IN_USE = "in-use"
_TAG = re.compile(r"[0-9a-f]{6}")

#: Name of the file with this host's own settings, beside a fetched job file.
_SETTINGS = "joined.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedFolder:
    """The folders and settings of a joined job on its host; all folders are absolute."""

    #: The coordinator's endpoint, or the file that names it.
    endpoint: str
    #: The folder that stands for the job file's folder.
    data: str
    #: Where this host writes its files of the job: the log of bad samples, caches, the metrics' address.
    state: str
    #: The folder with the indexes, fetched or this host's own.
    index: str
    #: The host's folder of keys; empty if there is none.
    keys: str = ""
    #: The folder with the user's own modules that were fetched; empty if none were.
    code: str = ""
    #: The folder name of the bundle that all of it is from.
    bundle: str = ""
    #: Part of its workers' names, which distinguishes them from those of any other host.
    tag: str = ""
    #: Port before those of its workers' metrics; 0: any free ports.
    metrics_port: int = 0
    #: The options of `loader-server fetch` that fetch it again.
    again: Sequence[str] = ()
    #: The path of each file that transforms name, by its name in the job file.
    named: Mapping[str, str] = field(default_factory=dict)

    def settle(self, job: Job) -> Job:
        """Return the job with this host's own settings in place of the job file's.

        Endpoint, state folder, keys and metrics port are this host's; workers and caches are as if they were not set.
        """
        return dataclasses.replace(
            job,
            settings=dataclasses.replace(
                job.settings,
                listen=self.endpoint,
                workers=0,
                state=self.state,
                remote_cache="",
                feature_cache="",
                keys=self.keys,
                metrics_port=self.metrics_port,
            ),
        )

    def write(self, job_file: Path) -> None:
        """Write it beside a fetched job file, in place of what is there; raise OSError if it cannot be written."""
        # A file beside the job file, because every command and child opens the job by that path alone, and need not
        # know of joining.
        with replacing(job_file.with_name(_SETTINGS)) as file:
            file.write(json.dumps(asdict(self), indent=1, sort_keys=True).encode())

    @staticmethod
    def beside(job_file: Path) -> JoinedFolder | None:
        """Read the settings beside a job file; return None if the job file is this host's own.

        Raise SettingsError if the file is malformed or cannot be read.
        """
        path = job_file.with_name(_SETTINGS)
        try:
            return JoinedFolder(**json.loads(path.read_text("utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError) as error:
            raise SettingsError(
                expected="what `loader-server run ENDPOINT` wrote",
                got=str(error),
                where=str(path),
                remedy="Remove its folder, and join again.",
            ) from None


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
        """Lock and return the first folder of this host for the job that no living process has; make it if need be.

        Raise MachineError if the file system has no locks, or if a link or something else stands in the way. Raise
        OSError if the folder or a file in it cannot be made, read or written.
        """
        for number in itertools.count(1):
            # Numbered from 2, because one host may join a job twice, and hosts that share a state folder may have equal
            # names.
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
        """Close the descriptor that locks the folder, so that another process can take it; call it only once."""
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
        # A lock of the kernel ends with its holder, so a kill -9 leaves none behind.
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
    """Return the tag in a folder's file; draw and write one if there is none, or if it was cut short.

    Raise OSError if the file cannot be read or written.
    """
    known = os.pread(descriptor, 64, 0).decode("ascii", "replace")
    if _TAG.fullmatch(known):
        return known
    # Drawn once a folder, since hosts may have equal names and one host may join a job twice.
    tag = secrets.token_hex(3)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, tag.encode(), 0)
    return tag


def bundles_in_use(hosts: Path) -> set[str] | None:
    """Return the names of the bundles of all folders in use; None if the settings of one cannot be read.

    Raise MachineError if the file system has no locks, or if something else is in the place of a lock's file. Raise
    OSError if such a file cannot be opened. The set is empty if no folder is in use.
    """
    names: set[str] = set()
    for path in hosts.glob(f"*/*/{_IN_USE}"):
        if not _is_held(path):
            continue
        # A host that runs needs its bundle whenever one of its workers is started again.
        try:
            joined = JoinedFolder.beside(path.with_name(JOB_FILE))
        except StokerError:
            return None
        names |= {joined.bundle} if joined is not None else set()
    return names


def _is_held(path: Path) -> bool:
    """Return whether a living process has this file's lock, which is taken and released to find out.

    Raise MachineError if the file system has no locks, or if something else is in the file's place. Raise OSError if it
    cannot be opened.
    """
    descriptor = open_own(path, os.O_RDWR)
    try:
        lock(descriptor, path.parent)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
