"""The files that an index was made from: what is noted about them, and the refusal of others.

Rules: the index has each file's size and a hash of its content: all of it if the file is small, else places spread over
it and both ends, where formats keep their tables. A file of another size is another file. If the size is equal but this
machine has not seen the file's status (device, inode, mtime and ctime) with that hash, the content is looked at; so a
copy is the same file, and other bytes are refused even if their mtime was put back.

Lists of samples, such as manifests, are hashed whole, because the index keeps what they say; their errors call them by
the word that the source has for them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from loader_server.sources.files.file_facts import FileFacts, absent, changed
from loader_server.sources.files.local import LocalHandle, bytes_at
from loader_server.sources.files.seen import SeenFiles, is_settled, status_of
from loader_server.sources.remote.urls import is_url
from shared.errors import DataError, ReadError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files
    from loader_server.sources.source import Indexed

__all__ = [
    "FilesInUse",
    "digest_of",
    "digest_of_handle",
    "digest_of_number",
    "has_content",
    "list_facts",
    "noted_content",
    "noted_origin",
    "number_of_digest",
    "plain_digest",
    "plain_digests",
    "refuse_absent_list",
    "refuse_other_files",
    "refuse_other_list",
    "signed_digest",
]

#: The digest of a large file covers this many pieces of this many bytes, so it costs the same for any size.
_PIECES, _PIECE_BYTES = 64, 4096
#: Bytes of a list that are read at a time.
_BLOCK_BYTES = 2**20

# --- files of samples ---


def noted_origin(files: Files, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the index records about these files, for `Inventory(origin=…)`: path, size, version and digest.

    Raise a DataError if a file is absent, a ReadError if a store cannot be asked or read, a SettingsError if its
    library is missing, and an OSError if the disk fails. Other errors of the cache of remote files pass, such as a
    MachineError.
    """
    return [{**facts, "digest": _digest_of_path(files, facts["path"], facts["bytes"])} for facts in files.origin(paths)]


def _digest_of_path(files: Files, path: str, nbytes: int) -> str:
    """Return the digest of a local or remote file; that of a local one is remembered for the file's status.

    Raise an OSError if a local file cannot be read, and a ReadError if a remote one cannot be fetched; for a remote one
    other errors of `Files.read` pass.
    """
    if is_url(path):
        return digest_of(lambda start, stop: files.read(path, start, stop - start), nbytes)
    return noted_content(files.where(path), files.seen)


def noted_content(place: str, seen: SeenFiles) -> str:
    """Return the digest of a local file's content, and remember it for the file's status once that is settled.

    Raise an OSError if the file is no regular one or cannot be read.
    """
    handle = LocalHandle(Path(place))
    return digest_of_handle(handle.number, os.fstat(handle.number), seen)


def digest_of_handle(handle: int, status: os.stat_result, seen: SeenFiles) -> str:
    """Return the digest of an open file's content, and remember it for `status`, which was taken before reading.

    A status that is not settled yet is not remembered. Raise an OSError if the disk fails.
    """
    digest = digest_of(lambda start, stop: bytes_at(handle, start, stop - start), status.st_size)
    seen.keep(status, digest)
    return digest


def has_content(place: str, status: os.stat_result, digest: str, seen: SeenFiles) -> bool:
    """Return whether a local file has the content of this digest; raise an OSError if it cannot be read.

    It is read only if this machine has not seen its status with that content yet.

    The file is opened anew, because a status tells only about the file that has it: a descriptor that was opened before
    may be of a file that was replaced meanwhile.
    """
    return seen.has(status, digest) or noted_content(place, seen) == digest


def refuse_other_files(files: Files, indexed: Indexed) -> None:
    """Raise a DataError if a file is gone or not the one that the index was made from; a source calls it in `open`.

    Raise a ReadError if a store cannot be asked, a SettingsError if its library is missing, and an OSError if a file
    cannot be read.
    """
    files.refuse_changed(indexed.origin, indexed.place)
    for facts in indexed.origin:
        # Equal sizes are no proof: other bytes of that size, even with the old mtime put back, would be served as the
        # indexed samples.
        if not _is_same(files, facts):
            raise DataError(
                expected="the file that the index was made from",
                got="another one of the same size",
                where=f"{files.where(facts['path'])}, index {indexed.place}",
                remedy="The file has changed: bring it by rsync -a or cp -a from where the index was made, or run "
                "loader-server index.",
            )


