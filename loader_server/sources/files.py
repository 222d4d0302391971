"""The one place through which sources open files, so that each source reads local and remote ones alike.

A file goes by its path as the job file has it, relative to `base`. Rules: nothing is opened before it is read; any
thread may read; few files are open at a time. What can be wrong with a file as such (it is absent, refused, cut short,
another one than was indexed) is said here, in the same words for all sources. Knows no format.
"""

from __future__ import annotations

import glob
import os
import stat
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import xxhash

from shared.errors import DataError, ReadError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["FileFacts", "Files", "changed"]

#: Files that one source has open at a time.
_MOST_OPEN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What tells a file from another one of the same name: its size, and its time of change in nanoseconds."""

    bytes: int
    version: int


class Files:
    """The files of one source; `close` gives back what is open."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._handles: dict[str, _Handle] = {}

    # --- which there are ---

    def found(self, paths: Iterable[str], *suffixes: str) -> list[str]:
        """The files that are meant: a path as it is, all that match a pattern (`shards/*.tar`, `**/*.tar`), all below
        a folder that end so; patterns and folders in sorted order. DataError where there is none.
        """
        names = list(paths)
        if not names:
            raise DataError(
                expected="at least one file", got="none", where=str(self._base), remedy='Write paths = ["…"].'
            )
        return [found for name in names for found in self._meant(name, suffixes)]

    def _meant(self, name: str, suffixes: tuple[str, ...]) -> list[str]:
        path = self._base / name
        if path.is_dir():
            return self._some(name, (found for found in _below(path) if found.endswith(suffixes)), suffixes)
        if glob.has_magic(name) and not path.exists():
            matching = glob.glob(name, root_dir=self._base, recursive=True)  # noqa: PTH207 - relative, as they are named
            return self._some(name, (found for found in matching if (self._base / found).is_file()), suffixes)
        return [name]

    def _some(self, name: str, found: Iterable[str], suffixes: tuple[str, ...]) -> list[str]:
        names = sorted(found if glob.has_magic(name) else (os.path.join(name, one) for one in found))  # noqa: PTH118
        if not names:
            raise DataError(
                expected=f"files that end in {' or '.join(suffixes)}" if suffixes else "files",
                got="none",
                where=self.where(name),
                remedy="Mend `paths` of the stream, which are relative to the job file, or put the files there.",
            )
        return names

    # --- what they are ---

    def where(self, path: str) -> str:
        """What messages call the file."""
        return str(self._base / path)

    def facts(self, path: str) -> FileFacts:
        """Size and version; DataError where there is no such file."""
        try:
            status = (self._base / path).stat()
        except OSError as error:
            raise self._absent(path, error.strerror or type(error).__name__) from None
        if not stat.S_ISREG(status.st_mode):
            raise self._absent(path, "a folder" if stat.S_ISDIR(status.st_mode) else "something else")
        return FileFacts(bytes=status.st_size, version=status.st_mtime_ns)

    def _absent(self, path: str, got: str) -> DataError:
        return DataError(
            expected="a file that can be read",
            got=got,
            where=self.where(path),
            remedy="Mend `paths` of the stream, which are relative to the job file, or put the file there.",
        )

    def origin(self, paths: Iterable[str]) -> list[dict[str, Any]]:
        """What an inventory says of its files (`Inventory(origin=…)`), for `refuse_changed`."""
        return [{"path": path, **asdict(self.facts(path))} for path in paths]

    def stamp(self, paths: Iterable[str]) -> str:
        """What `Source.stamp` gives where the data are these files: a digest of their names, sizes and times of change.

        The inode's own time counts as well, which nobody sets back as `cp -p` and `rsync -t` do with the other: so a
        file that got another place or owner counts as changed, which costs another look at it. Unseen stays one that
        keeps its size and is written twice within one tick of the file system's clock, some milliseconds.
        """
        state, base = xxhash.xxh3_128(), str(self._base)
        for path in paths:
            try:
                status = os.stat(os.path.join(base, path))  # noqa: PTH116, PTH118 - paths come by the hundred thousand
                facts = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
            except (OSError, ValueError) as error:
                facts = type(error).__name__
            state.update(f"{path}\0{facts}\n".encode("utf-8", "surrogateescape"))
        return state.hexdigest()

    def refuse_changed(self, origin: Iterable[dict[str, Any]], index: Path) -> None:
        """Refuse files that are gone or others than those of the index's origin: a source calls it in `open`. A copy of
        a file has another time, so that size alone tells: a source keeps digests of what it reads.
        """
        for facts in origin:
            size = self.facts(facts["path"]).bytes
            if size != facts["bytes"]:
                raise DataError(
                    expected=f"the file that the index was made from ({facts['bytes']} bytes)",
                    got=f"another one ({size} bytes)",
                    where=f"{self.where(facts['path'])}, index {index}",
                    remedy="The file has changed: run loader-server index.",
                )

    # --- their bytes ---

    def read(self, path: str, offset: int, nbytes: int) -> bytes:
        """So many bytes from this place, all of them: ReadError where the file ends before, OSError where the disk
        fails or the file is gone.
        """
        handle = self._handle(path)  # named, so that it stays open even if another thread forgets it now
        raw = _bytes_at(handle.number, offset, nbytes)
        if len(raw) != nbytes:
            raise changed(f"{nbytes} bytes from byte {offset} on", f"{len(raw)} bytes", self.where(path))
        return raw

    def whole(self, path: str, facts: FileFacts) -> bytes:
        """All bytes of a file of which there is one a sample, if it is still the one of these facts: ReadError if not,
        OSError as in `read`.
        """
        handle = _Handle(self._base / path)
        status = os.fstat(handle.number)
        now = FileFacts(bytes=status.st_size, version=status.st_mtime_ns)
        raw = _bytes_at(handle.number, 0, facts.bytes) if now == facts else b""
        if now != facts or len(raw) != facts.bytes:
            got = f"one of {len(raw) if now == facts else now.bytes} bytes"
            raise changed(f"the file that was indexed ({facts.bytes} bytes)", got, self.where(path))
        return raw

    def open(self, path: str) -> BinaryIO:
        """The file, to be read from its beginning or wherever one seeks to; close it."""
        try:
            return (self._base / path).open("rb")
        except OSError as error:
            raise self._absent(path, error.strerror or type(error).__name__) from None

    def local(self, path: str) -> LocalFile:
        """The whole file on this machine's disk, for a library that wants a path or a memory map; close it after."""
        return LocalFile(self._base / path)

    def _handle(self, path: str) -> _Handle:
        handle = self._handles.get(path)
        if handle is None:
            if len(self._handles) >= _MOST_OPEN:
                self._handles.clear()
            handle = self._handles[path] = _Handle(self._base / path)
        return handle

    def close(self) -> None:
        """Close what is open once nobody reads it any more; it opens again when it is read."""
        self._handles.clear()


class LocalFile:
    """A file that stays on this machine's disk, at `path`, until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def close(self) -> None:
        """It is not needed any more."""

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_error: object) -> None:
        self.close()


class _Handle:
    """An open file. The last thread that uses it closes it, whoever else forgot it meanwhile."""

    __slots__ = ("number",)

    def __init__(self, path: Path) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def changed(expected: str, got: str, where: str) -> ReadError:
    """What a source raises that reads other bytes than it indexed."""
    return ReadError(
        expected=expected,
        got=f"{got}: the file has changed since",
        where=where,
        remedy="Put the file back, or run loader-server index and start the job anew.",
    )


def _below(folder: Path) -> Iterable[str]:
    """The files in a folder and its folders, but for hidden ones."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        for name in files:
            if not name.startswith((".", "_")):
                yield os.path.relpath(os.path.join(place, name), folder)  # noqa: PTH118


def _bytes_at(handle: int, offset: int, nbytes: int) -> bytes:
    """So many bytes, or all that there are: the system may give many in pieces."""
    raw = os.pread(handle, nbytes, offset)
    while len(raw) < nbytes and (more := os.pread(handle, nbytes - len(raw), offset + len(raw))):
        raw += more
    return raw
