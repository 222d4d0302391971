"""Memory for batches, private or shared with another process, in huge pages where the kernel provides them.

Copying into shared pages of 4 KiB costs nearly twice as much as into huge ones (10 MB on a virtual machine: 0.86 ms
against 0.47), and kernels give shared memory none unless an administrator changed `shmem_enabled`. Since Linux 6.1
pages that were written can be collapsed into huge ones on request, in mappings that are aligned as these are.

Rules: without huge pages only speed is lost; a mapping lives until the last array that views it is gone.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HUGE_PAGE", "collapse", "drop_pages", "keep_from_children", "map_anonymous", "map_file"]

HUGE_PAGE = 2**21

# <sys/mman.h> of Linux; Python's mmap module cannot choose an address.
_PROT_NONE = 0
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MADV_DONTNEED = 4
_MADV_REMOVE = 9
_MADV_DONTFORK = 10
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def map_file(fd: int, nbytes: int) -> NDArray[np.uint8]:
    """Map the first `nbytes` of a file, writable and aligned to huge pages; the descriptor may be closed afterwards.

    Raise OSError if the system refuses.
    """
    return _map_aligned(nbytes, mmap.MAP_SHARED, fd)


def map_anonymous(nbytes: int) -> NDArray[np.uint8]:
    """Map private memory of this process, in huge pages from the first byte on if the kernel has them.

    Raise OSError if the system refuses.
    """
    memory = _map_aligned(nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    _libc.madvise(memory.ctypes.data, nbytes, _MADV_HUGEPAGE)
    return memory


def _map_aligned(nbytes: int, flags: int, fd: int) -> NDArray[np.uint8]:
    """Map `nbytes` at an address aligned to huge pages; raise OSError if the system refuses.

    One huge page more than needed is reserved without access, and the mapping is placed over the aligned part.
    """
    # The kernel chooses addresses by small pages, so reserve a huge page more and place the mapping inside.
    reserved = nbytes + HUGE_PAGE
    base = _map(None, reserved, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1)
    start = -(-base // HUGE_PAGE) * HUGE_PAGE  # rounded up
    try:
        _map(start, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags | _MAP_FIXED, fd)
    except OSError:
        _libc.munmap(base, reserved)
        raise
    memory = (ctypes.c_uint8 * nbytes).from_address(start)
    weakref.finalize(memory, _libc.munmap, base, reserved).atexit = False
    return np.frombuffer(memoryview(memory), np.uint8)


def _map(address: int | None, nbytes: int, protection: int, flags: int, fd: int) -> int:
    """Map memory at an address (None: anywhere) and return where it is; raise OSError if the kernel refuses."""
    mapped = _libc.mmap(address, nbytes, protection, flags, fd, 0)
    if mapped == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot map {nbytes} bytes: {os.strerror(error)}")
    return int(mapped)


def collapse(array: NDArray[np.uint8]) -> bool:
    """Collapse written bytes into huge pages, up to the last page that they fill; return whether the kernel did.

    The first page may begin before them. Return False if they fill no page.
    """
    start = array.ctypes.data // HUGE_PAGE * HUGE_PAGE
    end = (array.ctypes.data + array.nbytes) // HUGE_PAGE * HUGE_PAGE
    return end > start and _libc.madvise(start, end - start, _MADV_COLLAPSE) == 0


def drop_pages(array: NDArray[np.uint8], *, of_file: bool) -> bool:
    """Give memory back to the system, of which only zeros are left; return whether it did.

    The array has to begin and end at a page's bounds. With `of_file` it is that of a file in memory, which all who have
    mapped it lose; otherwise it is private.
    """
    advice = _MADV_REMOVE if of_file else _MADV_DONTNEED
    return bool(_libc.madvise(array.ctypes.data, array.nbytes, advice) == 0)


def keep_from_children(memory: NDArray[np.uint8]) -> None:
    """Exclude a mapping from every process that this one forks, from Python or not; raise OSError if that fails."""
    if _libc.madvise(memory.ctypes.data, memory.nbytes, _MADV_DONTFORK):
        error = ctypes.get_errno()
        raise OSError(error, f"cannot keep shared memory from children: {os.strerror(error)}")