def _is_same(files: Files, facts: dict[str, Any]) -> bool:
    path, place = facts["path"], files.where(facts["path"])
    if is_url(path):  # `refuse_changed` has compared its version
        return True
    return has_content(place, os.stat(place), facts["digest"], files.seen)


class FilesInUse:
    """The local files of an open index, which others may overwrite while they are read.

    Remote files are left out: they are read in the version that was indexed.
    """

    def __init__(self, files: Files, indexed: Indexed) -> None:
        self._seen = files.seen
        self._indexed = {facts["path"]: facts for facts in indexed.origin if not is_url(facts["path"])}
        self._places = {path: files.where(path) for path in self._indexed}
        #: The status at which each file was last seen to have the indexed content.
        self._known: dict[str, tuple[int, ...]] = {}

    def refuse_changed(self, *paths: str) -> None:
        """Raise a ReadError if one of these files, or any file if none is named, is no longer the indexed one.

        Call it after each reading, before anyone gets what was read: a check before reading would miss a file that is
        overwritten in between. Remote files and files that the index does not have are skipped. Raise an OSError if a
        file whose status changed cannot be read.
        """
        for path in paths or self._places:
            if path in self._places:
                now = self._status(path)
                if status_of(now) != self._known.get(path):
                    self._refuse_other_content(path, now)

    def _status(self, path: str) -> os.stat_result:
        """Return the status now; raise a ReadError if there is none: the file is no longer the indexed one."""
        try:
            return os.stat(self._places[path])  # takes a fifth of the time of Path.stat
        except OSError as error:
            raise changed("the file that was indexed", error.strerror or str(error), self._places[path]) from None

    def _refuse_other_content(self, path: str, now: os.stat_result) -> None:
        indexed, place = self._indexed[path], self._places[path]
        if now.st_size != indexed["bytes"] or not has_content(place, now, indexed["digest"], self._seen):
            raise changed("the file that was indexed", f"another one of {now.st_size} bytes", place)
        # A status that is younger than the file system's clock tick is not kept: a second write within the tick would
        # leave it unchanged.
        if is_settled(now):
            self._known[path] = status_of(now)


def digest_of(read: Callable[[int, int], bytes], nbytes: int) -> str:
    """Return a digest of a file's content; `read(start, stop)` gives its bytes.

    Of a large file only spread pieces are hashed, the first and the last bytes among them. What `read` raises passes
    through.
    """
    if nbytes <= _PIECES * _PIECE_BYTES:
        return xxhash.xxh3_64_hexdigest(read(0, nbytes))
    digest = xxhash.xxh3_64()
    # Both ends are among the pieces, because formats keep their tables there.
    for start in np.linspace(0, nbytes - _PIECE_BYTES, _PIECES).astype(np.int64).tolist():
        digest.update(read(start, start + _PIECE_BYTES))
    return digest.hexdigest()


#: Returns a digest of bytes as an unsigned integer, without a line of Python for each of many.
plain_digest: Callable[[bytes], int] = xxhash.xxh3_64_intdigest


def signed_digest(content: bytes) -> int:
    """Return a digest of these bytes as a signed 64-bit integer, which a column of an index can hold."""
    digest = xxhash.xxh3_64_intdigest(content)
    return digest - 2**64 if digest >= 2**63 else digest


def plain_digests(column: NDArray[np.int64]) -> list[int]:
    """Return the signed digests of an index's column as `plain_digest` gives them."""
    plain: list[int] = np.ascontiguousarray(column, np.int64).view(np.uint64).tolist()
    return plain


def number_of_digest(digest: str) -> int:
    """Return a digest of 16 hexadecimal digits as a signed 64-bit number, for a column of an index."""
    return int.from_bytes(bytes.fromhex(digest), "big", signed=True)


