"""The remote files of one source, read through the cache, and one of them as a path, for readers of text.

A file is fetched in blocks, or whole if its store serves no ranges or a library wants a path; each block is an entry of
the cache, whose key is made of URL, version, size and place. Rules: what is in the cache is read without asking the
store; each byte is fetched once by all processes of a machine, as long as the cache has room for it; what is expected
soon is fetched by a few threads, without retries, because the reader that needs it will try again.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import threading
import time
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, BinaryIO, Generic, TypeVar
from urllib.parse import urlsplit

import xxhash

from loader_server.sources.files.file_facts import CacheSettings, FileFacts, LocalFile, changed
from loader_server.sources.remote.disk_cache import MAPPED, DiskCache
from loader_server.sources.remote.objects import Objects
from loader_server.sources.remote.retries import Retries
from loader_server.sources.remote.urls import without_credentials
from shared.errors import StokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from typing_extensions import Buffer

__all__ = ["BLOCK_BYTES", "FetchAhead", "RemoteFiles", "RemotePath"]

#: The bytes of a block: enough to outweigh the cost of a request, few enough for several to be in memory at once.
BLOCK_BYTES = 8 * 2**20
#: Cache entries that are kept open.
_MOST_OPEN = 256
#: How often reading an open entry renews its time of use, by which the cache evicts.
_USED_AGAIN_S = 60.0
#: How often a reader fetches an entry anew that is evicted before it is read; then the cache is too small.
_MOST_EVICTIONS = 20
#: Blocks that are remembered as fetched.
_MOST_SEEN = 65_536
#: With this many blocks waiting to be fetched, nobody looks ahead for more.
_MOST_WAITING = 32
#: How often a process tries to become the one that fetches ahead.
_LEAD_AGAIN_S = 2.0
#: How many blocks sequential readers fetch ahead, and how many bytes they read at a time.
_BLOCKS_AHEAD = 2
_READER_BYTES = 2**20

T = TypeVar("T", bound="Hashable")

_MOST_THREADS = 8


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of one version of a file, or the whole file, to be used by its path."""

    url: str
    facts: FileFacts
    start: int
    stop: int
    whole: bool = False

    @property
    def key(self) -> str:
        name = f"{self.url}\n{self.facts.version}\n{self.facts.bytes}\n{self.start}\n{self.stop}"
        return xxhash.xxh3_128_hexdigest(name.encode()) + (MAPPED if self.whole else "")


