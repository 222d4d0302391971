"""A joined host's own settings, in a file beside the job file that it fetched.

Rules: settings that are bound to a machine are the host's own: keys, state, caches, ports. So are the folder that
stands for the job's, where relative paths of data start, and the places of what was fetched.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from shared.errors import SettingsError
from shared.stores.own_files import replacing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shared.settings.job import Job

__all__ = ["JoinedFolder"]

#: Name of the file beside a fetched job file.
_NAME = "joined.json"


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
    #: The options of `loader-server fetch` that fetch it again.
    again: Sequence[str] = ()
    #: The path of each file that transforms name, by its name in the job file.
    named: Mapping[str, str] = field(default_factory=dict)

    def settle(self, job: Job) -> Job:
        """Return the job with this host's own settings in place of the job file's."""
        own = dataclasses.replace(
            job.settings,
            listen=self.endpoint,
            workers=0,
            state=self.state,
            remote_cache="",
            feature_cache="",
            keys=self.keys,
            metrics_port=0,
        )
        return dataclasses.replace(job, settings=own)

    def write(self, job_file: Path) -> None:
        """Write it beside a fetched job file."""
        # A file beside the job file, because every command and child opens the job by that path alone, and need not
        # know of joining.
        with replacing(job_file.with_name(_NAME)) as file:
            file.write(json.dumps(asdict(self), indent=1, sort_keys=True).encode())

    @staticmethod
    def beside(job_file: Path) -> JoinedFolder | None:
        """Read the settings beside a job file; return None if the job file is this host's own.

        Raises SettingsError if the file is malformed.
        """
        path = job_file.with_name(_NAME)
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