def digest_of_number(number: int) -> str:
    """Return the digest that a column holds as a number, as 16 hexadecimal digits."""
    return f"{number % 2**64:016x}"


# --- lists of samples ---


def list_facts(path: str, files: Files, word: str) -> dict[str, Any]:
    """Return the entry for a list in the index's origin; raise a DataError if it is absent or no readable text.

    `word` is what messages call the list. One that ends in .gz need not be text. Raise a ReadError if its store cannot
    be asked or it cannot be fetched, a SettingsError if the store's library is missing, and an OSError if the disk
    fails. Other errors of the cache of remote files pass, such as a MachineError.
    """
    now = _facts_of_list(path, files, word)
    if not path.endswith(".gz"):
        files.refuse_no_text(path)
    return {"path": path, "bytes": now.bytes, "mtime_ns": now.version, "digest": _digest_of_list(path, files)}


def refuse_other_list(facts: dict[str, Any], files: Files, word: str, index: Path) -> None:
    """Raise a DataError if a list no longer has the indexed content, or is gone or cannot be opened.

    `word` is what messages call it. Raise a ReadError if its store cannot be asked or it cannot be fetched, a
    SettingsError if the store's library is missing, and an OSError if the disk fails. Other errors of the cache of
    remote files pass.
    """
    path, now = facts["path"], _facts_of_list(facts["path"], files, word)
    if now.bytes != facts["bytes"] or not _is_same_list(facts, now, files):
        raise DataError(
            expected=f"the {word} that the index was made from ({facts['bytes']} bytes)",
            got=f"another one ({now.bytes} bytes)",
            where=f"{files.where(path)}, index {index}",
            remedy=f"The index was made from another {word}: run loader-server index.",
        )


def refuse_absent_list(path: str, files: Files, word: str) -> None:
    """Raise a DataError if there is no file of the list's name, or a ReadError if its store cannot be asked.

    What the list holds is not looked at; `word` is what messages call it. Raise a SettingsError if the store's library
    is missing.
    """
    _facts_of_list(path, files, word)


def _facts_of_list(path: str, files: Files, word: str) -> FileFacts:
    """Return a list's size and version; raise a DataError that calls it by `word` if there is no such file.

    Raise a ReadError if its store cannot be asked, and a SettingsError if the store's library is missing.
    """
    try:
        return files.facts(path)
    except ReadError:  # its store cannot be asked, which says nothing about the list
        raise
    except DataError as error:
        raise absent(files.where(path), error.got, word) from None


def _is_same_list(facts: dict[str, Any], now: FileFacts, files: Files) -> bool:
    """Return whether a list of the indexed size has the indexed content; raise a DataError if it cannot be opened.

    The list is read only if its version or status is not known to go with that content. Raise a ReadError if a remote
    list cannot be fetched, and an OSError if a local one is gone or the disk fails. SettingsError of `_digest_of_list`
    passes through.
    """
    # A list whose version or status is known is not read again: it may name a hundred thousand files.
    path = facts["path"]
    if is_url(path):
        is_known = now.version == facts["mtime_ns"]
    else:
        is_known = files.seen.has(os.stat(files.where(path)), facts["digest"])
    return is_known or bool(_digest_of_list(path, files) == facts["digest"])


def _digest_of_list(path: str, files: Files) -> str:
    """Return a hash of the whole list, and remember it for the status of a local list once that is settled.

    Raise a DataError if the list cannot be opened, a ReadError if a remote one cannot be fetched, and an OSError if the
    disk fails. SettingsError of `open` and MachineError of reading pass through.
    """
    state = xxhash.xxh3_128()
    with files.open(path) as file:
        # The status is taken before the bytes are read: if somebody writes meanwhile, the file's next status differs
        # from the remembered one, and the list is read again.
        status = None if is_url(path) else os.fstat(file.fileno())
        while block := file.read(_BLOCK_BYTES):
            state.update(block)
    if status is not None:
        files.seen.keep(status, state.hexdigest())
    return state.hexdigest()
