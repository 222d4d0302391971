"""Eviction: which entries of a store go when it is full, and removing those that nobody holds.

Rules: an entry that was used longest ago goes first; its use is the file's mtime, which readers renew. Entries in use
stay: their users hold a lock. Files may vanish at any moment, because other processes evict as well.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from shared.errors import MachineError
from shared.stores.locks import has_name, lock
from shared.stores.own_files import open_own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["StoredEntry", "evict", "last_use_ns", "remove_unlocked", "stored_files"]

#: When an entry was used last, in nanoseconds; how much it takes, in the store's unit; and its path.
StoredEntry: TypeAlias = tuple[int, int, str]


def evict(entries: Iterable[StoredEntry], excess: int, remove: Callable[[str], bool]) -> int:
    """Remove entries, those used longest ago first, until `excess` is freed; return how much was.

    `remove` returns whether the entry is gone; one that is in use stays, and the next is tried. Its errors pass
    through. Less than `excess` is freed if there are too few entries.
    """
    freed = 0
    for _, size, path in sorted(entries):
        if freed >= excess:
            break
        freed += size * remove(path)
    return freed


def last_use_ns(path: Path) -> int:
    """Return when a file was last used; 0, which is before any other, if another process has removed it meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0


def stored_files(folder: str | Path) -> Iterator[StoredEntry]:
    """Yield last use, bytes and path of each entry of a folder; files that vanish meanwhile are skipped.

    Raise an OSError if the folder is missing or cannot be read.
    """
    # Not pathlib, which takes much longer: making room looks at every entry, and there may be very many.
    with os.scandir(folder) as files:
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                status = file.stat()
                yield status.st_mtime_ns, status.st_size, file.path


def remove_unlocked(path: str, *, truncate: bool) -> bool:
    """Remove a file unless somebody has it locked; return whether it is gone, which it may have been before.

    A link, pipe or second name of another file in its place is removed, and its target left as it is. With `truncate`
    the bytes are freed at once, even if others have the file open. Files that are mapped must not be truncated: a
    process that reads beyond the end of one is killed (SIGBUS). Raise OSError if the file cannot be opened, locked or
    removed.
    """
    try:
        handle = open_own(path, os.O_RDWR)
    except FileNotFoundError:
        return True
    except MachineError:  # somebody planted a link: remove it, and leave its target as it is
        Path(path).unlink()
        return True
    try:
        if not lock(handle, wait=False):
            return False
        # Between our opening and locking it, its maker may have finished it: the file has another name now, and this
        # path may already be the next maker's.
        if has_name(handle, Path(path)):
            Path(path).unlink()
            if truncate:
                os.ftruncate(handle, 0)
    except FileNotFoundError:
        return True
    finally:
        os.close(handle)
    return True
