"""A gzip file read from points inside of it: what follows a point is unpacked without what lies before. Pure.

A point lies between two blocks of a deflate stream, at any bit of a byte; what is behind it may refer back to the 32
KiB before, its window. Rules: zlib alone unpacks. It begins at whole bytes only, so a point inside of a byte is led up
to by empty blocks of as many bits. A file of several members, one behind the other, is one run of bytes, as for gzip
itself. Checksums of members are not verified.
"""

from __future__ import annotations

import contextlib
import functools
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["GZIP", "WINDOW_BYTES", "GzipDamage", "GzipPoint", "GzipPoints", "unpacked_from"]

#: The first bytes of a gzip file: its two magic bytes, and the only method of compression that there is.
GZIP = b"\x1f\x8b\x08"
WINDOW_BYTES = 2**15

#: Compressed bytes that are handed over at a time, and the most that come back.
_FED_BYTES, _UNPACKED_BYTES = 2**18, 2**20
#: The same near damage.
_STEP_BYTES = 16
#: The checksum and the size behind a member's deflate stream.
_TRAILER_BYTES = 8
#: A deflate stream without header and trailer.
_RAW = -15
#: The bytes of a member's header that are always there, and the flags of the parts that may follow.
_HEAD_BYTES = 10
_HAS_CHECKSUM, _HAS_EXTRA, _HAS_NAME, _HAS_COMMENT = 2, 4, 8, 16

#: A table of points as indexed_gzip writes it: the sizes of file and content, the points' spacing, the window's size
#: and how many points there are; then the points, and last the windows in the points' order, of which some have none.
_HEADER = struct.Struct("<5sBBQQIII")
_MAGIC, _VERSION = b"GZIDX", 1
_POINT = np.dtype([("compressed", "<u8"), ("unpacked", "<u8"), ("bits", "u1"), ("has_window", "u1")])


class GzipDamage(ValueError):
    """Bytes that cannot be unpacked, or the end of a file inside of a member."""


@dataclass(frozen=True, slots=True)
class GzipPoint:
    """A place to begin at: the next whole byte of the file, and how many `bits` of the byte before are to be read.

    `unpacked` counts the bytes that come before it once unpacked. At the very beginning of a file, `is_header` is true.
    """

    compressed: int
    unpacked: int
    bits: int = 0
    window: bytes = b""
    is_header: bool = False


class GzipPoints:
    """The points of one file, in order; the first one is its beginning.

    Making it raises a ValueError if the table is not of the known format, or cut short.
    """

    def __init__(self, table: mmap.mmap | bytes) -> None:
        if len(table) < _HEADER.size:
            raise ValueError(f"the table of points ends after {len(table)} bytes")
        magic, version, _, _, nbytes, _, window, count = _HEADER.unpack_from(table)
        if (magic, version, window) != (_MAGIC, _VERSION, WINDOW_BYTES):
            raise ValueError("the table of points is of another format")
        windows = _HEADER.size + count * _POINT.itemsize
        if len(table) < windows:
            raise ValueError(f"the table of points ends after {len(table)} bytes")
        points = np.frombuffer(table, _POINT, count, _HEADER.size)
        has_window = points["has_window"] > 0
        if len(table) < windows + int(has_window.sum()) * WINDOW_BYTES:
            raise ValueError(f"the windows of the table of points end after {len(table)} bytes")
        self._table = table
        places = windows + np.cumsum(has_window) * WINDOW_BYTES - WINDOW_BYTES
        # Only points with content before and behind them count: the file's beginning needs no table, a member may be
        # empty, and there is a point at the very end. Of a file that is cut short the library does not know the size.
        unpacked = points["unpacked"].astype(np.int64)
        kept = np.flatnonzero((np.diff(unpacked, prepend=0) > 0) & ((unpacked < nbytes) | (nbytes == 0)))
        #: The bytes before each point once unpacked: rising, 0 for the first.
        self.starts: NDArray[np.int64] = np.append(np.zeros(1, np.int64), unpacked[kept])
        self._compressed = points["compressed"][kept].tolist()
        self._bits = points["bits"][kept].tolist()
        self._windows = np.where(has_window, places, -1)[kept].tolist()

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> GzipPoint:
        """Return a point with its window; raise an IndexError if there are not so many."""
        if number == 0:
            return GzipPoint(0, 0, is_header=True)
        place = self._windows[number - 1]
        window = bytes(self._table[place : place + WINDOW_BYTES]) if place >= 0 else b""
        return GzipPoint(self._compressed[number - 1], int(self.starts[number]), self._bits[number - 1], window)


