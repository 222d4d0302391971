"""A job file and the folder that its relative paths start from: where a job's keys and state are.

Rules: nothing that the job file names is opened or imported here, so a process that serves several jobs can use it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import SettingsError
from shared.settings.job import parse_job

if TYPE_CHECKING:
    from shared.settings.job import Job, JobSettings

__all__ = ["JobFolder"]


class JobFolder:
    """The job file, read except for what its streams say about their sources and transforms."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            toml = self.path.read_text("utf-8")
        except OSError as error:
            raise SettingsError(
                expected="a job file", got=str(error), where=str(path), remedy="Name an existing job.toml."
            ) from None
        except UnicodeDecodeError as error:
            line, byte = error.object.count(b"\n", 0, error.start) + 1, error.object[error.start]
            raise SettingsError(
                expected="a job file in UTF-8",
                got=f"the byte 0x{byte:02x}",
                where=f"{path}, line {line}",
                remedy="Save it as UTF-8.",
            ) from None
        self.job: Job = parse_job(toml, str(path))
        self.base = self.path.resolve().parent

    @property
    def settings(self) -> JobSettings:
        """The table [job]."""
        return self.job.settings

    @property
    def state(self) -> Path:
        """Where index, journal and quarantine log live."""
        return self.base / self.settings.state / self.settings.name

    @property
    def targets_folder(self) -> Path:
        """Where its processes say where their metrics are."""
        return self.state / "targets"

    @property
    def keys(self) -> Path | None:
        """The folder with keys, if the job has one."""
        return self.base / self.settings.keys if self.settings.keys else None
