"""A TFRecord file, mapped into memory: where its records lie, and whether they are whole.

A record is its size (8 bytes), a checksum of the size (4), the data, and a checksum of the data (4), all little-endian.
Rules: headers are followed one by one, because each record's size tells where the next one is, but their checksums are
verified many at once. A file whose first header is wrong is not a TFRecord file; after a wrong header further on
nothing more can be found. Knows nothing about the data.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shared.errors import DataError
from shared.extras import library

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

__all__ = [
    "HEADER_BYTES",
    "TRAILER_BYTES",
    "RecordRange",
    "begins_with_record",
    "checksum_function",
    "ranges_in_parts",
    "records_from",
    "refuse_no_records",
]

HEADER_BYTES = 12
TRAILER_BYTES = 4
#: Bytes of a record besides its data.
_AROUND = HEADER_BYTES + TRAILER_BYTES

#: The polynomial of CRC-32C (Castagnoli), reflected.
_POLYNOMIAL = 0x82F63B78
#: More records than a file has.
_ALL = 2**62
_WRONG_SIZE = "the checksum of its size does not match"


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Consecutive records: where the data of each begin, their size, and the checksum stored behind them.

    `stop` is where the next record would begin; `broken` says what is wrong with that one, if anything.
    """

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    checksums: NDArray[np.int64]
    stop: int
    broken: str = ""

    @property
    def begins(self) -> NDArray[np.int64]:
        """Return where the header of each record begins."""
        return self.offsets - HEADER_BYTES


def records_from(data: mmap.mmap | bytes, start: int, most: int) -> RecordRange:
    """Return at most `most` records, the first of which begins at `start`.

    The result ends before the first record whose header is damaged or that is cut off, and says in `broken` what is
    wrong with it. The data are not verified.
    """
    begins, stop = _follow(data, start, most)
    bounds = np.array([*begins, stop], np.int64)
    octets = np.frombuffer(data, np.uint8)
    # `_follow` trusts the sizes, and a wrong one leads anywhere: all from the first wrong checksum on is dropped.
    whole = int(np.argmin(np.append(_size_fits(octets, bounds[:-1]), [False])))
    bounds = bounds[: whole + 1]
    ended = len(bounds) > most or bounds[-1] == len(data)
    return RecordRange(
        offsets=bounds[:-1] + HEADER_BYTES,
        sizes=np.diff(bounds) - _AROUND,
        checksums=_uint32_at(octets, bounds[1:] - TRAILER_BYTES).astype(np.int64),
        stop=int(bounds[-1]),
        broken="" if ended else _what_is_broken(octets, int(bounds[-1])),
    )


def ranges_in_parts(parts: Iterable[bytes]) -> Iterator[tuple[int, bytes, RecordRange]]:
    """Yield the records of a file that comes in parts: for each run of bytes its begin, the bytes, and their records.

    What follows the last whole record of a run begins the next one, so the last run's `broken` tells how the file ends.
    Nothing follows a damaged header. What `parts` raises passes through.
    """
    begin, held = 0, b""
    for part in parts:
        held += part
        records = records_from(held, 0, _ALL)
        yield begin, held, records
        if records.broken == _WRONG_SIZE:
            return
        begin, held = begin + records.stop, held[records.stop :]


def begins_with_record(data: mmap.mmap | bytes) -> bool:
    """Return whether the first bytes are the size of a record, and its checksum."""
    head = data[:HEADER_BYTES]
    return len(head) == HEADER_BYTES and bool(_size_fits(np.frombuffer(head, np.uint8), np.zeros(1, np.int64))[0])


def _follow(data: mmap.mmap | bytes, at: int, most: int) -> tuple[list[int], int]:
    """Return where whole records begin, at most `most`, trusting their sizes, and where the last of them ends.

    Without a whole record, the end is `at`.
    """
    size_at, end, begins = struct.Struct("<Q").unpack_from, len(data), list[int]()
    last = end - _AROUND
    # In Python, one by one: each size tells where the next record is, so there is nothing to do at once.
    while at <= last and len(begins) < most:
        after = at + _AROUND + size_at(data, at)[0]
        if after > end:
            break
        begins.append(at)
        at = after
    return begins, at


