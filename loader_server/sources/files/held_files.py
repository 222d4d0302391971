"""Small local files, held in memory as they are first read, so that a piece of them costs no system call.

Rules: files are held only if all of a source are local and fit together. A file's status is asked for before each use:
if that has changed its bytes are compared, and if they have changed none is used again. One that was written a moment
ago is not held yet, because its status could not tell of another write. Any thread may ask.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from loader_server.sources.files.local import LocalHandle, bytes_at
from loader_server.sources.files.seen import is_settled, status_of
from loader_server.sources.remote.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from loader_server.sources.files.opening import Files

__all__ = ["HeldFiles"]

#: Bytes, and number, of files that a source holds in memory, in each process that reads it.
_MOST_BYTES, _MOST_FILES = 32 * 2**20, 64


class _HeldFile(NamedTuple):
    """A file's content, and the status that it was read with."""

    handle: LocalHandle
    content: bytes
    status: tuple[int, ...]


class HeldFiles:
    """The files that an index was made from, by path; without any that may be held if they are too large, or remote."""

    def __init__(self, files: Files, origin: Sequence[dict[str, Any]]) -> None:
        sizes = {facts["path"]: int(facts["bytes"]) for facts in origin}
        may_be_held = len(sizes) <= _MOST_FILES and sum(sizes.values()) <= _MOST_BYTES and not any(map(is_url, sizes))
        self._files = files
        #: The sizes of the files that may be held.
        self._sizes = sizes if may_be_held else {}
        self._held: dict[str, _HeldFile] = {}

    @property
    def has_all(self) -> bool:
        """Return whether all files of the source are held, so that reading them waits for no disk."""
        return 0 < len(self._sizes) == len(self._held)

    def contents(self, paths: Iterable[str]) -> dict[str, bytes] | None:
        """Return the content of each of these files; None if one may not be held, or not now, or has changed.

        Raise an OSError if a file cannot be opened or read.
        """
        contents = {}
        for path in paths:
            content = self._content(path) if path in self._sizes else None
            if content is None:
                return None
            contents[path] = content
        return contents

    def _content(self, path: str) -> bytes | None:
        """Return the content of a file, which is read and held if it was not; None if it was just written, or changed.

        Raise an OSError if it cannot be opened or read.
        """
        held = self._held.get(path)
        if held is None:
            held = self._read(path)
        elif status_of(status := os.fstat(held.handle.number)) != held.status:
            held = self._compared(path, held, status)
        return None if held is None else held.content

    def _compared(self, path: str, held: _HeldFile, status: os.stat_result) -> _HeldFile | None:
        """Return a held file whose status has changed if it has the same bytes; else None, and hold none any more.

        Raise an OSError if it cannot be read.
        """
        # It may have been touched or deleted: by the descriptor, one that is gone by its name can still be read.
        if bytes_at(held.handle.number, 0, len(held.content) + 1) != held.content:
            self._sizes, self._held = {}, {}
            return None
        if is_settled(status):  # otherwise compared again each time, until the status can tell
            held = self._held[path] = held._replace(status=status_of(status))
        return held

    def _read(self, path: str) -> _HeldFile | None:
        """Hold a file; return None if it was just written, or has another size than the indexed one.

        Raise an OSError if it cannot be opened or read.
        """
        handle = LocalHandle(Path(self._files.where(path)))
        before = os.fstat(handle.number)
        if not is_settled(before) or before.st_size != self._sizes.get(path):
            return None
        content = bytes_at(handle.number, 0, before.st_size)
        if len(content) != before.st_size or status_of(os.fstat(handle.number)) != status_of(before):
            return None
        held = self._held[path] = _HeldFile(handle, content, status_of(before))
        return held

    def close(self) -> None:
        """Let go of all files; one that is asked for later is read anew."""
        self._held = {}
