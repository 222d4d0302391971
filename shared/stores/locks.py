"""Locks of the kernel on files: they end with their holder, even by kill -9, and survive SIGSTOP.

Rules: no lock has a timeout and none is broken, because a process that was stopped goes on writing where it was. A lock
is on a file, not on its name: `has_name` tells after locking whether others would still find the same file. Locks on
files are for those who come and go; locks on bytes are for a file that many hold for different things at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from typing import TYPE_CHECKING

from shared.stores.own_files import open_own

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["has_name", "is_byte_locked", "lock", "lock_byte", "locked", "unlock_byte"]

_FLOCK = "hhqqi4x"  # struct flock of Linux on 64 bits: type, whence, start, length, pid


def lock(handle: int, *, wait: bool, shared: bool = False) -> bool:
    """Lock an open file until it is closed, and return True; if others hold it, wait, or return False unless `wait`.

    Raise OSError if the file system has no locks.
    """
    operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(handle, operation if wait else operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int]:
    """Wait for the lock of a file, which is made if needed, and hold it during the block, which gets the descriptor.

    Raise MachineError if there is a link or the like in place of the file, and OSError if it cannot be opened or made
    or its file system has no locks.
    """
    handle = open_own(path, os.O_RDWR | os.O_CREAT)
    try:
        lock(handle, wait=True)
        yield handle
    finally:
        os.close(handle)


def has_name(handle: int, path: Path) -> bool:
    """Return whether this path is still a name of the open file; False if it is gone.

    Ask after locking: the file may have been renamed or removed between opening and locking it. The next process then
    makes and locks another file of that name, and our lock keeps nobody out.
    """
    try:
        return path.stat().st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False


def lock_byte(handle: int, byte: int) -> bool:
    """Lock one byte of a file, which need not exist; return False if another opening of the file has it.

    Raise OSError if the file system has no such locks.
    """
    # Of the open file description, not of the process (F_SETLK): those would be lost as soon as the process closed any
    # other descriptor of the file, and a second opening within the process would not be kept out.
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _range(fcntl.F_WRLCK, byte))
    except BlockingIOError:
        return False
    return True


def unlock_byte(handle: int, byte: int) -> None:
    """Give back the lock of a byte; a byte that is not locked stays so."""
    fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _range(fcntl.F_UNLCK, byte))


def is_byte_locked(handle: int, byte: int) -> bool:
    """Return whether another opening of the file has locked this byte; nothing is locked by asking."""
    # The kernel answers F_UNLCK if nobody is in the way of the lock that was asked about.
    answer = fcntl.fcntl(handle, fcntl.F_OFD_GETLK, _range(fcntl.F_WRLCK, byte))
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def _range(kind: int, byte: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0)
