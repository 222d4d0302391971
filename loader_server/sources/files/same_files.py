"""The files that an index was made from: what is noted of them, and refusing others.

Rules: sizes are compared each time; if a file's time of change differs, so is a digest of some of its bytes (both ends,
where formats keep their tables, and places between). So a copy is the same file, and another file of equal size is not.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from loader_server.sources.files.opening import changed
from loader_server.sources.remote.urls import is_url
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loader_server.sources.files.opening import Files
    from loader_server.sources.source import Indexed

__all__ = ["FilesInUse", "digest_of", "noted_origin", "refuse_other_files"]

#: A digest covers this many pieces of this many bytes.
_PIECES, _PIECE_BYTES = 64, 4096


def noted_origin(files: Files, paths: Sequence[str]) -> list[dict[str, Any]]:
    """What is noted about these files, for `Inventory(origin=…)`."""
    return [{**facts, "digest": _digest(files, facts["path"], facts["bytes"])} for facts in files.origin(paths)]


def refuse_other_files(files: Files, indexed: Indexed) -> None:
    """Refuse files that are not those that the index was made from; a source calls it in `open`."""
    files.refuse_changed(indexed.origin, indexed.place)
    for facts in indexed.origin:
        path, same = facts["path"], files.facts(facts["path"]).version == facts["version"]
        if not same and _digest(files, path, facts["bytes"]) != facts["digest"]:
            raise DataError(
                expected="the file that the index was made from",
                got="another one of the same size",
                where=f"{files.where(path)}, index {indexed.place}",
                remedy="The file has changed: run loader-server index.",
            )


class FilesInUse:
    """The local files of an index that is open, which others may write over while they are read; remote ones are read
    as the version that they were.
    """

    def __init__(self, files: Files, indexed: Indexed) -> None:
        self._files = files
        self._said = {one["path"]: one for one in indexed.origin if not is_url(one["path"])}
        self._places = {path: files.where(path) for path in self._said}
        #: Size and time of change of those that were seen to be the ones that were indexed.
        self._known: dict[str, tuple[int, int]] = {}

    def refuse_changed(self, *paths: str) -> None:
        """Refuse files, all if none is named, that are no longer the ones that were indexed: to be called after each
        reading, before anyone gets what was read.
        """
        for path in paths or self._places:
            if path in self._places and (now := self._now(path)) != self._known.get(path):
                self._look_at(path, now)

    def _now(self, path: str) -> tuple[int, int]:
        try:
            status = os.stat(self._places[path])  # noqa: PTH116 - a fifth of the time of a Path's
        except OSError as error:
            raise changed("the file that was indexed", error.strerror or str(error), self._places[path]) from None
        return status.st_size, status.st_mtime_ns

    def _look_at(self, path: str, now: tuple[int, int]) -> None:
        said = self._said[path]
        same = now == (said["bytes"], said["version"])
        if not same and (now[0] != said["bytes"] or _digest(self._files, path, now[0]) != said["digest"]):
            raise changed("the file that was indexed", f"another one of {now[0]} bytes", self._places[path])
        self._known[path] = now


def _digest(files: Files, path: str, nbytes: int) -> str:
    return digest_of(lambda start, stop: files.read(path, start, stop - start), nbytes)


def digest_of(read: Callable[[int, int], bytes], nbytes: int) -> str:
    """A digest of some of a file's bytes; `read` gives those from one place to before another."""
    starts = np.linspace(0, max(nbytes - _PIECE_BYTES, 0), _PIECES).astype(np.int64)
    digest = xxhash.xxh3_64()
    for start in np.unique(starts).tolist():
        digest.update(read(start, min(start + _PIECE_BYTES, nbytes)))
    return digest.hexdigest()
