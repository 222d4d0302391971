"""Files of a source, mapped into memory: reading any place of them costs no system call.

Rules: nothing is read before it is used; thousands of files may be mapped at a time; any thread may ask. Remote files
are fetched to this machine's disk whole, and the mapped ones fill half of the disk cache at most. When a local file is
mapped, it is compared with the index: its size, and its content if the index has a digest of it and this machine has
not yet seen the file in this state.

A mapped file can still change. A process that reads a map beyond the end of a file that was cut short is killed, so a
file's size is checked each time the file is asked for; only a file that is cut while it is being read can still kill.
What other programs write into a mapped file appears in the map at once, so the file's status is checked again after
each reading.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

from loader_server.sources.files.file_facts import LocalFile, changed
from loader_server.sources.files.same_files import has_content, noted_content
from loader_server.sources.files.seen import is_settled, status_of
from loader_server.sources.remote.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loader_server.sources.files.opening import Files
    from shared.errors import ReadError

__all__ = ["MappedFiles"]

#: The most files mapped at a time: the system allows a process 65 530 maps.
_MOST_MAPPED = 4096


class _FileMap(mmap.mmap):
    """A mapped file that holds its local copy, so that the copy stays on the disk while somebody reads it."""

    local: LocalFile


class MappedFiles:
    """The bytes of files by path, mapped when they are first asked for."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, _FileMap | bytes] = {}
        #: Facts of the local files in the index by path; empty while indexing.
        self._indexed: dict[str, dict[str, Any]] = {}
        #: Place of each mapped file whose content was compared with a digest.
        self._places: dict[str, str] = {}
        #: The status at which it was compared, unless that was too young to tell of a second write.
        self._status: dict[str, tuple[int, ...]] = {}
        #: Sizes of the mapped remote files, in the order in which they were mapped.
        self._remote: dict[str, int] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._known

    def __getitem__(self, path: str) -> mmap.mmap | bytes:
        """Return the file's bytes, as a map or, for an empty file, as `b""`.

        Raise a ReadError if the file is not the indexed one, if its size changed after it was mapped, or if a remote
        one cannot be fetched; raise an OSError if a local one cannot be opened. Errors of `Files.local` pass through.
        """
        # No lock: two threads may map a file at the same time. Each gets a map of its own, and the later one is kept.
        known = self._known.get(path)
        if known is None:
            return self._keep(path, self._mapped(path))
        # `size()` asks for the size of the file as it is now: reading beyond its end would kill the process.
        if isinstance(known, bytes) or known.size() == len(known):
            return known
        return self._map_anew(path, known)

    def _map_anew(self, path: str, known: mmap.mmap | bytes) -> mmap.mmap | bytes:
        """Map a file again that may have changed, and return the map.

        Raise a ReadError if it has another size or content or a remote one cannot be fetched, and an OSError if it is
        gone. Content is compared only if the index has a digest of it. SettingsError and MachineError of `_mapped` pass
        through.
        """
        # Forgotten first: if mapping fails now (the file was cut short) and somebody then writes other data of the old
        # size, the old map would pass as the file, and its content would never be compared.
        self._forget(path)
        data = self._mapped(path)
        if len(data) != len(known):
            raise self._other(path, len(known), f"one of {len(data)} bytes")
        return self._keep(path, data)

    def refuse_changed(self, path: str) -> None:
        """Raise a ReadError if somebody has written into the mapped file.

        Call this after each reading, before the bytes are handed on. A file whose status changed is mapped and compared
        anew, so one that was only touched or replaced by a copy passes. So does a file that was deleted, because its
        map has the old bytes, and a file without a digest in the index. Raise an OSError if a file whose status changed
        cannot be read. SettingsError and MachineError of `_map_anew` pass through.
        """
        place = self._places.get(path)
        if place is None:  # its format has no digests in the index, and checks each record by itself
            return
        try:
            status = os.stat(place)  # `Path.stat` takes five times as long
        except OSError:  # deleted: the map still has the old bytes
            return
        if status_of(status) != self._status.get(path):
            self._map_anew(path, self[path])

    def noted(self, origin: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return these facts about files, with a digest of each local file for `allow_only` to compare with.

        Raise an OSError if a file cannot be read.
        """
        return [
            facts
            if is_url(facts["path"])
            else {**facts, "digest": noted_content(self._files.where(facts["path"]), self._files.seen)}
            for facts in origin
        ]

    def allow_only(self, origin: Iterable[dict[str, Any]]) -> None:
        """From now on, refuse to map local files that differ from these facts of the index.

        Remote ones are left out.
        """
        self._indexed = {facts["path"]: facts for facts in origin if not is_url(facts["path"])}

    def _mapped(self, path: str) -> _FileMap | bytes:
        """Return a file's map, or `b""` if it is empty; raise a ReadError if the file is not the one in the index.

        Raise an OSError if a local file cannot be opened or mapped, and for a remote one what `Files.local` raises,
        such as a ReadError if it cannot be fetched.
        """
        local, indexed = self._files.local(path), self._indexed.get(path, {})
        with local.path.open("rb") as file:
            # The status of the open file, which is the one that is mapped, even if its name is replaced meanwhile.
            status = os.fstat(file.fileno())
            if status.st_size != indexed.get("bytes", status.st_size):
                raise self._other(path, indexed["bytes"], f"one of {status.st_size} bytes")
            # An empty file cannot be mapped.
            data = _FileMap(file.fileno(), status.st_size, prot=mmap.PROT_READ) if status.st_size else b""
        if "digest" in indexed:
            self._refuse_other_content(path, status, len(data))
        if isinstance(data, _FileMap):
            data.local = local
        return data

    def _refuse_other_content(self, path: str, status: os.stat_result, nbytes: int) -> None:
        """Raise a ReadError if the file has another content than the indexed one; otherwise remember a settled status.

        Formats that check each record by itself have no digests in the index, and do not come here. Raise an OSError if
        the file cannot be read.
        """
        place = self._places[path] = self._files.where(path)
        if not has_content(place, status, self._indexed[path]["digest"], self._files.seen):
            raise self._other(path, nbytes, f"another one of {nbytes} bytes")
        # The clock of a file system is coarse: soon after a change, another write may leave the same status. The
        # status of such a file is not kept, so each reading compares its content until the status can tell.
        if is_settled(status):
            self._status[path] = status_of(status)

    def _other(self, path: str, nbytes: int, got: str) -> ReadError:
        """Return the error for a file that is not the indexed one."""
        return changed(f"the file that was indexed ({nbytes} bytes)", got, self._files.where(path))

    def _forget(self, path: str) -> None:
        """Drop a file's map, status and size; the map lives on as long as somebody holds it."""
        self._known.pop(path, None)
        self._status.pop(path, None)
        self._remote.pop(path, None)

    def _keep(self, path: str, data: _FileMap | bytes) -> _FileMap | bytes:
        """Remember a mapped file and return it, after dropping all others if there are too many.

        A remote file makes those go that were mapped first, until all remote ones fit into half of the cache.
        """
        if len(self._known) >= _MOST_MAPPED:
            self.close()
        if is_url(path):
            # The mapped remote files fill half of the disk cache at most, because none of them can be evicted: files
            # that come while others are read need the other half. Those mapped first make room.
            while self._remote and sum(self._remote.values()) + len(data) > self._files.cache.bytes // 2:
                self._forget(next(iter(self._remote)))
            self._remote[path] = len(data)
        self._known[path] = data
        return data

    def expect(self, paths: Iterable[str]) -> None:
        """Start fetching those of these files that are remote and not mapped.

        Raise a DataError if a file is gone when it is first looked at, a ReadError if its store cannot be asked, and a
        SettingsError if the store's library is missing.
        """
        self._files.expect_local(path for path in dict.fromkeys(paths) if path not in self._known)

    def close(self) -> None:
        """Forget all files; each is unmapped when its last reader lets go of it.

        A file that is asked for later is mapped and compared anew.
        """
        self._known, self._remote, self._status = {}, {}, {}
