"""Compressed files of records as runs of bytes: any place can be read, and is unpacked from the point before it.

What is between two points, a block, is unpacked once for all processes of a machine and kept in the cache on its disk,
where it is evicted as remote files are. Rules: what does not have the digest of its block is never kept or handed on.
Any thread may read. What is kept beside the index about a file is made by `make_indexes` alone.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from loader_server.sources.files.file_facts import changed
from loader_server.sources.files.same_files import noted_content
from loader_server.sources.records.gzip_index import GzipIndex, first_bytes, make_gzip_index, remove_others
from loader_server.sources.records.gzip_points import GZIP, GzipDamage, GzipPoint, unpacked_from
from loader_server.sources.records.tfrecord_file import begins_with_record
from loader_server.sources.remote.disk_cache import MAPPED, DiskCache
from loader_server.sources.remote.urls import is_url
from shared.errors import DataError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files

__all__ = ["GzipFiles", "UnpackedFile", "is_gzip", "parts_of"]

#: Blocks that a source has open at a time.
_MOST_OPEN = 64
#: How often a block is unpacked again that others evict before it is opened.
_TRIES = 8


def is_gzip(data: mmap.mmap | bytes) -> bool:
    """Return whether a file is compressed by gzip, and not one whose first record has a size of the same bytes."""
    return data[: len(GZIP)] == GZIP and not begins_with_record(data)


def parts_of(data: mmap.mmap | bytes) -> Iterator[bytes]:
    """Yield the content of a compressed file in parts, up to the first damage if there is any."""
    try:
        yield from unpacked_from(data, GzipPoint(0, 0, is_header=True))
    except GzipDamage:
        return


class GzipFiles:
    """The compressed files of one source."""

    def __init__(self, files: Files) -> None:
        self._files = files
        #: The facts of the files in the index by path; empty while indexing.
        self._facts: dict[str, dict[str, Any]] = {}
        self._known: dict[str, UnpackedFile] = {}
        #: Open blocks by key, in the order in which they were opened.
        self._open: dict[str, _OpenBlock] = {}

    @cached_property
    def _cache(self) -> DiskCache:
        return DiskCache(self._files.cache.folder, self._files.cache.bytes)

    def allow_only(self, origin: Iterable[dict[str, Any]]) -> None:
        """From now on, files have the content that these facts of the index tell."""
        self._facts = {facts["path"]: facts for facts in origin}

    def _name_of(self, path: str) -> str:
        """Return the name of what is kept about a file: a hash of its path and content, or version if it is remote.

        Raise an OSError if a local file cannot be read, and errors of `Files.facts` for a remote one.
        """
        facts = self._facts.get(path)
        if is_url(path):
            content = str(facts["version"] if facts else self._files.facts(path).version)
        else:
            content = facts["digest"] if facts else noted_content(self._files.where(path), self._files.seen)
        return xxhash.xxh3_64_hexdigest(f"{path}\0{content}".encode("utf-8", "surrogatepass"))

    def make_indexes(self, files: Sequence[tuple[str, mmap.mmap | bytes]]) -> None:
        """Make what is kept about these files, unless it is there, and remove what is kept about others.

        Raise a DataError if there is one and no folder of an index, or if its content does not begin with a record; a
        SettingsError if the library is missing, and an OSError if the disk is full, or fails. Errors of `Files.local`
        for a remote file pass through.
        """
        names = {path: self._name_of(path) for path, _ in files}
        if files or self._files.index_folder is not None:
            remove_others(self._files.kept_folder, names.values())
        for path, data in files:
            packed = self._files.local(path).path
            make_gzip_index(self._files.kept_folder, names[path], packed, data, self._files.where(path))

    def unpacked(self, path: str, data: mmap.mmap | bytes) -> UnpackedFile:
        """Return a compressed file as the bytes that it unpacks to.

        Raise a DataError if nothing is kept about it beside the index, or what is kept is damaged; an OSError if the
        file cannot be read, and errors of `Files.facts` for a remote one.
        """
        known = self._known.get(path)
        if known is None or known.data is not data:
            name, where = self._name_of(path), self._files.where(path)
            try:
                index = GzipIndex(self._files.kept_folder, name)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise DataError(
                    expected=f"places to unpack the file from, kept beside its index ({name})",
                    got=str(error),
                    where=f"{where}, index {self._files.index_folder}",
                    remedy="The file or the index has changed: run loader-server index.",
                ) from None
            known = self._known[path] = UnpackedFile(self, data, index, name, where)
        return known

    def is_open(self, key: str) -> bool:
        """Return whether a block was opened by this source, and not closed for others since."""
        return key in self._open

    def block(self, file: UnpackedFile, number: int) -> _OpenBlock:
        """Return an open block, unpacked now unless the machine has it.

        Raise a ReadError if it cannot be unpacked to what was indexed, or the cache is too small or cannot be used;
        other errors of the cache pass through, such as a MachineError.
        """
        key = file.key(number)
        known = self._open.get(key)
        if known is not None:
            return known
        start, stop = file.index.bounds(number)
        for _ in range(_TRIES):
            self._cache.make(key, stop - start, lambda handle: file.unpack(number, handle))
            handle = self._cache.find(key)
            if handle is not None:
                break
        else:
            raise self._cache.too_small(stop - start)
        opened = _OpenBlock(handle)
        # No lock: two threads may open a block at the same time, and the later one is kept.
        while len(self._open) >= _MOST_OPEN:
            self._open.pop(next(iter(self._open), ""), None)
        self._open[key] = opened
        return opened

    def close(self) -> None:
        """Forget all files and blocks; a block closes with its last reader."""
        self._known, self._open = {}, {}


class _OpenBlock:
    """An open entry of the cache, which closes with the last thread that uses it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __del__(self) -> None:
        os.close(self.handle)


