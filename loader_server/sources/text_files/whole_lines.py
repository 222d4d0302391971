"""Text files as whole lines: counted, cut into pieces that begin and end with a line, and taken apart.

Rules: files may be larger than memory; what marks the end of a line, be it of Unix or of Windows, or the beginning of a
file is no part of a line; lines are handled many at a time, because a line in itself costs little. Knows nothing of
what the lines mean, but for whether they are UTF-8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from loader_server.sources.files.opening import changed
from loader_server.sources.source import BadRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

    from numpy.typing import NDArray

__all__ = [
    "WholeLines",
    "count_lines",
    "cut_lines",
    "digest_of",
    "digests_of",
    "spans_of",
    "taken_apart",
    "unusable_line",
]

_BLOCK_BYTES = 2**20
#: A piece ends with the line in which it has so many bytes.
_PIECE_BYTES = 2**23
_NEWLINE, _RETURN = b"\n\r"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


# --- cutting ---


def count_lines(file: BinaryIO) -> int:
    """How many there are."""
    lines, last = 0, b"\n"
    while block := file.read(_BLOCK_BYTES):
        lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def cut_lines(file: BinaryIO, rows: int) -> Iterator[tuple[int, int, int]]:
    """Where a file can be cut between lines: from, to, and how many lines there are between, at most so many."""
    start = held = last = 0
    for ends, position in _line_ends(file):
        taken = 0
        while len(ends) - taken >= rows - held:
            taken += rows - held
            yield start, int(ends[taken - 1]), rows
            start, held = int(ends[taken - 1]), 0
        held += len(ends) - taken
        last = int(ends[-1]) if len(ends) else last
        if held and position - start >= _PIECE_BYTES:
            yield start, last, held
            start, held = last, 0
    if held:
        yield start, last, held


def spans_of(file: BinaryIO, counts: Iterable[int], where: str) -> Iterator[tuple[int, int]]:
    """Where a file can be cut so that each piece has so many lines: from and to."""
    blocks = _line_ends(file)
    ends, taken, start = np.zeros(0, np.int64), 0, 0
    for count in counts:
        while len(ends) - taken < count:
            more = next(blocks, None)
            if more is None:
                raise changed(f"{count} lines from byte {start} on", "fewer", where)
            ends, taken = np.concatenate([ends[taken:], more[0]]), 0
        taken += count
        yield start, int(ends[taken - 1])
        start = int(ends[taken - 1])


def _line_ends(file: BinaryIO) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Block after block: where lines end, and where the block does; the last line may lack its end."""
    position = last = 0
    while block := file.read(_BLOCK_BYTES):
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE) + (position + 1)
        position += len(block)
        last = int(ends[-1]) if len(ends) else last
        yield ends, position
    if last < position:
        yield np.array([position]), position


# --- taking apart ---


@dataclass(frozen=True, slots=True)
class WholeLines:
    """Lines of a file: all their bytes, where in these each line begins, how many bytes and characters it has.

    A line that is not UTF-8 has -1 characters.
    """

    data: bytes
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    characters: NDArray[np.int64]

    def line(self, number: int) -> bytes:
        """The bytes of one line."""
        return self.data[self.starts[number] : self.starts[number] + self.sizes[number]]


def taken_apart(data: bytes, *, begins_file: bool) -> WholeLines:
    """The lines that these bytes are."""
    starts, sizes = _starts_and_sizes(data, begins_file=begins_file)
    return WholeLines(data, starts, sizes, _characters(data, starts, sizes))


def _starts_and_sizes(data: bytes, *, begins_file: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    every = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(every == _NEWLINE)
    if data and not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    sizes = ends - starts
    sizes -= (sizes > 0) & (every[ends - 1] == _RETURN)
    if begins_file and data.startswith(_BYTE_ORDER_MARK):
        starts[0] += len(_BYTE_ORDER_MARK)
        sizes[0] -= len(_BYTE_ORDER_MARK)
    return starts, sizes


def _characters(data: bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    if data.isascii() or not len(starts):
        return sizes
    try:
        data.decode()
    except UnicodeDecodeError:
        places = zip(starts.tolist(), sizes.tolist(), strict=True)
        return np.array([_characters_or_less(data[start : start + size]) for start, size in places], np.int64)
    # All bytes begin a character, but for those that continue one.
    begin = np.append(np.frombuffer(data, np.uint8) & 0xC0 != 0x80, [False])
    between = np.diff(starts, append=len(begin)) - sizes
    between[-1] -= 1  # what was appended begins none
    return np.add.reduceat(begin, starts, dtype=np.int64) - between


def _characters_or_less(line: bytes) -> int:
    try:
        return len(line.decode())
    except UnicodeDecodeError:
        return -1


def digests_of(lines: WholeLines, which: NDArray[np.int64]) -> NDArray[np.int64]:
    """The digests of these lines' bytes."""
    data, starts = lines.data, lines.starts[which]
    places = zip(starts.tolist(), (starts + lines.sizes[which]).tolist(), strict=True)
    return np.array([digest_of(data[start:stop]) for start, stop in places], np.int64)


def digest_of(line: bytes) -> int:
    """A digest of bytes, as a column of numbers holds it."""
    digest = xxhash.xxh3_64_intdigest(line)
    return digest - 2**64 if digest >= 2**63 else digest


def unusable_line(where: str, line: int, content: bytes) -> BadRow:
    """The bad row of a line that is empty, or not UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        detail = f"expected UTF-8, got the byte 0x{content[error.start]:02x} after {error.start} others"
        return BadRow(where, line, "not_utf8", detail)
    return BadRow(where, line, "empty_line", "expected a text, got none")
