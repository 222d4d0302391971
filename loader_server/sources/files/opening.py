"""The one place through which sources open files, so that each source reads local and remote files alike.

A file is known by its path as the job file has it, relative to `base`, or by its URL. Rules: nothing is opened before
it is read; any thread may read; few files are open at a time. Errors about a file as such (absent, refused, cut short,
not the indexed one) are worded here and in the room of remote files, the same for all sources. Knows no format.
"""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import xxhash

from loader_server.sources.files.braces import names_meant
from loader_server.sources.files.file_facts import (
    HEAD_BYTES,
    CacheSettings,
    FileFacts,
    LocalFile,
    absent,
    changed,
    refuse_no_text,
)
from loader_server.sources.files.local import (
    LocalHandle,
    bytes_at,
    files_meant,
    is_hidden,
    local_stamp,
    named_twice,
    open_local,
)
from loader_server.sources.files.seen import SeenFiles, seen_files
from loader_server.sources.remote.remote_files import RemoteFiles, RemotePath
from loader_server.sources.remote.urls import is_url, joined, without_credentials
from shared.errors import DataError, ReadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

__all__ = ["KEPT_FOLDER", "FileFacts", "Files", "changed"]

T = TypeVar("T")

#: Local files that one source keeps open at a time.
_MOST_OPEN = 64
#: What a format keeps beside an index, in the index's folder.
KEPT_FOLDER = "kept"
#: File names held in memory at a time while a stamp is computed.
_STAMPED_AT_A_TIME = 1024
#: Remote files that are asked about in parallel.
_MOST_ASKED = 16
#: The default folder and size of the cache of remote files.
_CACHE_FOLDER, _CACHE_BYTES = ".stoker/remote", 32 * 2**30


