"""Blobs by sample number, in a folder that the workers of a machine share, bounded together with its sister folders.

A table has an entry for each sample: the segment of its blob, the place there, the length, and a checksum. Segments are
files of one size; each is written by one process, from front to back, and read by all. Rules: an entry counts only if
its checksum is right, which covers the blob and the sample's identity; so whatever a kill -9, two simultaneous writers
or a bad disk left behind is not found. Nothing is evicted within a store: a full one takes nothing more, because
samples that are read epoch after epoch would keep evicting each other. Stores of other keys that nobody has open are
removed to make room, the one opened longest ago first. Locks are the kernel's, which end with their process. A link
that somebody put in the place of a file or folder is never followed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from shared.errors import MachineError
from shared.logs import Log
from shared.stores.eviction import evict, last_use_ns
from shared.stores.locks import lock, locked
from shared.stores.own_files import CLOSED, open_own, refuse_linked_folder
from shared.system.system_errors import OUT_OF_ROOM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["SampleStore"]

#: Checksum of blob and identity, place in the segment, bytes (0: no entry), number of the segment.
_ENTRY = np.dtype([("check", "<u8"), ("offset", "<u8"), ("nbytes", "<u4"), ("segment", "<u4")])
#: Limits on the number of segments: enough for each worker of a machine to have one, few enough for all to be open.
_LEAST_SEGMENTS, _MOST_SEGMENTS = 64, 1024
_USUAL_BYTES = 2**26
_TABLE, _SEGMENT = "table", "segment-"


class SampleStore:
    """The blobs of a fixed number of samples, in the folder `key` of `root`.

    `most_bytes` bounds all stores of the root together. Any thread may `get`, one may `put`. Opening raises OSError if
    the disk is full, closed or without locks, and MachineError if there is a link in the place of a file.
    """

    def __init__(self, root: Path, key: str, samples: int, most_bytes: int) -> None:
        self._root = root
        self._folder = root / key
        self._most_bytes = most_bytes
        usual = max(_USUAL_BYTES, most_bytes // _MOST_SEGMENTS)
        self._segment_bytes = max(1, min(usual, most_bytes // _LEAST_SEGMENTS))
        #: Segments that were opened for reading, by number; the lock keeps two threads from opening one twice.
        self._opening = threading.Lock()
        self._segments: dict[int, int] = {}
        #: The segment that this process writes: its number, descriptor (-1: none) and end.
        self._number, self._handle, self._end = 0, -1, 0
        #: Once there was no room for a segment; from then on nothing more is kept.
        self._is_full = False
        with self._ledger():
            refuse_linked_folder(self._folder)
            self._folder.mkdir(exist_ok=True)
            self._table = open_own(self._folder / _TABLE, os.O_RDWR | os.O_CREAT)
            # Shared by all that have this store open, and held until they close it: `_remove_unused` of another store
            # takes it for itself alone, so it cannot remove this one.
            lock(self._table, wait=True, shared=True)
            os.ftruncate(self._table, samples * _ENTRY.itemsize)
            os.utime(self._table)
            # Mapped for reading only. Entries are written by pwrite, which raises an error on a full disk; writing
            # through the map would kill the process (SIGBUS).
            self._mapped = mmap.mmap(self._table, samples * _ENTRY.itemsize, prot=mmap.PROT_READ)
            self._cut_abandoned()

    @property
    def _entries(self) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        return np.frombuffer(self._mapped, _ENTRY)

    def get(self, sample: int, identity: str) -> bytearray | None:
        """Return the sample's blob if it is there, whole, and was kept under this identity; otherwise None.

        Raise an OSError if the disk fails, or the segment is closed to us.
        """
        check, offset, nbytes, segment = self._entries[sample].tolist()
        # The entry may be torn or of a bad disk: check its bounds before memory is taken for it.
        handle = self._segment(segment) if 0 < nbytes <= self._segment_bytes - offset else None
        if handle is None:
            return None
        blob = bytearray(nbytes)
        whole = os.preadv(handle, [blob], offset) == nbytes
        return blob if whole and _check(blob, identity) == check else None

    def seem_kept(self, samples: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these samples have an entry, valid or not."""
        return np.asarray(self._entries["nbytes"][samples] > 0)

    def put(self, sample: int, identity: str, blob: bytes) -> None:
        """Keep a blob, unless the store is full, the blob is larger than a segment, or there is no room for a segment.

        Raise a MachineError if there is a link in the place of a file, and an OSError if blob, segment or entry cannot
        be written for another reason than a disk that is full or closed, which marks the store as full.
        """
        if self._is_full or len(blob) > self._segment_bytes:
            return
        if self._handle < 0 or self._end + len(blob) > self._segment_bytes:
            self._begin_segment()
        if self._handle >= 0:
            # The blob goes first and the entry after it. A reader that comes between finds the old entry or none, and a
            # torn or overwritten entry fails its checksum, so neither needs a lock.
            entry = np.array((_check(blob, identity), self._end, len(blob), self._number), _ENTRY)
            # Segments are allocated in advance, but a copy-on-write file system takes other blocks for what is written;
            # the table is not allocated.
            with self._noticing_a_full_disk():
                _write_all(self._handle, blob, self._end)
                self._end += len(blob)
                _write_all(self._table, entry.tobytes(), sample * _ENTRY.itemsize)

    def close(self) -> None:
        """Close the files and give back the segment's unused rest (OSErrors pass); closing again does nothing."""
        # A second close could hit descriptors that other files have got since.
        if self._mapped.closed:
            return
        self._end_segment()
        self._mapped.close()  # mmap duplicated the descriptor, and the lock lives as long as either
        for handle in (*self._segments.values(), self._table):
            os.close(handle)
        self._segments.clear()

    # --- segments ---

    def _segment(self, number: int) -> int | None:
        """Return a segment's descriptor, which stays open; None if the segment is gone or not a file of ours.

        Raise an OSError if it cannot be opened for another reason.
        """
        with self._opening, contextlib.suppress(FileNotFoundError, MachineError):  # gone, or a link
            if number not in self._segments:
                self._segments[number] = open_own(self._path(number), os.O_RDONLY)
        return self._segments.get(number)

    def _path(self, number: int) -> Path:
        return self._folder / f"{_SEGMENT}{number}"

    def _numbers(self) -> list[int]:
        return [int(path.name.removeprefix(_SEGMENT)) for path in self._folder.glob(f"{_SEGMENT}*")]

    def _begin_segment(self) -> None:
        """Finish the present segment, and begin a new one with its room reserved on the disk.

        If there is no room, or the disk is closed to us, mark the store as full. Raise a MachineError if a link is in
        the place of a file, and other errors of the disk.
        """
        self._end_segment()
        with self._noticing_a_full_disk(), self._ledger():
            self._make_room()
            if not self._is_full:
                self._number = max(self._numbers(), default=0) + 1
                handle = open_own(self._path(self._number), os.O_RDWR | os.O_CREAT | os.O_EXCL)
                lock(handle, wait=True)
                self._handle, self._end = handle, 0
                # All of it now: a disk that fills up later would otherwise be noticed in the middle of a blob, and the
                # bound on all stores counts the blocks that are allocated.
                os.posix_fallocate(handle, 0, self._segment_bytes)

    def _end_segment(self) -> None:
        """Finish the segment being written, if there is one, and cut its unused rest; raise OSError if that fails."""
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            try:
                _cut(self._path(self._number), handle, self._end)
            finally:
                os.close(handle)

    def _cut_abandoned(self) -> None:
        """Give back the room that killed processes had reserved; raise a MachineError if a segment is a link.

        Raise an OSError if one cannot be opened, locked or cut.
        """
        for number in self._numbers():
            with open(open_own(self._path(number), os.O_RDWR), "r+b") as file:  # noqa: PTH123 - of a descriptor
                # A segment is locked while it is written: if we get the lock, its writer is gone.
                if lock(file.fileno(), wait=False):
                    # The table says how far it was used: a blob that was written without its entry is lost.
                    entries = self._entries[self._entries["segment"] == number]
                    ends = entries["offset"] + entries["nbytes"]
                    _cut(self._path(number), file.fileno(), int(ends.max(initial=0)))

    # --- room ---

    @contextlib.contextmanager
    def _ledger(self) -> Iterator[None]:
        """Wait for the lock under which stores and segments are made and removed, and hold it during the block.

        Raise a MachineError if there is a link in the place of its file, and an OSError if it cannot be made or locked.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        with locked(self._root / "ledger"):
            yield

    def _make_room(self) -> None:
        """Remove stores that nobody has open until a segment fits; if none fits even then, mark this store as full.

        Raise an OSError if another store cannot be looked at.
        """
        excess = _disk_bytes(self._root) + self._segment_bytes - self._most_bytes
        others = [folder for folder in self._root.iterdir() if folder.is_dir() and folder != self._folder]
        stores = [(last_use_ns(folder / _TABLE), _disk_bytes(folder), str(folder)) for folder in others]
        # Whole stores only: a store that is read epoch after epoch would evict its own samples just before their turn.
        if excess > evict(stores, excess, _remove_unused):
            self._stop("feature cache is full: further samples are made anew", most_bytes=self._most_bytes)

    @contextlib.contextmanager
    def _noticing_a_full_disk(self) -> Iterator[None]:
        """Stop keeping samples, with a warning, if the disk is full or closed to us; pass on other errors."""
        try:
            yield
        except OSError as error:
            if error.errno not in (*OUT_OF_ROOM, *CLOSED):
                raise
            self._stop("feature cache cannot grow on its disk: further samples are made anew", error=str(error))
            # A full copy-on-write file system may have no block to cut a file either; who opens the store next cuts it.
            with contextlib.suppress(OSError):
                self._end_segment()

    def _stop(self, event: str, **facts: object) -> None:
        self._is_full = True
        Log("worker").warning(event, folder=str(self._root), **facts)


def _check(blob: bytes | bytearray, identity: str) -> int:
    """Return the checksum of a blob, seeded with the sample's identity."""
    return xxhash.xxh3_64_intdigest(blob, xxhash.xxh3_64_intdigest(identity.encode("utf-8", "surrogatepass")))


def _write_all(handle: int, content: bytes, offset: int) -> None:
    """Write all of the content at this offset, in several parts if the disk takes fewer bytes; raise its OSError."""
    written = 0
    while written < len(content):  # on a disk that is nearly full, the first call writes what has room
        written += os.pwrite(handle, content[written:], offset + written)


def _cut(path: Path, handle: int, nbytes: int) -> None:
    """Cut a segment to this many bytes, or remove it if it has none."""
    if not nbytes:
        path.unlink(missing_ok=True)
    elif os.fstat(handle).st_size > nbytes:
        os.ftruncate(handle, nbytes)


def _remove_unused(store: str) -> bool:
    """Remove a store, and return whether that was possible: it is not if a process has the store open.

    Raise an OSError if its table cannot be opened or locked; ignore files that cannot be removed.
    """
    # Without a table its maker was killed between making the folder and the table.
    with contextlib.suppress(FileNotFoundError), (Path(store) / _TABLE).open("rb") as table:
        if not lock(table.fileno(), wait=False):
            return False
    shutil.rmtree(store, ignore_errors=True)
    return True


def _disk_bytes(folder: Path) -> int:
    # Blocks and not lengths: a table is sparse, and a segment has all its blocks before anything is written.
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
