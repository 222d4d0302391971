"""How an index replaces another: all or nothing, by one indexer at a time.

Rules: columns are written under a name that nothing refers to; `meta.json` names them, and replacing that one file is
the moment at which the new index counts. Folders that nothing names are removed. Knows nothing about what the columns
hold.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from typing import TYPE_CHECKING

from loader_server.index.bad_rows import BAD_ROWS
from loader_server.index.folder import Meta, meta_json, read_meta
from shared.errors import DataError
from shared.system.own_files import open_own

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["COLUMNS", "commit", "forget_refused", "keep_refused", "locked", "sweep"]

#: What the names of folders with columns start with.
COLUMNS = "columns-"
#: The bad rows for which data were refused, kept until the next index is made.
_REFUSED = "refused_rows.jsonl"


def commit(folder: Path, made: Path, meta: Meta) -> None:
    """Make the new columns the index."""
    draft = made / "meta.json"
    with draft.open("w", encoding="utf-8") as file:
        file.write(meta_json(meta))
        file.flush()
        os.fsync(file.fileno())
    _sync(made)
    draft.replace(folder / "meta.json")
    _sync(folder)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path, keep: Path | None = None) -> None:
    """Remove columns that are not the index's: older ones, and drafts that nobody resumes."""
    named = ""
    with contextlib.suppress(DataError):
        named = read_meta(folder).folder
    for columns in folder.glob(f"{COLUMNS}*"):
        if columns.name != named and columns != keep:
            shutil.rmtree(columns, ignore_errors=True)


def keep_refused(folder: Path, made: Path) -> Path:
    """Keep the bad rows of columns that will not become an index, for whoever mends them."""
    return (made / BAD_ROWS).replace(folder / _REFUSED)


def forget_refused(folder: Path) -> None:
    """Remove them, because the data are looked at again."""
    (folder / _REFUSED).unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the folder's only indexer; a folder that stays empty is removed afterwards."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    handle = _lock(folder / "lock")
    try:
        yield
    finally:
        (folder / "lock").unlink()
        os.close(handle)
        if new:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _lock(path: Path) -> int:
    """An open file under an exclusive lock, which its owner unlinks before it closes it."""
    while True:
        handle = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.fstat(handle).st_ino == path.stat().st_ino:
                return handle
        except BlockingIOError:
            os.close(handle)
            raise DataError(
                expected="to be the only one that makes this index",
                got="another loader-server index at work",
                where=str(path.parent),
                remedy="Wait for it, or end it.",
            ) from None
        # The last owner unlinked the file between our opening and locking it.
        os.close(handle)