def _what_is_broken(octets: NDArray[np.uint8], at: int) -> str:
    """Return what is wrong with the record at `at`: cut in the header, a wrong checksum, or cut in the data."""
    left = len(octets) - at
    if left < HEADER_BYTES:
        return f"the file ends after {left} bytes of its header"
    if not _size_fits(octets, np.array([at]))[0]:
        return _WRONG_SIZE
    size = int(octets[at : at + 8].view("<u8")[0])
    return f"it has {size} bytes, but the file ends after {max(left - HEADER_BYTES, 0)} of them"


def _size_fits(octets: NDArray[np.uint8], begins: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each record whether the checksum of its size equals the stored one."""
    return np.equal(_size_checksums(octets, begins), _uint32_at(octets, begins + 8))


def _uint32_at(octets: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the little-endian 32-bit numbers at these places."""
    return _octets_at(octets, places, 4).view("<u4").reshape(-1)


def _octets_at(octets: NDArray[np.uint8], places: NDArray[np.int64], count: int) -> NDArray[np.uint8]:
    """Return `count` bytes from each of these places, one place a row."""
    return octets.take(places[:, None] + np.arange(count))


def _size_checksums(octets: NDArray[np.uint8], begins: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Compute the masked CRC-32C of each 8-byte size, for all records at once.

    The sizes are split into their eight bytes, and each byte is looked up in a table of its own (slicing by eight).
    """
    sizes = _octets_at(octets, begins, 8)
    sizes[:, :4] ^= 0xFF  # the initial value of a CRC, all ones, applied to the first four bytes
    checksum = np.zeros(len(sizes), np.uint32)
    # The first byte is followed by seven others, so its table is the one for seven zeros.
    for place, table in enumerate(_tables()[::-1]):
        checksum ^= table[sizes[:, place]]
    return _masked(~checksum)


@functools.cache
def _tables() -> NDArray[np.uint32]:
    """Return eight tables: the CRC-32C of each byte followed by 0 to 7 zero bytes."""
    tables = np.zeros((8, 256), np.uint32)
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, first >> 1 ^ np.uint32(_POLYNOMIAL), first >> 1)
    tables[0] = first
    for zeros in range(1, 8):
        tables[zeros] = tables[zeros - 1] >> 8 ^ first[tables[zeros - 1] & 0xFF]
    return tables


def _masked(checksum: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return checksums in TFRecord's stored form: rotated by 15 bits, plus a constant.

    The format masks them because it is problematic to compute the CRC of data that contain CRCs.
    """
    rotated = np.bitwise_or(checksum >> 15, checksum << 17)
    return np.add(rotated, np.uint32(0xA282EAD8), dtype=np.uint32)  # type: ignore[no-any-return]


def refuse_no_records(data: mmap.mmap | bytes, first: RecordRange, where: str) -> None:
    """Raise a DataError if the file does not even begin with a record, and say if it is compressed.

    `first` are the records that were found from a place on; nothing is refused if there are any, or if the first one is
    only cut off.
    """
    # Only a wrong checksum of the first size tells that this is another file: one that ends within its first record may
    # be a TFRecord file that was cut.
    if len(first.offsets) or first.broken != _WRONG_SIZE:
        return
    # GZIP's magic bytes; or ZLIB's two header bytes, which are a multiple of 31 as one number.
    compressed = data[:2] == b"\x1f\x8b" or (data[0] == 0x78 and (data[0] << 8 | data[1]) % 31 == 0)
    if compressed:
        raise DataError(
            expected="a TFRecord file that is not compressed",
            got="one that is compressed by GZIP or ZLIB",
            where=where,
            remedy="Write it again without compression (tf.io.TFRecordWriter(path), or gunzip). Those that source = "
            '"tfrecord" names may be compressed by GZIP.',
        )
    raise DataError(
        expected="a TFRecord file",
        got=f"another one: of its first record {first.broken}",
        where=where,
        remedy="Name TFRecord files in `paths` of the stream.",
    )


def checksum_function() -> Callable[[bytes], int]:
    """Return the function that computes a record's stored checksum; raise a SettingsError without its library."""
    use, otherwise = "with which checksums are checked", "or leave checksums out"
    google_crc32c = library("google_crc32c", extra="tfrecord", use=use, where="checksums", otherwise=otherwise)
    return lambda data: int(_masked(np.array([google_crc32c.value(data)], np.uint32))[0])
