"""A job file and the folder that its relative paths start from: where a job's keys and state are.

Rules: nothing that the job file names is opened or imported here, so a process that serves several jobs can use it.
Only whether the folders that it writes to can exist is checked.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

from loader_server.fleet.host_folder import JoinedFolder
from shared.errors import SettingsError
from shared.settings.job import parse_job
from shared.stores.own_files import refuse_closed

if TYPE_CHECKING:
    from shared.settings.job import Job, JobSettings

__all__ = ["JobFolder"]


class JobFolder:
    """A job file, read except for its streams' settings of sources and transforms.

    Making it raises SettingsError if the file, or a host's own settings beside it, cannot be read or has a mistake
    outside these settings, or if no folder can be at the place of its state or of a cache.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):  # reading a pipe could block forever
                raise _no_job_file(path, "a folder" if self.path.is_dir() else "a pipe or device")
            toml = self.path.read_text("utf-8")
        except (OSError, ValueError) as error:
            if isinstance(error, UnicodeDecodeError):
                raise _no_text(path, error) from None
            raise _no_job_file(path, str(error)) from None
        #: This host's own settings, if the job file was fetched from a coordinator.
        self.joined = JoinedFolder.beside(self.path)
        job = parse_job(toml, str(path))
        self.job: Job = self.joined.settle(job) if self.joined is not None else job
        self.base = Path(self.joined.data) if self.joined is not None else self.path.resolve().parent
        for name in ("state", "remote_cache", "feature_cache"):
            self._refuse_no_folder(name)

    def _refuse_no_folder(self, name: str) -> None:
        """Raise a SettingsError if the folder of this setting neither exists nor can be made.

        A file may stand in its place or above it, its name may be impossible, or looking for it forbidden.
        """
        folder = self.base / getattr(self.settings, name)
        try:
            got = _what_is_in_the_way(folder)
        except OSError as error:
            got = error.strerror or str(error)
        if got:
            raise SettingsError(
                expected="the name of a folder, or of one that can be made",
                got=got,
                where=f"{self.path}, [job], {name}",
                remedy="Name another folder, relative to the job file.",
            )

    @property
    def settings(self) -> JobSettings:
        """Return the table [job], with this host's own settings if the job file was fetched."""
        return self.job.settings

    @property
    def state(self) -> Path:
        """Return the folder of index, journal and quarantine log: that of the job's name, in the folder `state`."""
        return self.base / self.settings.state / self.settings.name

    def refuse_closed(self, folder: Path) -> None:
        """Raise a SettingsError if this user can neither write into `folder` nor make it.

        It is the state folder or below it.
        """
        refuse_closed(folder, where="--state" if self.joined is not None else f"{self.path}, [job], state")

    @property
    def index_root(self) -> Path:
        """Return the folder of indexes: the state folder, or the one into which a host that joined has fetched them."""
        return Path(self.joined.index) if self.joined is not None else self.state

    @property
    def targets_folder(self) -> Path:
        """Return the folder in which the job's processes publish their metrics addresses."""
        return self.state / "targets"

    @property
    def endpoint_file(self) -> Path:
        """Return the file in which the coordinator publishes its endpoint."""
        return self.state / "endpoint"

    @property
    def keys(self) -> Path | None:
        """Return the folder with keys, or None if the job has none."""
        return self.base / self.settings.keys if self.settings.keys else None


def _what_is_in_the_way(folder: Path) -> str:
    """Return what stands in a folder's place or above it; "" if the folder exists or can be made.

    Raise an OSError if no folder could have this name, for instance if it is too long, or if looking is forbidden.
    """
    place = folder
    while True:
        try:
            mode = place.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            place = place.parent
        else:
            return "" if stat.S_ISDIR(mode) else f"{place}, which is no folder"


def _no_job_file(path: str | Path, got: str) -> SettingsError:
    return SettingsError(expected="a job file", got=got, where=str(path), remedy="Name an existing job.toml.")


def _no_text(path: str | Path, error: UnicodeDecodeError) -> SettingsError:
    line, byte = error.object.count(b"\n", 0, error.start) + 1, error.object[error.start]
    return SettingsError(
        expected="a job file in UTF-8",
        got=f"the byte 0x{byte:02x}",
        where=f"{path}, line {line}",
        remedy="Save it as UTF-8.",
    )
