"""Files of a source, mapped into memory: reading any place of them costs no call of the system.

Rules: nothing is read before it is looked at; a file that is mapped needs no descriptor, so that thousands may be at a
time; any thread may ask. A mapped file that is cut short
ends the process that reads it, and the next one refuses it by its size.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loader_server.sources.file_facts import LocalFile
    from loader_server.sources.files import Files

__all__ = ["MappedFiles"]

#: Files that are mapped at a time: the system allows a process 65 530 maps.
_MOST_MAPPED = 4096


class MappedFiles:
    """The bytes of files by their path."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, tuple[mmap.mmap | bytes, LocalFile]] = {}

    def __getitem__(self, path: str) -> mmap.mmap | bytes:
        known = self._known.get(path)
        return known[0] if known is not None else self._map(path)

    def _map(self, path: str) -> mmap.mmap | bytes:
        if len(self._known) >= _MOST_MAPPED:
            self.close()
        local = self._files.local(path)
        with local.path.open("rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            data = mmap.mmap(file.fileno(), nbytes, prot=mmap.PROT_READ) if nbytes else b""
        self._known[path] = (data, local)
        return data

    def close(self) -> None:
        """Forget all files: one is unmapped once nobody reads it any more."""
        known, self._known = self._known, {}
        for _, local in known.values():
            local.close()
