"""Blobs by sample number, in a folder that the workers of a machine share, bounded together with its sister folders.

A table has an entry a sample: in which segment its blob is, where, how long, and a check. Segments are files of one
size; each is written by one process, from front to back, and read by all. Rules: an entry counts only if its check is
right, which covers the blob and the sample's identity; so whatever a kill -9, two simultaneous writers or a bad disk
left behind is not found. What is there stays: a full store takes nothing more, because samples that are read epoch
after epoch would keep evicting each other. Stores of other keys that nobody has open are removed to make room, the one
opened longest ago first. Locks are the kernel's, which end with their process. What somebody else put in the place of a
file or folder is never followed.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
import threading
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from shared.errors import MachineError
from shared.logs import Log
from shared.system.closed_places import CLOSED
from shared.system.own_files import open_own, refuse_linked_folder
from shared.system.system_errors import OUT_OF_ROOM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["SampleStore"]

_ENTRY = np.dtype([("check", "<u8"), ("offset", "<u8"), ("nbytes", "<u4"), ("segment", "<u4")])
#: Enough segments for each worker of a machine to have one, and few enough for all to be open.
_LEAST_SEGMENTS, _MOST_SEGMENTS = 64, 1024
_USUAL_BYTES = 2**26
_TABLE, _SEGMENT = "table", "segment-"


class SampleStore:
    """The blobs of so many samples in the folder `key` of `root`. `most_bytes` bounds all stores of the root together.

    Any thread may `get`, one may `put`.
    """

    def __init__(self, root: Path, key: str, samples: int, most_bytes: int) -> None:
        self._root = root
        self._folder = root / key
        self._most_bytes = most_bytes
        usual = max(_USUAL_BYTES, most_bytes // _MOST_SEGMENTS)
        self._segment_bytes = max(1, min(usual, most_bytes // _LEAST_SEGMENTS))
        self._opening = threading.Lock()
        self._segments: dict[int, int] = {}
        #: The segment that is being written, and where its end is.
        self._number, self._handle, self._end = 0, -1, 0
        self._is_full = False
        with self._ledger():
            refuse_linked_folder(self._folder)
            self._folder.mkdir(exist_ok=True)
            self._table = open_own(self._folder / _TABLE, os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._table, fcntl.LOCK_SH)
            os.ftruncate(self._table, samples * _ENTRY.itemsize)
            os.utime(self._table)
            self._mapped = mmap.mmap(self._table, samples * _ENTRY.itemsize, prot=mmap.PROT_READ)
            self._cut_abandoned()

    @property
    def _entries(self) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        return np.frombuffer(self._mapped, _ENTRY)

    def get(self, sample: int, identity: str) -> bytearray | None:
        """The blob of the sample with this identity, if it is there."""
        check, offset, nbytes, segment = self._entries[sample].tolist()
        handle = self._segment(segment) if 0 < nbytes <= self._segment_bytes - offset else None
        if handle is None:
            return None
        blob = bytearray(nbytes)
        whole = os.preadv(handle, [blob], offset) == nbytes
        return blob if whole and _check(blob, identity) == check else None

    def seem_kept(self, samples: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of these has an entry, good or not."""
        return np.asarray(self._entries["nbytes"][samples] > 0)

    def put(self, sample: int, identity: str, blob: bytes) -> None:
        """Keep a blob, if there is room."""
        if self._is_full or len(blob) > self._segment_bytes:
            return
        if self._handle < 0 or self._end + len(blob) > self._segment_bytes:
            self._begin_segment()
        if self._handle >= 0:
            os.pwrite(self._handle, blob, self._end)
            entry = np.array((_check(blob, identity), self._end, len(blob), self._number), _ENTRY)
            self._end += len(blob)
            with self._noticing_a_full_disk():  # the segment has its room on the disk; the table does not
                os.pwrite(self._table, entry.tobytes(), sample * _ENTRY.itemsize)

    def close(self) -> None:
        """Give back what is open, and the rest of the segment; only once, because its descriptors may be reused."""
        if self._mapped.closed:
            return
        self._end_segment()
        self._mapped.close()  # it has a descriptor of its own, which holds the lock
        for handle in (*self._segments.values(), self._table):
            os.close(handle)
        self._segments.clear()

    # --- segments ---

    def _segment(self, number: int) -> int | None:
        """An open segment, which stays open."""
        handle = self._segments.get(number)
        if handle is None:
            with self._opening, contextlib.suppress(FileNotFoundError, MachineError):  # gone, or something else
                handle = self._segments.get(number)
                if handle is None:
                    handle = self._segments[number] = open_own(self._path(number), os.O_RDONLY)
        return handle

    def _path(self, number: int) -> Path:
        return self._folder / f"{_SEGMENT}{number}"

    def _numbers(self) -> list[int]:
        return [int(path.name.removeprefix(_SEGMENT)) for path in self._folder.glob(f"{_SEGMENT}*")]

    def _begin_segment(self) -> None:
        self._end_segment()
        with self._noticing_a_full_disk(), self._ledger():
            self._make_room()
            if not self._is_full:
                self._number = max(self._numbers(), default=0) + 1
                handle = open_own(self._path(self._number), os.O_RDWR | os.O_CREAT | os.O_EXCL)
                fcntl.flock(handle, fcntl.LOCK_EX)
                self._handle, self._end = handle, 0
                os.posix_fallocate(handle, 0, self._segment_bytes)

    def _end_segment(self) -> None:
        if self._handle >= 0:
            _cut(self._path(self._number), self._handle, self._end)
            os.close(self._handle)
            self._handle = -1

    def _cut_abandoned(self) -> None:
        """Give back what killed processes had reserved."""
        for number in self._numbers():
            with open(open_own(self._path(number), os.O_RDWR), "r+b") as file:  # noqa: PTH123 - of a descriptor
                if _locks(file.fileno()):
                    mine = self._entries[self._entries["segment"] == number]
                    ends = mine["offset"] + mine["nbytes"]
                    _cut(self._path(number), file.fileno(), int(ends.max(initial=0)))

    # --- room ---

    @contextlib.contextmanager
    def _ledger(self) -> Iterator[None]:
        """Hold the lock of those who make or remove stores and segments."""
        self._root.mkdir(parents=True, exist_ok=True)
        handle = open_own(self._root / "ledger", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _make_room(self) -> None:
        """Remove stores that nobody has open until there is room for a segment; without room this one is full."""
        used = _disk_bytes(self._root)
        others = [folder for folder in self._root.iterdir() if folder.is_dir() and folder != self._folder]
        for folder in sorted(others, key=_opened_ns):
            if used + self._segment_bytes > self._most_bytes and _is_unused(folder):
                used -= _disk_bytes(folder)
                shutil.rmtree(folder, ignore_errors=True)
        if used + self._segment_bytes > self._most_bytes:
            self._stop("feature cache is full: further samples are made anew", most_bytes=self._most_bytes)

    @contextlib.contextmanager
    def _noticing_a_full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (*OUT_OF_ROOM, *CLOSED):
                raise
            self._stop("feature cache cannot grow on its disk: further samples are made anew", error=str(error))
            self._end_segment()

    def _stop(self, event: str, **facts: object) -> None:
        self._is_full = True
        Log("worker").warning(event, folder=str(self._root), **facts)


def _check(blob: bytes | bytearray, identity: str) -> int:
    return xxhash.xxh3_64_intdigest(blob, xxhash.xxh3_64_intdigest(identity.encode("utf-8", "surrogatepass")))


def _cut(path: Path, handle: int, nbytes: int) -> None:
    """Cut a segment to this many bytes, or remove it."""
    if not nbytes:
        path.unlink(missing_ok=True)
    elif os.fstat(handle).st_size > nbytes:
        os.ftruncate(handle, nbytes)


def _locks(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_unused(store: Path) -> bool:
    try:
        with (store / _TABLE).open("rb") as table:
            return _locks(table.fileno())
    except FileNotFoundError:  # its maker was killed
        return True


def _opened_ns(store: Path) -> int:
    try:
        return (store / _TABLE).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