class _OpenPart:
    """A cache entry that is open; it closes with the last thread that uses it."""

    __slots__ = ("handle", "start", "used_s")

    def __init__(self, handle: int, start: int) -> None:
        self.handle = handle
        self.start = start
        self.used_s = time.monotonic()

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes by their place in the file; fewer if the entry was evicted.

        Raise an OSError if the disk fails, or if another user's entry has to be marked as used.
        """
        now_s = time.monotonic()
        if now_s > self.used_s + _USED_AGAIN_S:
            self.used_s = now_s
            os.utime(self.handle)
        return os.pread(self.handle, nbytes, offset - self.start)

    def __del__(self) -> None:
        os.close(self.handle)


class RemoteFiles:
    """Files by URL, read through the cache; any thread may read."""

    def __init__(self, cache: CacheSettings) -> None:
        self._counts = cache.counts
        self._objects = Objects(Retries(counts=cache.counts))
        self._cache = DiskCache(cache.folder, cache.bytes)
        self._parts: dict[_Block, _OpenPart] = {}
        #: Whether a server serves only whole files, by its name; `_asking` lets one thread at a time find out.
        self._whole: dict[str, bool] = {}
        self._asking = threading.Lock()
        #: Blocks that were fetched ahead or found in the cache then, in use as a set.
        self._seen: dict[_Block, None] = {}
        #: The lock's descriptor, if this process is the one that fetches ahead for the machine.
        self._lead: int | None = None
        self._ask_again_s = 0.0
        # Fetching ahead may take a quarter of the cache, so there are no more threads than blocks in that.
        self._ahead = FetchAhead(self._fetch_ahead, cache.bytes // BLOCK_BYTES // 4)

    def found(self, url: str) -> list[str]:
        """Return the URLs of the files that a pattern or a folder stands for; an empty list if there are none.

        Raise a DataError if there is no such bucket or the URL is unusable, a ReadError if the store cannot be asked,
        and a SettingsError if its library is missing.
        """
        return self._objects.found(url)

    def facts(self, url: str) -> FileFacts:
        """Return the current size and version; raise a DataError if there is no such file.

        Raise it too for a folder, an unusable URL or a store that tells no size, a ReadError if the store cannot be
        asked, and a SettingsError if its library is missing.
        """
        return self._objects.facts(url)

    def read(self, url: str, facts: FileFacts, offset: int, nbytes: int) -> bytes:
        """Return exactly `nbytes` bytes of this version from `offset` on.

        Raise a ReadError if the file is shorter, has changed or cannot be fetched, or if the cache is too small or its
        folder cannot be used. Errors of `DiskCache.find` and `make` pass through: a MachineError if a link or the like
        is in a file's place, and an OSError if an entry cannot be opened or read. So do those of `Objects.fetch`, such
        as a SettingsError if the store's library is missing.
        """
        if offset + nbytes > facts.bytes:
            raise changed(f"{nbytes} bytes from byte {offset} on", f"{max(facts.bytes - offset, 0)} bytes", url)
        if not nbytes:
            return b""
        if offset // BLOCK_BYTES == (offset + nbytes - 1) // BLOCK_BYTES:
            return self._read(_block_at(url, facts, offset), offset, nbytes)
        blocks = list(_blocks_of(url, facts, offset, nbytes))
        self._ahead.expect(blocks[1:])
        parts = [(block, max(offset, block.start), min(offset + nbytes, block.stop)) for block in blocks]
        return b"".join(self._read(block, first, last - first) for block, first, last in parts)

    def _read(self, block: _Block, offset: int, nbytes: int) -> bytes:
        # Other processes may evict the entry between opening and reading it: then the read comes back short, and the
        # block is fetched again.
        for _ in range(_MOST_EVICTIONS):
            part = self._parts.get(block) or self._open(block)
            raw = part.read(offset, nbytes)
            if len(raw) == nbytes:
                return raw
            self._parts.pop(block, None)
            self._seen.pop(block, None)
        raise self._cache.too_small(block.stop - block.start)

    def _open(self, block: _Block) -> _OpenPart:
        if len(self._parts) >= _MOST_OPEN:
            self._parts.clear()
        whole = _whole_file(block.url, block.facts)
        waited, waited_s = 0, 0.0
        while True:
            # The whole file may be there already, for a library that wanted its path.
            for entry in (block, whole):
                handle = self._cache.find(entry.key)
                if handle is not None:
                    self._counts.add(found=not waited, waited=waited, waited_s=waited_s)
                    part = self._parts[block] = _OpenPart(handle, entry.start)
                    return part
            waited, waited_s = 1, waited_s + self._bring_timed(block)

    def _bring_timed(self, block: _Block) -> float:
        """Bring a block that somebody waits for, and return the seconds that this took; errors of `_bring` pass."""
        began_s = time.monotonic()
        self._bring(block)
        return time.monotonic() - began_s

    def _bring(self, block: _Block, *, patient: bool = True) -> None:
        """Fetch the block into the cache, or the whole file if its store serves no ranges.

        If not `patient`, make only one attempt, and leave the block to another process that is making it. Raise a
        ReadError if it cannot be fetched or the cache has no room for it; other errors of `DiskCache.make` and
        `Objects` pass through.
        """
        if self._comes_whole(block):
            block = _whole_file(block.url, block.facts)
        self._cache.make(
            block.key, block.stop - block.start, lambda handle: self._fill(block, handle, patient=patient), wait=patient
        )

    def _comes_whole(self, block: _Block) -> bool:
        """Return whether the file has to be fetched whole, because its server serves no ranges.

        Return False for a file that fits into a block, which always comes as that block. A server's answer is
        remembered; raise a ReadError if it cannot be asked, and besides what `Objects.comes_in_ranges` raises.
        """
        if block.facts.bytes <= BLOCK_BYTES:
            return False
        server = block.url.partition("://")[2].partition("/")[0]
        with self._asking:
            if server not in self._whole:
                self._whole[server] = not self._objects.comes_in_ranges(block.url, block.facts)
            return self._whole[server]

    def _fill(self, block: _Block, handle: int, *, patient: bool) -> None:
        if self._comes_whole(block):
            with os.fdopen(os.dup(handle), "wb") as file:
                self._objects.bring(block.url, block.facts, file)
            self._counts.add(fetched_bytes=block.facts.bytes)
            return
        for start in range(block.start, block.stop, BLOCK_BYTES):
            stop = min(start + BLOCK_BYTES, block.stop)
            raw = self._objects.fetch(block.url, block.facts, start, stop, patient=patient)
            self._counts.add(fetched_bytes=len(raw))
            _write(handle, start - block.start, raw)

    # --- all of it ---

    def open(self, url: str, facts: FileFacts) -> BinaryIO:
        """Open a file for reading and seeking; nothing is fetched before it is read.

        Reading raises a ReadError if the file has changed or cannot be fetched, and besides what `read` raises.
        """
        return io.BufferedReader(_RemoteReader(self, url, facts), _READER_BYTES)

    def local(self, url: str, facts: FileFacts) -> LocalFile:
        """Return the whole file as a cache entry, which is not evicted until the caller closes it.

        Raise a ReadError if it has changed or cannot be fetched, or the cache has no room for it. Errors of
        `DiskCache.hold`, `make` and `Objects` pass through, such as an OSError if the file system has no locks.
        """
        whole = _whole_file(url, facts)
        waited, waited_s = 0, 0.0
        # Brought again if another process evicts it between fetching and holding it.
        while True:
            held = self._cache.hold(whole.key)
            if held is not None:
                self._counts.add(found=not waited, waited=waited, waited_s=waited_s)
                handle, path = held
                return LocalFile(path, partial(os.close, handle))
            waited, waited_s = 1, waited_s + self._bring_timed(whole)

    # --- what comes soon ---

    def looks_ahead(self, data_set: str) -> bool:
        """Return whether this process should expect more: it fetches ahead for the machine, and little is waiting.

        One process of a machine does so for all that use the cache with this data set; the others try every 2 s to take
        its place. Raise a ReadError if the folder of the cache cannot be used, and besides what `DiskCache.lead`
        raises.
        """
        # What is fetched ahead may fill a quarter of the cache; the rest is for what is read now.
        waiting = self._ahead.waiting()
        is_little = sum(block.stop - block.start for block in waiting) <= self._cache.most_bytes // 4
        return is_little and len(waiting) < _MOST_WAITING and self._leads(data_set)

    def _leads(self, data_set: str) -> bool:
        # Asked again from time to time, because the process that leads may have ended: its lock ends with it.
        now_s = time.monotonic()
        if self._lead is None and now_s >= self._ask_again_s:
            self._ask_again_s = now_s + _LEAD_AGAIN_S
            self._lead = self._cache.lead(data_set)
        return self._lead is not None

    def expect(self, extents: Iterable[tuple[str, FileFacts, int, int]]) -> None:
        """Begin to fetch the blocks of these extents (URL, version, offset, size), which will be read soon.

        Blocks known to be in the cache are skipped, and fetches that fail are dropped. Nothing is fetched if the cache
        is too small for fetching ahead.
        """
        self._expect(block for extent in extents for block in _blocks_of(*extent))

    def _expect(self, blocks: Iterable[_Block]) -> None:
        # Many extents lie in one block; what was seen in the cache is not looked for again.
        self._ahead.expect(block for block in dict.fromkeys(blocks) if block not in self._seen)

    def expect_whole(self, files: Iterable[tuple[str, FileFacts]]) -> None:
        """Begin to fetch files that will soon be needed on the disk, except those known to be in the cache.

        Fetches that fail are dropped. Nothing is fetched if the cache is too small for fetching ahead.
        """
        self._expect(_whole_file(url, facts) for url, facts in files)

    def _fetch_ahead(self, block: _Block) -> None:
        if not any(self._cache.has(entry.key) for entry in (block, _whole_file(block.url, block.facts))):
            self._bring(block, patient=False)
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen[block] = None

    def close(self) -> None:
        """Stop fetching ahead, which another process may take over, and drop open entries.

        Each entry closes once its last reader is done, and opens again when it is next read.
        """
        self._ahead.close()
        self._parts.clear()
        lead, self._lead = self._lead, None
        if lead is not None:
            os.close(lead)


class _RemoteReader(io.RawIOBase):
    """A raw stream that reads one file from its current position."""

    def __init__(self, files: RemoteFiles, url: str, facts: FileFacts) -> None:
        super().__init__()
        self._files = files
        self._url = url
        self._facts = facts
        self._position = 0

    def readable(self) -> bool:
        """Return True, for `io`: remote files can always be read."""
        return True

    def seekable(self) -> bool:
        """Return True, for `io`: any position can be read without reading what is before it."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, counted from where `whence` says, and return it.

        It is not below 0, and may be beyond the end.
        """
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._facts.bytes}[whence]
        self._position = max(start + offset, 0)
        return self._position

    def readinto(self, into: Buffer) -> int:
        """Read the next bytes into a buffer, and return how many; raise a ReadError if they cannot be fetched.

        At the end of the file, return 0. Raise besides what `RemoteFiles.read` raises.
        """
        # In each new block, the following ones begin to be fetched: who reads a file in order will need them.
        view = memoryview(into).cast("B")
        nbytes = max(min(len(view), self._facts.bytes - self._position), 0)
        if nbytes and self._position % BLOCK_BYTES < nbytes:
            end = min(self._position + (_BLOCKS_AHEAD + 1) * BLOCK_BYTES, self._facts.bytes)
            self._files.expect([(self._url, self._facts, self._position, end - self._position)])
        view[:nbytes] = self._files.read(self._url, self._facts, self._position, nbytes) if nbytes else b""
        self._position += nbytes
        return nbytes


class RemotePath:
    """The part of `pathlib.Path` that a remote file can offer, for readers of text that take either.

    `open_url` opens URLs.
    """

    def __init__(self, url: str, open_url: Callable[[str], BinaryIO]) -> None:
        self._url = url
        self._open_url = open_url
        self.name = posixpath.basename(urlsplit(url).path)
        self.suffix = posixpath.splitext(self.name)[1]

    def __str__(self) -> str:
        return without_credentials(self._url)

    @property
    def parent(self) -> RemotePath:
        """Return the folder that contains it."""
        return RemotePath(posixpath.dirname(self._url), self._open_url)

    def open(self, encoding: str, errors: str = "strict", newline: str | None = None) -> io.TextIOWrapper:
        """Open the file for reading as text.

        What `open_url` raises passes through, such as a DataError if it is absent. Reading raises a ReadError if the
        file cannot be fetched, and a UnicodeDecodeError for other bytes than `encoding` and `errors` allow.
        """
        return io.TextIOWrapper(self._open_url(self._url), encoding, errors, newline)


def _block_at(url: str, facts: FileFacts, offset: int) -> _Block:
    start = offset // BLOCK_BYTES * BLOCK_BYTES
    return _Block(url, facts, start, min(start + BLOCK_BYTES, facts.bytes))


def _blocks_of(url: str, facts: FileFacts, offset: int, nbytes: int) -> Iterator[_Block]:
    first = offset // BLOCK_BYTES * BLOCK_BYTES
    return (_block_at(url, facts, start) for start in range(first, offset + nbytes, BLOCK_BYTES))


def _whole_file(url: str, facts: FileFacts) -> _Block:
    return _Block(url, facts, 0, facts.bytes, whole=True)


def _write(handle: int, place: int, raw: bytes) -> None:
    """Write all bytes at this place; one call of the system may write fewer.

    Raise an OSError if the disk is full or fails.
    """
    view = memoryview(raw)
    while view:
        written = os.pwrite(handle, view, place)
        view, place = view[written:], place + written


class FetchAhead(Generic[T]):
    """Threads, at most 8, that call `fetch` with expected keys, in order; with `threads` of 0 nothing is fetched.

    What is asked for twice is fetched once; a failure is left to the reader who needs the data, who gets the error.
    Threads start with the first request and never keep a process from ending. Knows nothing about what it fetches.
    """

    def __init__(self, fetch: Callable[[T], object], threads: int) -> None:
        self._fetch = fetch
        self._threads = min(threads, _MOST_THREADS)
        self._lock = threading.Lock()
        self._started = 0
        #: Keys that are queued or being fetched.
        self._underway: set[T] = set()
        #: Keys in the order in which they will be needed; None ends a thread.
        self._queue: SimpleQueue[T | None] = SimpleQueue()

    def waiting(self) -> list[T]:
        """Return the keys that are queued or being fetched, in any order."""
        with self._lock:
            return list(self._underway)

    def expect(self, wanted: Iterable[T]) -> None:
        """Queue keys that will be needed soon, except those queued or being fetched; start threads if needed.

        Do nothing, and take no key, if there are to be no threads. A fetch that fails by a StokerError or OSError is
        dropped; what `wanted` raises passes through.
        """
        if not self._threads:
            return
        with self._lock:
            # A key is under way from here until it is fetched or has failed, so no two threads fetch it.
            new = [key for key in dict.fromkeys(wanted) if key not in self._underway]
            self._underway.update(new)
            while self._started < min(self._threads, len(self._underway)):
                self._started += 1
                threading.Thread(target=self._run, name="stoker-fetch", daemon=True).start()
        for key in new:
            self._queue.put(key)

    def _run(self) -> None:
        while (key := self._queue.get()) is not None:
            # The reader that needs the data fetches it again, with retries, and gets the error.
            with contextlib.suppress(StokerError, OSError):
                self._fetch(key)
            with self._lock:
                self._underway.discard(key)

    def close(self) -> None:
        """Drop what is queued and let each thread end after its current fetch, without waiting for it.

        A later `expect` starts new threads.
        """
        with self._lock:
            with contextlib.suppress(Empty):
                while True:
                    self._queue.get_nowait()
            self._underway.clear()
            for _ in range(self._started):
                self._queue.put(None)
            self._started = 0
