"""The lines source: text files in UTF-8, a sample a line, under the key `text`.

Rules: several files count as one, in their order; lengths are characters, that is Unicode code points, without the end
of the line, be it of Unix or of Windows. The index has each line's place and a digest of its bytes: a line is read from
its place, and one that is no longer what was indexed is refused. Files may be larger than memory: pieces are ranges of
bytes that begin and end with a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from loader_server.sources.files import changed
from loader_server.sources.source import BadRow, Found, Indexed, Inventory, Source
from shared.config import setting, texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from shared.wire.layout import Field

__all__ = ["LinePiece", "LinesSettings", "LinesSource"]

_BLOCK_BYTES = 2**20
#: A piece ends with the line in which it has so many bytes.
_PIECE_BYTES = 2**23
_NEWLINE = ord("\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesSettings:
    """What a stream with source = "lines" says besides."""

    paths: tuple[str, ...] = setting(
        texts, "text files in UTF-8, a sample a line, relative to the job file; also folders and patterns such as *.txt"
    )


@dataclass(frozen=True, slots=True)
class LinePiece:
    """Whole lines of one file, which is the `file`th, from byte `start` to before `stop`; `line` is the first one's
    number in it, from 1, and `row` its number among all lines.
    """

    path: str
    file: int
    start: int
    stop: int
    line: int
    row: int


class LinesSource(Source):
    """Lines of text. Columns: of each sample the file (counted from 0), the line, where its bytes begin, how many they
    are, their digest, and how many characters they make.
    """

    Settings = LinesSettings
    piece_rows = 20_000
    settings: LinesSettings

    @property
    def fields(self) -> tuple[Field, ...]:
        """None: a text becomes numbers in a transform."""
        return ()

    # --- while an index is made ---

    def stamp(self) -> str:
        """Of the files."""
        return self.files.stamp(self.files.found(self.settings.paths, ".txt"))

    def survey(self) -> Inventory:
        """Count the lines."""
        paths = self.files.found(self.settings.paths, ".txt")
        origin = self.files.origin(paths)
        total = 0
        for path in paths:
            with self.files.open(path) as file:
                total += _count_lines(file)
        return Inventory(total=total, pieces=lambda rows: self._pieces(paths, rows), origin=origin)

    def _pieces(self, paths: Sequence[str], rows: int) -> Iterator[LinePiece]:
        row = 0
        for number, path in enumerate(paths):
            line = 1
            with self.files.open(path) as file:
                for start, stop, lines in _ranges(file, rows):
                    yield LinePiece(path, number, start, stop, line, row)
                    line, row = line + lines, row + lines

    def probe(self, piece: LinePiece) -> Found:
        """Take the lines apart."""
        data, where = self.files.read(piece.path, piece.start, piece.stop - piece.start), self.files.where(piece.path)
        good: list[tuple[int, int, int, int]] = []
        bad: dict[int, BadRow] = {}
        offset = piece.start
        ascii_only = data.isascii()
        for number, whole in enumerate(data.removesuffix(b"\n").split(b"\n") if data else ()):
            line, begin = _stripped(whole, offset)
            offset += len(whole) + 1
            try:
                characters = len(line) if ascii_only else len(line.decode())
            except UnicodeDecodeError as error:
                detail = f"expected UTF-8, got the byte 0x{line[error.start]:02x} after {error.start} others"
                bad[piece.row + number] = BadRow(where, piece.line + number, "not_utf8", detail)
                continue
            if characters:
                good.append((number, begin, len(line), characters))
                continue
            bad[piece.row + number] = BadRow(where, piece.line + number, "empty_line", "expected a text, got none")
        return self._found(piece, data, good, bad)

    @staticmethod
    def _found(piece: LinePiece, data: bytes, good: list[tuple[int, int, int, int]], bad: dict[int, BadRow]) -> Found:
        numbers, begins, sizes, characters = np.array(good, np.int64).reshape(-1, 4).T
        starts = (begins - piece.start).tolist()
        places = zip(starts, sizes.tolist(), strict=True)
        digests = [xxhash.xxh3_64_intdigest(data[start : start + size]) for start, size in places]
        columns = {
            "file": np.full(len(good), piece.file),
            "line": piece.line + numbers,
            "offset": begins,
            "bytes": sizes,
            "digest": np.array(digests, np.uint64).view(np.int64),
            "length_text": characters,
        }
        return Found(rows=(piece.row + numbers).tolist(), numbers=columns, bad=bad)

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index, if the files have the sizes that they had."""
        self.files.refuse_changed(indexed.origin, indexed.place)
        self.indexed = indexed
        self._columns = indexed.numbers
        self._paths = [facts["path"] for facts in indexed.origin]

    @property
    def parts(self) -> tuple[int, ...]:
        """Where each file starts that has samples."""
        return tuple(np.flatnonzero(np.diff(self._columns["file"], prepend=-1)).tolist())

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """The bytes of each line."""
        return map(self._read, samples)

    def _read(self, sample: int) -> bytes:
        columns, sample = self._columns, self.checked(sample)
        path = self._paths[columns["file"][sample]]
        raw = self.files.read(path, int(columns["offset"][sample]), int(columns["bytes"][sample]))
        if xxhash.xxh3_64_intdigest(raw) != int(columns["digest"][sample]) % 2**64:
            expected = f"the line that was indexed ({columns['bytes'][sample]} bytes)"
            raise changed(expected, "other bytes", "{}, line {}".format(*self.place(sample)))
        return raw

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:  # noqa: ARG002 - the bytes say all
        """The text."""
        return {"text": raw.decode()}

    def name(self, sample: int) -> str:
        """The file as the job file names it, and the line."""
        return f"{self._paths[self._columns['file'][self.checked(sample)]]}:{self._columns['line'][sample]}"

    def place(self, sample: int) -> tuple[str, int]:
        """The file and the line."""
        return self.files.where(self._paths[self._columns["file"][sample]]), int(self._columns["line"][sample])

    def identity(self, sample: int) -> str:
        """The file and the line's bytes, so that a line keeps it when others come or go; equal lines share one."""
        columns = self._columns
        digest = int(columns["digest"][sample]) % 2**64
        return f"{self._paths[columns['file'][sample]]}, a line of {columns['bytes'][sample]} bytes, {digest:016x}"


def _stripped(whole: bytes, offset: int) -> tuple[bytes, int]:
    """A line without what marks its end, or the file's beginning; and where it begins."""
    line = whole.removesuffix(b"\r")
    if not offset and line.startswith(_BYTE_ORDER_MARK):
        return line.removeprefix(_BYTE_ORDER_MARK), len(_BYTE_ORDER_MARK)
    return line, offset


def _ranges(file: BinaryIO, rows: int) -> Iterator[tuple[int, int, int]]:
    """Where a file can be cut between lines: from, to, and how many lines there are between."""
    start = held = position = last_end = 0
    while block := file.read(_BLOCK_BYTES):
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE) + position + 1
        position += len(block)
        taken = 0
        while len(ends) - taken >= rows - held:
            taken += rows - held
            yield start, int(ends[taken - 1]), rows
            start, held = int(ends[taken - 1]), 0
        held += len(ends) - taken
        last_end = int(ends[-1]) if len(ends) else last_end
        if held and position - start >= _PIECE_BYTES:
            yield start, last_end, held
            start, held = last_end, 0
    if position > start:
        yield start, position, held + (position > last_end)


def _count_lines(file: BinaryIO) -> int:
    lines, last = 0, b"\n"
    while block := file.read(_BLOCK_BYTES):
        lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")
