"""Files that list samples, such as manifests: what identifies them, noted in the index and compared later.

Rules: the content of such a list is kept in the index, so a list with other content is refused, whatever its size and
its times. A list that was only touched or copied is the same; one whose status this machine has seen is not read again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import xxhash

from loader_server.sources.remote.urls import is_url
from shared.errors import DataError, ReadError

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.sources.files.opening import FileFacts, Files

__all__ = ["absent_list", "list_facts", "refuse_absent_list", "refuse_other_list"]

_BLOCK_BYTES = 2**20


def list_facts(path: str, files: Files, what: str) -> dict[str, Any]:
    """Return the entry for a list in the index's origin; raise a DataError if it is not readable text.

    `what` is the word for the list in messages.
    """
    now = _facts(path, files, what)
    if not path.endswith(".gz"):
        files.refuse_no_text(path)
    return {"path": path, "bytes": now.bytes, "mtime_ns": now.version, "digest": _digest(path, files)}


def refuse_other_list(facts: dict[str, Any], files: Files, what: str, index: Path) -> None:
    """Raise a DataError if a list no longer has the indexed content."""
    path, now = facts["path"], _facts(facts["path"], files, what)
    if now.bytes == facts["bytes"] and _is_same(facts, now, files):
        return
    raise DataError(
        expected=f"the {what} that the index was made from ({facts['bytes']} bytes)",
        got=f"another one ({now.bytes} bytes)",
        where=f"{files.where(path)}, index {index}",
        remedy=f"The index was made from another {what}: run loader-server index.",
    )


def refuse_absent_list(path: str, files: Files, what: str) -> None:
    """Raise a DataError if the list cannot be read."""
    _facts(path, files, what)


def _facts(path: str, files: Files, what: str) -> FileFacts:
    try:
        return files.facts(path)
    except ReadError:
        raise
    except DataError as error:
        raise _absent(files.where(path), what, error.got) from None


def _is_same(facts: dict[str, Any], now: FileFacts, files: Files) -> bool:
    """Return whether a list of the indexed size has the indexed content."""
    path = facts["path"]
    if is_url(path):
        is_known = now.version == facts["mtime_ns"]
    else:
        is_known = files.seen.has(os.stat(files.where(path)), facts["digest"])
    return is_known or bool(_digest(path, files) == facts["digest"])


def _digest(path: str, files: Files) -> str:
    """Return a hash of the whole list, and remember it for the list's status."""
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


def absent_list(place: object, what: str, error: OSError) -> DataError:
    """Return the error for a list that cannot be read."""
    return _absent(str(place), what, error.strerror or type(error).__name__)


def _absent(where: str, what: str, got: str) -> DataError:
    return DataError(
        expected=f"a {what} that can be read",
        got=got,
        where=where,
        remedy=f"Mend `paths` of the stream, which are relative to the job file, or put the {what} there.",
    )