class UnpackedFile:
    """The bytes that one compressed file unpacks to, by place: a slice of it are bytes, and copied."""

    def __init__(self, files: GzipFiles, data: mmap.mmap | bytes, index: GzipIndex, name: str, where: str) -> None:
        self._files = files
        self._name = name
        self._where = where
        self.data = data
        self.index = index

    def __len__(self) -> int:
        return self.index.facts.bytes

    def key(self, number: int) -> str:
        """Return the key of a block in the cache, which has the digest of its content."""
        return (
            f"{xxhash.xxh3_64_hexdigest(f'{self._name} {number}'.encode())}{self.index.facts.digests[number]}{MAPPED}"
        )

    def first_in_blocks(self, samples: NDArray[np.int64], places: NDArray[np.int64]) -> list[int]:
        """Return the first of these samples, which begin at these places, in each block that is not open."""
        blocks, firsts = np.unique(np.searchsorted(self.index.points.starts, places, "right") - 1, return_index=True)
        is_closed = [not self._files.is_open(self.key(block)) for block in blocks.tolist()]
        closed: list[int] = samples[firsts[np.array(is_closed, bool)]].tolist()
        return closed

    def __getitem__(self, places: slice) -> bytes:
        """Return the bytes of a slice, through the cache; raise a ReadError if they are not what was indexed.

        Raise it as well if the cache is too small or cannot be used. MachineError and OSError of `DiskCache` pass
        through.
        """
        start, stop, _ = places.indices(len(self))
        parts = list[bytes]()
        while start < stop:
            block = self.index.block_at(start)
            begin, end = self.index.bounds(block)
            end = min(stop, end)
            parts.append(os.pread(self._files.block(self, block).handle, end - start, start - begin))
            start = end
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def unkept(self, start: int, stop: int) -> bytes:
        """Return the bytes between two places, unpacked now and not kept; raise a ReadError if the file is damaged."""
        begin = self.index.points[self.index.block_at(start)]
        try:
            found = b"".join(first_bytes(unpacked_from(self.data, begin), stop - begin.unpacked))
        except GzipDamage as error:
            raise changed("the file that was indexed", str(error), self._where) from None
        return found[start - begin.unpacked :]

    def unpack(self, number: int, handle: int) -> None:
        """Write a block into an open file; raise a ReadError if it does not unpack to what was indexed.

        Raise an OSError if the disk is full, or fails.
        """
        start, stop = self.index.bounds(number)
        digest, at = xxhash.xxh3_64(), 0
        try:
            for part in first_bytes(unpacked_from(self.data, self.index.points[number]), stop - start):
                digest.update(part)
                at += os.pwrite(handle, part, at)
        except GzipDamage as error:
            raise changed("the file that was indexed", str(error), self._where) from None
        if (at, digest.hexdigest()) != (stop - start, self.index.facts.digests[number]):
            raise changed("the file that was indexed", f"other bytes after byte {start} of it, unpacked", self._where)
