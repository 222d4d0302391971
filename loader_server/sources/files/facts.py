"""Facts about a file, local or remote, that all readers share: what identifies it, and the error if it changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from loader_server.sources.remote.counts import RemoteCounts
from shared.errors import ReadError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OTHER_FILE_REMEDY", "CacheSettings", "FileFacts", "FilePlaces", "LocalFile", "changed"]

#: What to do about a file that is not the indexed one, while a job reads it.
OTHER_FILE_REMEDY = (
    "Put the file back, by rsync -a or cp -a from where the index was made for instance, or run loader-server index "
    "and start the job anew."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What tells a file from another one of the same name: its size and a version.

    The version of a local file is its time of change (mtime) in nanoseconds; that of a remote one a hash of the size
    and of what its store reports as the version (ETag).
    """

    bytes: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """A cache's folder on this machine's disk, its size limit in bytes, and the counters of its uses."""

    folder: Path
    bytes: int
    counts: RemoteCounts = field(default_factory=RemoteCounts, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FilePlaces:
    """Where the files that a job names are.

    `base` is the folder that paths start from, `cache` that of remote files, if set, and `fetched` the places of
    fetched files by their names in the job file.
    """

    base: Path = Path()
    cache: CacheSettings | None = None
    fetched: tuple[tuple[str, str], ...] = ()

    def find(self, name: str) -> Path:
        """Return the path of a file that a transform names."""
        return Path(dict(self.fetched).get(name) or self.base / name)


class LocalFile:
    """A file that stays on this machine's disk, at `path`, until it is closed or forgotten."""

    def __init__(self, path: Path, give_back: Callable[[], object] | None = None) -> None:
        self.path = path
        self._give_back = give_back

    def close(self) -> None:
        """Release the file; closing again does nothing."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_error: object) -> None:
        self.close()


def changed(expected: str, got: str, where: str) -> ReadError:
    """Return the error for bytes other than those that were indexed."""
    return ReadError(
        expected=expected,
        got=f"{got}: the file has changed since",
        where=where,
        remedy=OTHER_FILE_REMEDY,
    )
