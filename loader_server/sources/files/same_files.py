"""The files that an index was made from: what is noted about them, and the refusal of others.

Rules: the index has each file's size and a hash of its content: all of it if the file is small, else places spread over
it and both ends, where formats keep their tables. A file of another size is another file. If the size is equal but this
machine has not seen the file's status (device, inode, mtime and ctime) with that hash, the content is looked at; so a
copy is the same file, and other bytes are refused even if their mtime was put back.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from loader_server.sources.files.facts import changed
from loader_server.sources.files.local import LocalHandle, bytes_at
from loader_server.sources.files.seen import is_settled, status_of
from loader_server.sources.remote.urls import is_url
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loader_server.sources.files.opening import Files
    from loader_server.sources.files.seen import SeenFiles
    from loader_server.sources.source import Indexed

__all__ = [
    "FilesInUse",
    "digest_of",
    "digest_of_handle",
    "digest_of_number",
    "has_content",
    "noted_content",
    "noted_origin",
    "number_of_digest",
    "refuse_other_files",
]

#: The digest of a large file covers this many pieces of this many bytes, so it costs the same for any size.
_PIECES, _PIECE_BYTES = 64, 4096


def noted_origin(files: Files, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the index records about these files, for `Inventory(origin=…)`."""
    return [{**facts, "digest": _noted(files, facts["path"], facts["bytes"])} for facts in files.origin(paths)]


def _noted(files: Files, path: str, nbytes: int) -> str:
    if is_url(path):
        return digest_of(lambda start, stop: files.read(path, start, stop - start), nbytes)
    return noted_content(files.where(path), files.seen)


def noted_content(place: str, seen: SeenFiles) -> str:
    """Return the digest of a local file's content, and remember it for the file's status."""
    handle = LocalHandle(Path(place))
    return digest_of_handle(handle.number, os.fstat(handle.number), seen)


def digest_of_handle(handle: int, status: os.stat_result, seen: SeenFiles) -> str:
    """Return the digest of an open file's content, and remember it for `status`, which was taken before reading."""
    digest = digest_of(lambda start, stop: bytes_at(handle, start, stop - start), status.st_size)
    seen.keep(status, digest)
    return digest


def has_content(place: str, status: os.stat_result, digest: str, seen: SeenFiles) -> bool:
    """Return whether a local file has the content of this digest; it is read only if its status was not seen yet.

    The file is opened anew, because a status tells only about the file that has it: a descriptor that was opened before
    may be of a file that was replaced meanwhile.
    """
    return seen.has(status, digest) or noted_content(place, seen) == digest


def refuse_other_files(files: Files, indexed: Indexed) -> None:
    """Raise a DataError if a file is not the one that the index was made from; a source calls it in `open`."""
    files.refuse_changed(indexed.origin, indexed.place)
    for facts in indexed.origin:
        if not _is_same(files, facts):
            raise DataError(
                expected="the file that the index was made from",
                got="another one of the same size",
                where=f"{files.where(facts['path'])}, index {indexed.place}",
                remedy="The file has changed: bring it by rsync -a or cp -a from where the index was made, or run "
                "loader-server index.",
            )


def _is_same(files: Files, facts: dict[str, Any]) -> bool:
    path, place = facts["path"], files.where(facts["path"])
    if is_url(path):  # `refuse_changed` has compared its version
        return True
    return has_content(place, os.stat(place), facts["digest"], files.seen)


class FilesInUse:
    """The local files of an open index, which others may overwrite while they are read.

    Remote files are left out: they are read in the version that was indexed.
    """

    def __init__(self, files: Files, indexed: Indexed) -> None:
        self._seen = files.seen
        self._said = {one["path"]: one for one in indexed.origin if not is_url(one["path"])}
        self._places = {path: files.where(path) for path in self._said}
        #: The status at which each file was last seen to have the indexed content.
        self._known: dict[str, tuple[int, ...]] = {}

    def refuse_changed(self, *paths: str) -> None:
        """Raise a ReadError if one of these files, or any file if none is named, is no longer the indexed one.

        Call it after each reading, before anyone gets what was read: a check before reading would miss a file that is
        overwritten in between.
        """
        for path in paths or self._places:
            if path in self._places:
                now = self._now(path)
                if status_of(now) != self._known.get(path):
                    self._look_at(path, now)

    def _now(self, path: str) -> os.stat_result:
        try:
            return os.stat(self._places[path])  # takes a fifth of the time of Path.stat
        except OSError as error:
            raise changed("the file that was indexed", error.strerror or str(error), self._places[path]) from None

    def _look_at(self, path: str, now: os.stat_result) -> None:
        said, place = self._said[path], self._places[path]
        if now.st_size != said["bytes"] or not has_content(place, now, said["digest"], self._seen):
            raise changed("the file that was indexed", f"another one of {now.st_size} bytes", place)
        # A status that is younger than the file system's clock tick is not kept: a second write within the tick would
        # leave it unchanged.
        if is_settled(now):
            self._known[path] = status_of(now)


def digest_of(read: Callable[[int, int], bytes], nbytes: int) -> str:
    """Return a digest of a file's content; `read(start, stop)` gives its bytes.

    Of a large file only spread pieces are hashed, the first and the last bytes among them.
    """
    if nbytes <= _PIECES * _PIECE_BYTES:
        return xxhash.xxh3_64_hexdigest(read(0, nbytes))
    digest = xxhash.xxh3_64()
    for start in np.linspace(0, nbytes - _PIECE_BYTES, _PIECES).astype(np.int64).tolist():
        digest.update(read(start, start + _PIECE_BYTES))
    return digest.hexdigest()


def number_of_digest(digest: str) -> int:
    """Return a digest as a signed 64-bit number, for a column of an index."""
    return int.from_bytes(bytes.fromhex(digest), "big", signed=True)


def digest_of_number(number: int) -> str:
    """Return the digest that a column holds as a number."""
    return f"{number % 2**64:016x}"
