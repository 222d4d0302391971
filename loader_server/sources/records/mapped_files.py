"""Files of a source, mapped into memory: reading any place of them costs no system call.

Rules: nothing is read before it is used; thousands of files may be mapped at a time; any thread may ask. Remote files
are brought to this machine's disk whole, and those that are mapped fill half of the cache at most. A file that was cut
short is refused each time it is asked for, because the process that reads a map beyond the file's end dies. Only who
was reading at the very moment dies so.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

from loader_server.sources.files.opening import changed
from loader_server.sources.remote.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loader_server.sources.files.facts import LocalFile
    from loader_server.sources.files.opening import Files

__all__ = ["MappedFiles"]

#: The most files mapped at a time: the system allows a process 65 530 maps.
_MOST_MAPPED = 4096


class _FileMap(mmap.mmap):
    """The bytes of a file, which stays on the disk for as long as somebody reads them."""

    local: LocalFile


class MappedFiles:
    """The bytes of files by their path."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, _FileMap | bytes] = {}
        #: Bytes of the remote ones, the oldest first.
        self._remote: dict[str, int] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._known

    def __getitem__(self, path: str) -> mmap.mmap | bytes:
        known = self._known.get(path)
        if known is None:
            return self._keep(path, self._map(path))
        if isinstance(known, bytes) or known.size() >= len(known):
            return known
        return self._keep(path, self._map_again(path, len(known)))

    def _map(self, path: str) -> _FileMap | bytes:
        local = self._files.local(path)
        with local.path.open("rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            data = _FileMap(file.fileno(), nbytes, prot=mmap.PROT_READ) if nbytes else b""
        if isinstance(data, _FileMap):
            data.local = local
        return data

    def _map_again(self, path: str, nbytes: int) -> _FileMap | bytes:
        """Map what is there now in the place of a file that was cut short; refuse it if it is shorter, too."""
        data = self._map(path)
        if len(data) < nbytes:
            expected = f"the file that was indexed ({nbytes} bytes)"
            raise changed(expected, f"one of {len(data)} bytes", self._files.where(path))
        return data

    def _keep(self, path: str, data: _FileMap | bytes) -> _FileMap | bytes:
        if len(self._known) >= _MOST_MAPPED:
            self.close()
        if is_url(path):
            self._make_room(len(data))
            self._remote[path] = len(data)
        self._known[path] = data
        return data

    def _make_room(self, nbytes: int) -> None:
        """Forget the remote files that were mapped first; each is unmapped once nobody reads it any more."""
        while self._remote and sum(self._remote.values()) + nbytes > self._files.cache.bytes // 2:
            oldest = next(iter(self._remote))
            self._remote.pop(oldest, None)
            self._known.pop(oldest, None)

    def expect(self, paths: Iterable[str]) -> None:
        """These files will be read soon: begin to fetch those that are remote and not mapped."""
        self._files.expect_local(path for path in dict.fromkeys(paths) if path not in self._known)

    def close(self) -> None:
        """Forget all files."""
        self._known, self._remote = {}, {}
