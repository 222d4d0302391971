"""Text files as whole lines: counted, cut into pieces that begin and end with a line, and split.

Rules: files may be larger than memory. Line ends (Unix or Windows) and a byte order mark are no part of a line. Lines
are handled many at a time, because a single line costs little and the calls would dominate. Knows nothing of what the
lines mean, except whether they are UTF-8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from loader_server.sources.files.file_facts import changed
from loader_server.sources.files.same_files import signed_digest
from loader_server.sources.source import BadRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

__all__ = [
    "WholeLines",
    "count_lines",
    "cut_lines",
    "digests_of",
    "spans_of",
    "taken_apart",
    "unusable_line",
]

#: Bytes of a file that are read at a time to count or cut its lines.
_BLOCK_BYTES = 2**20
#: A piece that has this many bytes ends with the last whole line read so far.
_PIECE_BYTES = 2**23
_NEWLINE, _RETURN = b"\n\r"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


# --- cutting ---


def count_lines(file: BinaryIO) -> int:
    """Return the number of lines in a file; the last one counts without a newline, too.

    An empty file has none. What reading the file raises passes through.
    """
    lines, last = 0, b"\n"  # as if a line had just ended: an empty file has none
    while block := file.read(_BLOCK_BYTES):
        lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def cut_lines(file: BinaryIO, rows: int) -> Iterator[tuple[int, int, int]]:
    """Yield pieces of whole lines: where each begins and ends, and how many lines it has; none of an empty file.

    A piece has at most `rows` lines, and ends earlier once it has `_PIECE_BYTES` bytes, so that long lines do not fill
    memory. What reading the file raises passes through.
    """
    start = held = last = 0
    # `held` lines from `start` on are not in a piece yet; `taken` of this block's line ends are.
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
    """Yield where each piece begins and ends if pieces have these counts of lines, each at least 1.

    Raise a ReadError, which names the file by `where`, if it has fewer lines than that; further lines are left out.
    What reading the file raises passes through.
    """
    blocks = _line_ends(file)
    # `taken` of these line ends are in pieces that were yielded.
    ends, taken, start = np.zeros(0, np.int64), 0, 0
    for count in counts:
        while len(ends) - taken < count:
            more = next(blocks, None)
            # The lines were counted before; somebody has cut the file since.
            if more is None:
                raise changed(f"{count} lines from byte {start} on", "fewer", where)
            ends, taken = np.concatenate([ends[taken:], more[0]]), 0
        taken += count
        yield start, int(ends[taken - 1])
        start = int(ends[taken - 1])


def _line_ends(file: BinaryIO) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Yield for each block of a file where the lines in it end, behind their newlines, and where the block ends.

    If the last line has no newline, one more entry gives the end of the file as its end. An empty file has no entry.
    What reading the file raises passes through.
    """
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
    """Lines of a file: their bytes together, and where each line begins, its bytes and its characters.

    A line that is not UTF-8 has -1 characters.
    """

    data: bytes
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    characters: NDArray[np.int64]

    def line(self, number: int) -> bytes:
        """Return the bytes of the line with this number, from 0, without the end of the line."""
        return self.data[self.starts[number] : self.starts[number] + self.sizes[number]]


def taken_apart(data: bytes, *, begins_file: bool) -> WholeLines:
    """Split bytes into lines; `begins_file` is True if a byte order mark may stand at their beginning."""
    starts, sizes = _starts_and_sizes(data, begins_file=begins_file)
    return WholeLines(data, starts, sizes, _characters(data, starts, sizes))


def _starts_and_sizes(data: bytes, *, begins_file: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each line begins and its size, without newline, a carriage return at its end, and byte order mark.

    A byte order mark counts as such only at the beginning of a file. Both are empty without data.
    """
    every = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(every == _NEWLINE)
    if data and not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    sizes = ends - starts
    # The end of an empty first line is byte 0, and index -1 before it is the last byte: only lines with bytes count.
    sizes -= (sizes > 0) & (every[ends - 1] == _RETURN)
    if begins_file and data.startswith(_BYTE_ORDER_MARK):
        starts[0] += len(_BYTE_ORDER_MARK)
        sizes[0] -= len(_BYTE_ORDER_MARK)
    return starts, sizes


def _characters(data: bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of characters of each line, or -1 for a line that is not UTF-8.

    The newlines do not count.
    """
    if data.isascii() or not len(starts):
        return sizes
    # No byte of a longer character is a newline, so the text is valid as a whole exactly if each line is.
    try:
        data.decode()
    except UnicodeDecodeError:
        places = zip(starts.tolist(), sizes.tolist(), strict=True)
        return np.array([_characters_or_less(data[start : start + size]) for start, size in places], np.int64)
    # Every byte begins a character, except continuation bytes (0b10xxxxxx). Counting the beginnings between line starts
    # counts the bytes of line ends too (each begins a character), so these are subtracted. One False is appended
    # because `reduceat` refuses a start at the very end, which the line of a file has that is a byte order mark alone.
    begin = np.append(np.frombuffer(data, np.uint8) & 0xC0 != 0x80, [False])
    between = np.diff(starts, append=len(begin)) - sizes
    between[-1] -= 1  # the appended entry is no byte between lines
    return np.add.reduceat(begin, starts, dtype=np.int64) - between


def _characters_or_less(line: bytes) -> int:
    """Return the number of characters of one line, or -1 if it is not UTF-8."""
    try:
        return len(line.decode())
    except UnicodeDecodeError:
        return -1


def digests_of(lines: WholeLines, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the digest of each of the lines with these numbers, as a signed 64-bit integer."""
    data, starts = lines.data, lines.starts[numbers]
    places = zip(starts.tolist(), (starts + lines.sizes[numbers]).tolist(), strict=True)
    return np.array([signed_digest(data[start:stop]) for start, stop in places], np.int64)


def unusable_line(where: str, line: int, content: bytes) -> BadRow:
    """Return the bad row for a line: not_utf8 if it is not UTF-8, otherwise empty_line, unchecked; `line` is from 1."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        detail = f"expected UTF-8, got the byte 0x{content[error.start]:02x} after {error.start} others"
        return BadRow(where, line, "not_utf8", detail)
    return BadRow(where, line, "empty_line", "expected a text, got none")