class Files:
    """The files of one source; `close` gives back what is open."""

    def __init__(self, base: Path, cache: CacheSettings | None = None) -> None:
        self._base = base
        #: The cache of remote files; it may be replaced before any file is looked at.
        self.cache = cache or CacheSettings(folder=base / _CACHE_FOLDER, bytes=_CACHE_BYTES)
        #: The job's state folder, which holds this machine's memory of files (`seen`).
        self.state: Path | None = None
        #: The folder of the source's index, once that is being made or is open.
        self.index_folder: Path | None = None
        #: Open local files by path; each closes with its last reader, though it was dropped here.
        self._handles: dict[str, LocalHandle] = {}
        #: Local copies that stay on the disk until `close`.
        self._kept: list[LocalFile] = []
        #: Whether any of the files looked at so far is remote.
        self.are_remote = False
        #: A hash of the paths of the opened data set; the process that fetches ahead is chosen by it.
        self._data_set = ""
        #: The version at which each remote file is read, fixed when it is first looked at.
        self._versions: dict[str, FileFacts] = {}

    @cached_property
    def _remote(self) -> RemoteFiles:
        return RemoteFiles(self.cache)

    @property
    def kept_folder(self) -> Path:
        """Return the folder in which a format may keep files of its own beside the index; maybe there is none yet.

        Hosts that join a job fetch what is in it. Raise a DataError for a source without an index, such as one of
        noises.
        """
        if self.index_folder is None:
            raise DataError(
                expected="files that need nothing beside an index, as recordings without one are looked at anew",
                got="some that do, such as compressed ones",
                where=str(self._base),
                remedy="Unpack them (gunzip).",
            )
        return self.index_folder / KEPT_FOLDER

    @cached_property
    def seen(self) -> SeenFiles:
        """Return this machine's memory of the contents of local files."""
        return seen_files(self.state)

    # --- which there are ---

    def found(self, paths: Iterable[str], *suffixes: str, once: bool = True) -> list[str]:
        """Return the files that a list of paths stands for.

        A path stands for itself, for a range (`{000..099}.tar`), for all files that match a pattern (`shards/*.tar`,
        `**/*.tar`), or for all files below a folder, except hidden ones, that end in a suffix (a remote folder's name
        ends in /). Patterns and folders give sorted names. Raise a DataError if no path is given, a pattern or folder
        has no file or is an unusable URL, or, unless `once` is False, a file is named twice; whether files named by
        themselves are there is not looked at. Raise a SettingsError for braces that stand for more than a million
        names, or if a store's library is missing, and a ReadError if a store cannot be asked.
        """
        names = list(paths)
        if not names:
            raise DataError(
                expected="at least one file", got="none", where=str(self._base), remedy='Write paths = ["…"].'
            )
        expanded = chain.from_iterable(map(self._expanded, names))
        files = [file for name in expanded for file in self._files_of(name, suffixes)]
        if once:
            self.refuse_twice(files)
        return files

    def refuse_twice(self, names: Iterable[str]) -> None:
        """Raise a DataError if two names are of one file or folder, also by a link: its samples would count twice."""
        pair = named_twice(self._base, names)
        if pair is not None:
            first, second = pair
            raise DataError(
                expected="each file once",
                got=f"{second}, which is {'there twice' if first == second else f'the same as {first}'}",
                where=self.where(second),
                remedy="Name it once in `paths`; to make it weigh more in a mixture, set `weights`.",
            )

    def _expanded(self, name: str) -> list[str]:
        """Return the names that the braces stand for; the name itself if a file has this very name.

        Raise a SettingsError for braces that stand for more than a million names.
        """
        is_there = not is_url(name) and os.path.exists(self._base / name)  # Path.exists raises if the name is too long
        return [name] if is_there else names_meant(name)

    def _files_of(self, name: str, suffixes: tuple[str, ...]) -> list[str]:
        """Return the sorted files of a folder or a pattern, or the name itself; raise a DataError if there are none.

        Raise a ReadError if a store cannot be asked, and a SettingsError if its library is missing.
        """
        if is_url(name):
            return self._remote_files_of(name, suffixes)
        files = files_meant(self._base, name, suffixes)
        return [name] if files is None else self._sorted_files(name, files, suffixes)

    def _remote_files_of(self, url: str, suffixes: tuple[str, ...]) -> list[str]:
        """Return the sorted URLs of a folder or a pattern, or the URL itself; raise a DataError if there are none.

        Only a URL that ends in / is a folder, because stores have no folders to ask about. Hidden files of a folder are
        left out. Raise a DataError for an unusable URL as well, a ReadError if the store cannot be asked, and a
        SettingsError if its library is missing.
        """
        if not url.endswith("/"):
            return self._sorted_files(url, self._remote.found(url), ()) if "*" in url or "[" in url else [url]
        below = (file for file in self._remote.found(url) if file.endswith(suffixes or ("",)))
        return self._sorted_files(url, [file for file in below if not is_hidden(file[len(url) :])], suffixes)

    def _sorted_files(self, name: str, files: list[str], suffixes: tuple[str, ...]) -> list[str]:
        """Return these files sorted; raise a DataError, which names the suffixes that count, if there are none."""
        if not files:
            raise DataError(
                expected=f"files that end in {' or '.join(suffixes)}" if suffixes else "files",
                got="none",
                where=self.where(name),
                remedy="Mend `paths` of the stream, which are relative to the job file, or put the files there.",
            )
        return sorted(files)

    # --- what they are ---

    def where(self, path: str) -> str:
        """Return the file's name for messages: the path from `base` on, or the URL without credentials."""
        return without_credentials(path) if is_url(path) else str(self._base / path)

    def facts(self, path: str) -> FileFacts:
        """Return size and version; raise a DataError if there is no such file, or something other than a file.

        Raise it too for a file that cannot be looked at, an unusable URL, or a store that tells no size. Raise a
        ReadError if a store cannot be asked, and a SettingsError if its library is missing. A URL sets `are_remote`.
        """
        if is_url(path):
            self.are_remote = True
            return self._remote.facts(path)
        try:
            status = (self._base / path).stat()
        except (OSError, ValueError) as error:
            raise absent(self.where(path), getattr(error, "strerror", None) or str(error)) from None
        if not stat.S_ISREG(status.st_mode):
            raise absent(self.where(path), "a folder" if stat.S_ISDIR(status.st_mode) else "something else")
        return FileFacts(bytes=status.st_size, version=status.st_mtime_ns)

    def note_remote(self, samples: int, path_of: Callable[[int], str]) -> None:
        """Set `are_remote` if the first sample's file is remote.

        This is for samples whose files were not looked at since indexing. Without samples, or if that file is local,
        nothing changes. Errors of `path_of` pass through.
        """
        self.are_remote |= samples > 0 and is_url(path_of(0))

    def has(self, path: str) -> bool:
        """Return whether there is such a file; raise a ReadError if its store cannot be asked.

        Return False for a folder and for an unusable URL, too. Raise a SettingsError if the store's library is missing.
        """
        try:
            self.facts(path)
        except ReadError:
            raise
        except DataError:
            return False
        return True

    def origin(self, paths: Iterable[str]) -> list[dict[str, Any]]:
        """Return what an inventory records about its files (`Inventory(origin=…)`), for `refuse_changed`.

        Raise a DataError if a file is absent, a ReadError if its store cannot be asked, and a SettingsError if the
        store's library is missing.
        """
        names = list(paths)
        return [{"path": path, **asdict(facts)} for path, facts in zip(names, self._facts_of(names), strict=True)]

    def _facts_of(self, paths: list[str]) -> Iterable[FileFacts]:
        """Return the facts of these files, asking about remote ones in parallel; raise a DataError if one is absent.

        Raise a ReadError if a store cannot be asked, and a SettingsError if its library is missing. Without remote
        files, the facts are looked up, and errors raised, only as they are taken. Remote files are read in these
        versions from here on.
        """
        if not any(map(is_url, paths)):
            return map(self.facts, paths)
        facts = _asked(self.facts, paths)
        # From here on this source reads these versions, whatever the store has meanwhile.
        self._versions.update(pair for pair in zip(paths, facts, strict=True) if is_url(pair[0]))
        return facts

    def stamp(self, paths: Iterable[str]) -> str:
        """Return a hash of these files' names, sizes and times of change, for `Source.stamp`.

        The inode's time of change (ctime) counts as well, because `cp -p` and `rsync -t` set back only mtime; so a file
        that was moved or got another owner counts as changed, which costs another look at it. A file that keeps its
        size and is written twice within one tick of the file system's clock, some milliseconds, goes unnoticed. Raise a
        ReadError if a store cannot be asked, and a SettingsError if its library is missing; an absent file is part of
        the stamp.
        """
        state, names, base = xxhash.xxh3_128(), iter(paths), str(self._base)
        # Block by block: there may be millions of names, and the remote ones of a block are asked about in parallel.
        while block := list(islice(names, _STAMPED_AT_A_TIME)):
            urls = [path for path in block if is_url(path)]
            remote = dict(zip(urls, _asked(self._remote_stamp, urls), strict=True))
            lines = [f"{path}\0{remote[path] if path in remote else local_stamp(base, path)}\n" for path in block]
            state.update("".join(lines).encode("utf-8", "surrogatepass"))
        return state.hexdigest()

    def _remote_stamp(self, url: str) -> str:
        """Return the facts as text, or why there is no such file; raise a ReadError if the store cannot be asked.

        Raise a SettingsError if the store's library is missing.
        """
        try:
            return str(self.facts(url))
        except ReadError:
            raise
        except DataError as error:
            return error.got

    def refuse_changed(self, origin: Iterable[dict[str, Any]], index: Path) -> None:
        """Raise a DataError if a file of the index's origin is gone or differs; a source calls it in `open`.

        Only sizes of local files are compared, because a copy has other times; sources keep digests of what they read,
        or of the files (`same_files`). Remote files are compared by version too, and read in it from here on. Raise a
        ReadError if a store cannot be asked, and a SettingsError if its library is missing.
        """
        indexed = list(origin)
        paths = [facts["path"] for facts in indexed]
        self._data_set = xxhash.xxh3_64_hexdigest("\n".join(paths).encode())
        for facts, now in zip(indexed, self._facts_of(paths), strict=True):
            if now.bytes != facts["bytes"] or (is_url(facts["path"]) and now.version != facts["version"]):
                raise DataError(
                    expected=f"the file that the index was made from ({facts['bytes']} bytes)",
                    got=f"another one ({now.bytes} bytes)",
                    where=f"{self.where(facts['path'])}, index {index}",
                    remedy="The file has changed: bring it by rsync -a or cp -a from where the index was made, or run "
                    "loader-server index.",
                )

    # --- their bytes ---

    def read(self, path: str, offset: int, nbytes: int) -> bytes:
        """Return exactly `nbytes` bytes from `offset` on.

        Raise a ReadError if the file ends before, or a remote file cannot be fetched; a DataError if a remote file is
        gone when it is first looked at; an OSError if the disk fails or the local file is gone or is no regular file.
        Errors of the cache of remote files (`RemoteFiles.read`) pass through.
        """
        handle = self._handles.get(path)  # our reference keeps it open if another thread clears `_handles` now
        if handle is None:
            if is_url(path):
                return self._remote.read(path, self._version(path), offset, nbytes)
            if len(self._handles) >= _MOST_OPEN:
                self._handles.clear()
            handle = self._handles[path] = LocalHandle(self._base / path)
        raw = bytes_at(handle.number, offset, nbytes)
        if len(raw) != nbytes:
            raise changed(f"{nbytes} bytes from byte {offset} on", f"{len(raw)} bytes", self.where(path))
        return raw

    def read_all(self, paths: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of many small pieces, of which there are as many as paths, each read when it is asked for.

        Raise a ReadError if a file ends before a piece does or a remote one cannot be fetched, an OSError if the disk
        fails or a local file is gone, and besides what `read` raises.
        """
        # Nearly always all are open, and stay so while `handles` refers to them. `read` does the rest: it opens and
        # fetches, reads on where a piece came short, and words the errors.
        handles = [handle for handle in map(self._handles.get, paths) if handle is not None]
        if len(handles) < len(paths):
            yield from map(self.read, paths, offsets, sizes)
            return
        pieces = map(os.pread, [handle.number for handle in handles], sizes, offsets)
        for raw, path, offset, nbytes in zip(pieces, paths, offsets, sizes, strict=True):
            yield raw if len(raw) == nbytes else self.read(path, offset, nbytes)

    def whole(self, path: str, facts: FileFacts) -> bytes:
        """Return all bytes of a file that holds one sample.

        Raise a ReadError if the file no longer has these facts or a remote one cannot be fetched, and an OSError as
        `read` does. Errors of the cache of remote files (`RemoteFiles.read`) pass through.
        """
        if is_url(path):
            return self._remote.read(path, facts, 0, facts.bytes)
        handle = LocalHandle(self._base / path)
        status = os.fstat(handle.number)
        now = FileFacts(bytes=status.st_size, version=status.st_mtime_ns)
        raw = bytes_at(handle.number, 0, facts.bytes) if now == facts else b""
        if now != facts or len(raw) != facts.bytes:
            got = f"one of {len(raw) if now == facts else now.bytes} bytes"
            raise changed(f"the file that was indexed ({facts.bytes} bytes)", got, self.where(path))
        return raw

    def part(self, path: str, facts: FileFacts, offset: int, nbytes: int) -> bytes:
        """Return bytes of a remote file that holds one sample, or few, in the version of these facts.

        Raise a ReadError if the file is shorter, has changed or cannot be fetched. Errors of the cache of remote files
        (`RemoteFiles.read`) pass through.
        """
        return self._remote.read(path, facts, offset, nbytes)

    def open(self, path: str) -> BinaryIO:
        """Return the file, opened for reading and seeking; the caller closes it.

        Raise a DataError if a local file cannot be opened, and for a remote one what `_version` raises, such as a
        DataError if it is absent. What a remote file holds is fetched by reading, which raises a ReadError if it cannot
        be.
        """
        if is_url(path):
            return self._remote.open(path, self._version(path))
        try:
            return open_local(self._base / path)
        except OSError as error:
            raise absent(self.where(path), error.strerror or type(error).__name__) from None

    def refuse_no_text(self, path: str) -> None:
        """Raise a DataError if the first bytes show that a file is compressed or otherwise not text in UTF-8.

        Raise it too if the file cannot be opened or read, and a ReadError if a remote one cannot be fetched; any other
        beginning passes. SettingsError of `open` and MachineError of the cache of remote files pass through.
        """
        with self.open(path) as file:
            try:
                head = file.read(HEAD_BYTES)
            except OSError as error:  # special files, such as some of the kernel's, open but cannot be read
                raise absent(self.where(path), error.strerror or type(error).__name__) from None
        refuse_no_text(head, self.where(path))

    def path(self, path: str) -> Path | RemotePath:
        """Return the file as a path, for callers that use `open` with an encoding, `name` and `suffix`.

        Raise a DataError if something other than a file is at a local path. Whether anything is there is not looked at,
        nor is a URL.
        """
        if is_url(path):
            return RemotePath(path, self.open)
        if os.path.exists(self._base / path):  # Path.exists raises if the name is too long
            self.facts(path)
        return self._base / path

    def local(self, path: str, facts: FileFacts | None = None) -> LocalFile:
        """Return the whole file on this machine's disk, for a library that wants a path or a memory map.

        The caller closes it after use; until then it is not evicted from the cache. Raise a ReadError if a remote file
        cannot be fetched, or the cache is too small for it, and a DataError if it is gone when it is first looked at;
        other errors of the cache (`RemoteFiles.local`) pass through. A local file is not looked at.
        """
        if is_url(path):
            return self._remote.local(path, facts or self._version(path))
        return LocalFile(self._base / path)

    def keep_local(self, path: str) -> Path:
        """Return the path of a local copy that is kept until these files are closed, for files that stay mapped.

        Raise what `local` raises, such as a ReadError if a remote file cannot be fetched; a local file is not looked
        at.
        """
        self._kept.append(self.local(path))
        return self._kept[-1].path

    def beside(self, path: str, name: str) -> str:
        """Return the path of a file that another file names relative to itself.

        An absolute path or a URL stays as it is.
        """
        return joined(os.path.dirname(path), name)  # faster than pathlib, for very many names

    def _version(self, url: str) -> FileFacts:
        """Return the version that the file had when it was first looked at; raise a DataError if there was none.

        Raise a ReadError if the store cannot be asked, and a SettingsError if its library is missing.
        """
        version = self._versions.get(url)
        if version is None:
            version = self._versions[url] = self.facts(url)
        return version

    # --- what comes soon ---

    def looks_ahead(self) -> bool:
        """Return whether this process is the one that fetches ahead for this data set, and can take more.

        Return False if no file is remote; raise a ReadError if the folder of the cache cannot be used, and besides what
        `RemoteFiles.looks_ahead` raises.
        """
        return self.are_remote and self._remote.looks_ahead(self._data_set)

    def expect(self, extents: Iterable[tuple[str, int, int]]) -> None:
        """Begin to fetch the remote ones of these extents (path, offset, size), which will be read soon.

        Raise a DataError if a file is gone when it is first looked at, a ReadError if its store cannot be asked, and a
        SettingsError if the store's library is missing. Fetches that fail later are dropped, and nothing is fetched if
        the cache is too small.
        """
        remote = ((path, offset, nbytes) for path, offset, nbytes in extents if is_url(path))
        self._remote.expect((url, self._version(url), offset, nbytes) for url, offset, nbytes in remote)

    def expect_files(self, files: Iterable[tuple[str, FileFacts]]) -> None:
        """Begin to fetch those of these whole files that are remote, one for each sample, which will be read soon.

        Fetches that fail are dropped, and nothing is fetched if the cache is too small.
        """
        self.expect_parts((path, facts, 0, facts.bytes) for path, facts in files)

    def expect_parts(self, parts: Iterable[tuple[str, FileFacts, int, int]]) -> None:
        """Begin to fetch parts of remote files of known versions, which will be read by `part` soon.

        Skip local files. Fetches that fail are dropped, and nothing is fetched if the cache is too small.
        """
        self._remote.expect(part for part in parts if is_url(part[0]))

    def expect_local(self, paths: Iterable[str]) -> None:
        """Begin to fetch the remote ones of these files, which will be asked for by `local` soon.

        Raise a DataError if a file is gone when it is first looked at, a ReadError if its store cannot be asked, and a
        SettingsError if the store's library is missing.
        """
        self._remote.expect_whole((path, self._version(path)) for path in paths if is_url(path))

    def close(self) -> None:
        """Drop all open files and kept copies, and stop fetching ahead.

        Each file closes once its last reader is done, and opens again when it is read.
        """
        self._handles.clear()
        self._kept.clear()
        # Not by attribute access, which would make the cache's client only to close it.
        if "_remote" in self.__dict__:
            self._remote.close()


def _asked(ask: Callable[[str], T], urls: Sequence[str]) -> list[T]:
    """Return what `ask` returns for each URL, in order, asking several at a time; raise the first error."""
    with ThreadPoolExecutor(_MOST_ASKED) as pool:
        return list(pool.map(ask, urls))