def unpacked_from(data: mmap.mmap | bytes, point: GzipPoint) -> Iterator[bytes]:
    """Yield what follows a point once unpacked, to the end of the last member, in parts of at most 1 MiB.

    Raise GzipDamage, after all that could be unpacked before, if the bytes are damaged or the file ends in a member.
    Zeros and other bytes behind the last member are left out.
    """
    at, stream = point.compressed, zlib.decompressobj(_RAW)
    if point.is_header:
        at = _behind_header(data, 0)
    else:
        stream = _led_up_to(data, point)
    while True:
        if stream.eof:
            at += _TRAILER_BYTES - len(stream.unused_data)
            if at > len(data):
                raise GzipDamage("the compressed file ends before its last checksum")
            if data[at : at + len(GZIP)] != GZIP:
                return
            at, stream = _behind_header(data, at), zlib.decompressobj(_RAW)
        fed = data[at : at + _FED_BYTES]
        if not fed:
            raise GzipDamage("the compressed file ends too early")
        at += len(fed)
        yield from _fed(stream, fed)


def _behind_header(data: mmap.mmap | bytes, at: int) -> int:
    """Return where the deflate stream of the member at `at` begins; raise GzipDamage if the file ends before.

    What the header says is not looked at.
    """
    head = data[at : at + _HEAD_BYTES]
    if len(head) < _HEAD_BYTES:
        raise GzipDamage("the compressed file ends in a header")
    flags, at = head[3], at + _HEAD_BYTES
    if flags & _HAS_EXTRA:
        at += 2 + int.from_bytes(data[at : at + 2], "little")
    for flag in (_HAS_NAME, _HAS_COMMENT):
        if flags & flag:
            at = data.find(b"\0", at) + 1
            if not at:
                raise GzipDamage("the compressed file ends in a header")
    return at + (2 if flags & _HAS_CHECKSUM else 0)


def _fed(stream: zlib._Decompress, fed: bytes) -> Iterator[bytes]:
    """Yield what these bytes give, in parts; raise GzipDamage if they cannot be unpacked."""
    while not stream.eof:
        before = stream.copy()
        try:
            part = stream.decompress(fed, _UNPACKED_BYTES)
        except zlib.error as error:
            # What the call had unpacked until then is lost with it: it is unpacked again, in small steps.
            with contextlib.suppress(zlib.error):
                yield from (before.decompress(fed[at : at + _STEP_BYTES]) for at in range(0, len(fed), _STEP_BYTES))
            raise GzipDamage(f"the compressed bytes are damaged ({error})") from None
        if part:
            yield part
        fed = stream.unconsumed_tail
        # A full part may have left more behind, although all bytes were taken.
        if not fed and len(part) < _UNPACKED_BYTES:
            return


def _led_up_to(data: mmap.mmap | bytes, point: GzipPoint) -> zlib._Decompress:
    """Return a stream that stands at a point; raise GzipDamage if the byte before it is missing."""
    stream = zlib.decompressobj(_RAW, zdict=point.window) if point.window else zlib.decompressobj(_RAW)
    if point.bits:
        shared = data[point.compressed - 1 : point.compressed]
        if not shared:
            raise GzipDamage("the compressed file ends too early")
        *whole, last = _empty_blocks(8 - point.bits)
        # The last byte of the empty blocks has the bits that the point skips, which are the lower ones.
        kept = shared[0] >> (8 - point.bits) << (8 - point.bits)
        stream.decompress(bytes([*whole, last | kept]))
    return stream


@functools.cache
def _empty_blocks(bits: int) -> bytes:
    """Return empty deflate blocks that end after this many bits of a byte, 1 to 7; the rest of the byte is zero."""
    run, size = 0, 0
    if bits % 2:
        # 93 bits: codes of the reader's own making, of which only the end of the block has one.
        run, size = _with_own_codes()
    while size % 8 != bits:
        # 10 bits: no last block (0), of fixed codes (01, the lower bit first), and its end (seven zeros).
        run, size = run | 0b010 << size, size + 10
    return run.to_bytes(-(-size // 8), "little")


def _with_own_codes() -> tuple[int, int]:
    """Return the bits of an empty block with codes of its own, and how many they are: an odd number."""
    run = size = 0

    def put(number: int, bits: int) -> None:
        nonlocal run, size
        run, size = run | number << size, size + bits

    put(0b100, 3)  # no last block, with codes of its own
    put(0, 5)  # 257 codes of literals
    put(0, 5)  # one code of distances
    put(15, 4)  # 19 lengths of codes follow, in an order of their own: of 18 (a run of zeros) and of 1
    for code in (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15):
        put(int(code in (18, 1)), 3)
    for zeros in (138, 118):  # no literal has a code
        put(1, 1)
        put(zeros - 11, 7)
    put(0, 1)  # the end of a block has a code of length 1
    put(0, 1)  # and so has the only distance
    put(0, 1)  # the end of the block
    return run, size
