"""Facts about files, local or remote, that all readers share: what identifies one, where it is kept, and its errors.

A file is of the kind that its first bytes show, whatever its name says; only kinds that people take for text by mistake
are known, any other beginning may be text. Knows neither disks nor stores, so that the rooms of local and of remote
files can both import it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import DataError, ReadError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "HEAD_BYTES",
    "OTHER_FILE_REMEDY",
    "CacheSettings",
    "FileFacts",
    "FilePlaces",
    "LocalFile",
    "RemoteCounts",
    "absent",
    "changed",
    "refuse_no_text",
]

#: What to do about a file that is not the indexed one, while a job reads it.
OTHER_FILE_REMEDY = (
    "Put the file back, by rsync -a or cp -a from where the index was made for instance, or run loader-server index "
    "and start the job anew."
)


#: Bytes needed to recognize any of the kinds.
HEAD_BYTES = 6

_UNPACK = "Unpack it once: lines are read from their places, which a compressed file does not have."
_CONVERT = "Convert it once, with iconv for instance: iconv -f UTF-16 -t UTF-8."

#: Magic bytes, the kind, and the remedy. A longer mark comes before a shorter one that it starts with: UTF-32's mark
#: begins with UTF-16's.
_KINDS = (
    (b"\x1f\x8b", "one that is compressed by gzip", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "one that is compressed by zstd", _UNPACK),
    (b"\xfd7zXZ\0", "one that is compressed by xz", _UNPACK),
    (b"BZh", "one that is compressed by bzip2", _UNPACK),
    (b"PK\3\4", "a zip archive", _UNPACK),
    (b"\xff\xfe\0\0", "one in UTF-32", _CONVERT.replace("16", "32")),
    (b"\0\0\xfe\xff", "one in UTF-32", _CONVERT.replace("16", "32")),
    (b"\xff\xfe", "one in UTF-16", _CONVERT),
    (b"\xfe\xff", "one in UTF-16", _CONVERT),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What tells a file from another one of the same name: its size and a version.

    The version of a local file is its time of change (mtime) in nanoseconds; that of a remote one a hash of the size
    and of what its store reports as the version (ETag).
    """

    bytes: int
    #: Fits into a signed 64-bit column of an index.
    version: int


class RemoteCounts:
    """A process's counters of remote files: plain numbers, which become metrics only when someone asks.

    Any thread may add; numbers only grow. A copy in another process counts for itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Bytes fetched from stores.
        self.fetched_bytes = 0
        #: Cache hits: blocks and whole files that were in the cache when they were needed.
        self.found = 0
        #: Cache misses: blocks and whole files that a reader had to wait for, whichever process fetched them.
        self.waited = 0
        #: How long readers waited for these.
        self.waited_s = 0.0
        #: Requests that failed and were retried.
        self.retries = 0

    def add(
        self, *, fetched_bytes: int = 0, found: int = 0, waited: int = 0, waited_s: float = 0.0, retries: int = 0
    ) -> None:
        """Add these numbers to the counters, all of them in one step for other threads that add."""
        with self._lock:
            self.fetched_bytes += fetched_bytes
            self.found += found
            self.waited += waited
            self.waited_s += waited_s
            self.retries += retries

    def __reduce__(self) -> tuple[type[RemoteCounts], tuple[()]]:
        # Settings go to other processes; a lock cannot be pickled.
        return RemoteCounts, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """A cache's folder on this machine's disk, its size limit in bytes, and the counters of its uses."""

    folder: Path
    bytes: int
    #: Not compared: two readers of one cache have equal settings, whatever each has read.
    counts: RemoteCounts = field(default_factory=RemoteCounts, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FilePlaces:
    """Where the files that a job names are."""

    #: The folder that relative paths start from.
    base: Path = Path()
    #: The cache of remote files, if one is set.
    cache: CacheSettings | None = None
    #: Names in the job file, and the places of the files that a joined host has fetched for them.
    fetched: tuple[tuple[str, str], ...] = ()

    def find(self, name: str) -> Path:
        """Return the path of a file that a transform names: where a joined host has fetched it, or else from `base`."""
        return Path(dict(self.fetched).get(name) or self.base / name)


class LocalFile:
    """A file that stays on this machine's disk, at `path`, until it is closed or forgotten.

    `give_back` is called once, then.
    """

    def __init__(self, path: Path, give_back: Callable[[], object] | None = None) -> None:
        self.path = path
        self._give_back = give_back

    def close(self) -> None:
        """Release the file, which may be evicted then; closing again does nothing. Errors of `give_back` pass."""
        # Cleared before the call: `__del__` closes again, and a descriptor's number may be another file's by then.
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_error: object) -> None:
        self.close()


def absent(where: str, got: str, word: str = "file") -> DataError:
    """Return the error for a file that cannot be read; `word` is what messages call it."""
    return DataError(
        expected=f"a {word} that can be read",
        got=got,
        where=where,
        remedy=f"Mend `paths` of the stream, which are relative to the job file, or put the {word} there.",
    )


def changed(expected: str, got: str, where: str) -> ReadError:
    """Return the error for bytes other than those that were indexed."""
    return ReadError(
        expected=expected,
        got=f"{got}: the file has changed since",
        where=where,
        remedy=OTHER_FILE_REMEDY,
    )


def refuse_no_text(head: bytes, where: str) -> None:
    """Raise a DataError if a file with this beginning is known not to be text in UTF-8: compressed, or in UTF-16 or 32.

    `head` has the file's first six bytes, or all of a shorter one. Any other beginning passes.
    """
    without_mark = ("one in UTF-16, without its mark", _CONVERT) if _alternates(head) else None
    kind = next(((got, remedy) for mark, got, remedy in _KINDS if head.startswith(mark)), without_mark)
    if kind is not None:
        raise DataError(expected="a text file in UTF-8", got=kind[0], where=where, remedy=kind[1])


def _alternates(head: bytes) -> bool:
    """Return whether all bytes in even places are zero, or all in odd ones, but not both: Latin letters in UTF-16.

    Return False for any other number of bytes than six.
    """
    return len(head) == HEAD_BYTES and any(head[::2]) != any(head[1::2])
