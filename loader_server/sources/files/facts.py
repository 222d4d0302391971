"""What is known about a file, local or remote, whoever reads it: what tells it from others, and that it has changed."""

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
    """What tells a file from another one of the same name: its size, and for a local one its time of change in
    nanoseconds, for a remote one a digest of what its store says of the version (ETag) and of the size.
    """

    bytes: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Where a machine keeps something on its disk, how many bytes of it at most, and where uses of it are counted."""

    folder: Path
    bytes: int
    counts: RemoteCounts = field(default_factory=RemoteCounts, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FilePlaces:
    """Where the files that a job names are: the folder that paths start from, where remote files are kept, if that
    is set, and where those are that were fetched, by the names that the job file gives them.
    """

    base: Path = Path()
    cache: CacheSettings | None = None
    fetched: tuple[tuple[str, str], ...] = ()

    def find(self, name: str) -> Path:
        """Return where a file is that a transform names."""
        return Path(dict(self.fetched).get(name) or self.base / name)


class LocalFile:
    """A file that stays on this machine's disk, at `path`, until it is closed or forgotten."""

    def __init__(self, path: Path, give_back: Callable[[], object] | None = None) -> None:
        self.path = path
        self._give_back = give_back

    def close(self) -> None:
        """Release it: it is no longer needed."""
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
    """The error of a source that meets bytes other than those it indexed."""
    return ReadError(
        expected=expected,
        got=f"{got}: the file has changed since",
        where=where,
        remedy=OTHER_FILE_REMEDY,
    )
