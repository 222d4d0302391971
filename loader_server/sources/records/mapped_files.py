"""Files of a source, mapped into memory: reading any place of them costs no system call.

Rules: nothing is read before it is used; thousands of files may be mapped at a time; any thread may ask. Remote files
are brought to this machine's disk whole, and those that are mapped fill half of the cache at most. A local file is
compared with the index when it is mapped: its size, and its content if the index has a digest of it and this machine
has not seen its status. Its size is looked at again each time it is asked for, because a process that reads a map
beyond the end of a file that was cut short dies. That can only happen to one that is reading while the file is being
cut. Its status is looked at again after each reading, because what others write into a mapped file is read at once.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

from loader_server.sources.files.opening import changed
from loader_server.sources.files.same_files import has_content, noted_content
from loader_server.sources.files.seen import is_settled, status_of
from loader_server.sources.remote.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loader_server.sources.files.facts import LocalFile
    from loader_server.sources.files.opening import Files
    from shared.errors import ReadError

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
        #: What the index says about the local ones, once there is one.
        self._said: dict[str, dict[str, Any]] = {}
        #: The places and the status of those of them that are mapped and have a digest.
        self._places: dict[str, str] = {}
        self._status: dict[str, tuple[int, ...]] = {}
        #: Bytes of the remote ones, the oldest first.
        self._remote: dict[str, int] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._known

    def __getitem__(self, path: str) -> mmap.mmap | bytes:
        known = self._known.get(path)
        if known is None:
            return self._keep(path, self._map(path))
        if isinstance(known, bytes) or known.size() == len(known):
            return known
        return self._map_anew(path, known)

    def _map_anew(self, path: str, known: mmap.mmap | bytes) -> mmap.mmap | bytes:
        self._forget(path)  # so that whatever is there next is compared as a whole
        data = self._map(path)
        if len(data) != len(known):
            raise self._other_size(path, len(known), len(data))
        return self._keep(path, data)

    def refuse_changed(self, path: str) -> None:
        """Refuse a file that others wrote into: to be called after each reading, before anyone gets what was read."""
        if not self._has_status(path):
            self._map_anew(path, self[path])

    def _has_status(self, path: str) -> bool:
        """Tell whether nobody has changed a file that is mapped; one that is gone stays as it was."""
        place = self._places.get(path)
        if place is None:
            return True
        try:
            return status_of(os.stat(place)) == self._status.get(path)  # a fifth of the time of a Path's
        except OSError:
            return True

    def noted(self, origin: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same about these files, and of each local one a digest, for `allow_only`."""
        return [one if is_url(one["path"]) else {**one, "digest": self._noted(one["path"])} for one in origin]

    def _noted(self, path: str) -> str:
        return noted_content(self._files.where(path), self._files.seen)

    def allow_only(self, origin: Iterable[dict[str, Any]]) -> None:
        """From now on, refuse any other local files than these when they are mapped."""
        self._said = {one["path"]: one for one in origin if not is_url(one["path"])}

    def _map(self, path: str) -> _FileMap | bytes:
        local, said = self._files.local(path), self._said.get(path)
        with local.path.open("rb") as file:
            status = os.fstat(file.fileno())
            if said is not None and status.st_size != said["bytes"]:
                raise self._other_size(path, said["bytes"], status.st_size)
            data = _FileMap(file.fileno(), status.st_size, prot=mmap.PROT_READ) if status.st_size else b""
        if said is not None and "digest" in said:
            self._refuse_other_content(path, status, len(data))
        if isinstance(data, _FileMap):
            data.local = local
        return data

    def _refuse_other_content(self, path: str, status: os.stat_result, nbytes: int) -> None:
        """Refuse what is no copy of the file; indexes of formats that check each record by itself have no digests."""
        place = self._places[path] = self._files.where(path)
        if not has_content(place, status, self._said[path]["digest"], self._files.seen):
            raise self._other(path, nbytes, f"another one of {nbytes} bytes")
        if is_settled(status):
            self._status[path] = status_of(status)

    def _other_size(self, path: str, nbytes: int, now: int) -> ReadError:
        return self._other(path, nbytes, f"one of {now} bytes")

    def _other(self, path: str, nbytes: int, got: str) -> ReadError:
        return changed(f"the file that was indexed ({nbytes} bytes)", got, self._files.where(path))

    def _forget(self, path: str) -> None:
        self._known.pop(path, None)
        self._status.pop(path, None)
        self._remote.pop(path, None)

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
            self._forget(oldest)

    def expect(self, paths: Iterable[str]) -> None:
        """These files will be read soon: begin to fetch those that are remote and not mapped."""
        self._files.expect_local(path for path in dict.fromkeys(paths) if path not in self._known)

    def close(self) -> None:
        """Forget all files."""
        self._known, self._remote, self._status = {}, {}, {}
