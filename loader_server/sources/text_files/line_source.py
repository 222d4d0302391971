"""What sources whose samples are lines of text files have in common: where a line is, and whether it has changed.

Rules: the index has each line's place and a digest of its bytes: a line is read from its place, and one that has
changed since indexing is refused. Subclasses know what a line means.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from loader_server.sources.files.opening import changed
from loader_server.sources.source import Indexed, Inventory, Source
from loader_server.sources.text_files.whole_lines import (
    WholeLines,
    count_lines,
    cut_lines,
    digest_of,
    digests_of,
    taken_apart,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["LinePiece", "LineSource"]


@dataclass(frozen=True, slots=True)
class LinePiece:
    """Whole lines of file number `file`, from byte `start` to before `stop`; `line` is the first one's number there,
    from 1, and `row` its number among all lines.
    """

    path: str
    file: int
    start: int
    stop: int
    line: int
    row: int


class LineSource(Source):
    """A sample is a line of one of several files, which count as one, in their order. Columns: each sample's file
    (counted from 0) and line, where its bytes begin, how many there are, and their digest.
    """

    piece_rows = 20_000
    measured_rows = 1024
    #: The suffixes of files in a folder that count.
    suffixes: ClassVar[tuple[str, ...]]

    #: The files that were looked at when this was opened.
    _origin: list[dict[str, Any]] | None = None

    # --- while an index is made ---

    def _found_paths(self) -> list[str]:
        return self.files.found(self.settings.paths, *self.suffixes)

    def stamp(self) -> str:
        """The stamp of the files."""
        return self.files.stamp(self._found_paths())

    def survey(self) -> Inventory:
        """Count the lines."""
        paths = self._found_paths()
        origin = self.files.origin(paths)
        total = 0
        for path in paths:
            self.files.refuse_no_text(path)
            with self.files.open(path) as file:
                total += count_lines(file)
        return Inventory(total=total, pieces=lambda rows: self._pieces(paths, rows), origin=origin)

    def _pieces(self, paths: Sequence[str], rows: int) -> Iterator[LinePiece]:
        row = 0
        for number, path in enumerate(paths):
            line = 1
            with self.files.open(path) as file:
                for start, stop, lines in cut_lines(file, rows):
                    yield LinePiece(path, number, start, stop, line, row)
                    line, row = line + lines, row + lines

    def _lines_of(self, piece: LinePiece) -> WholeLines:
        data = self.files.read(piece.path, piece.start, piece.stop - piece.start)
        return taken_apart(data, begins_file=not piece.start)

    @staticmethod
    def _columns_of(piece: LinePiece, lines: WholeLines, which: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """The columns of these lines of a piece."""
        return {
            "file": np.full(len(which), piece.file),
            "line": piece.line + which,
            "offset": piece.start + lines.starts[which],
            "bytes": lines.sizes[which],
            "digest": digests_of(lines, which),
        }

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index, if the files have the sizes that they had; they are looked at only once, however many pieces
        have to be measured.
        """
        if self._origin is not indexed.origin:
            self.files.refuse_changed(indexed.origin, indexed.place)
            self._origin = indexed.origin
            self._paths = [facts["path"] for facts in indexed.origin]
            self._where = cache(self.files.where)
        self.indexed = indexed
        self._columns = indexed.numbers

    @property
    def parts(self) -> tuple[int, ...]:
        """Where each file starts that has samples."""
        return tuple(np.flatnonzero(np.diff(self._columns["file"], prepend=-1)).tolist())

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Begin to fetch their lines, if they are remote."""
        if self.files.are_remote:
            files, offsets, sizes = (self._columns[name][samples].tolist() for name in ("file", "offset", "bytes"))
            self.files.expect(zip((self._paths[file] for file in files), offsets, sizes, strict=True))

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """The bytes of each line."""
        known = self.all_checked(samples)
        files, offsets, sizes, digests = (
            self._columns[name][known].tolist() for name in ("file", "offset", "bytes", "digest")
        )
        lines = self.files.read_all(zip(map(self._paths.__getitem__, files), offsets, sizes, strict=True))
        for sample, raw, digest in zip(samples, lines, digests, strict=True):
            if digest_of(raw) != digest:
                where, line = self.place(sample)
                raise changed(f"the line that was indexed ({len(raw)} bytes)", "other bytes", f"{where}, line {line}")
            yield raw

    def name(self, sample: int) -> str:
        """The file as the job file names it, and the line."""
        return f"{self._paths[self._columns['file'][self.checked(sample)]]}:{self._columns['line'][sample]}"

    def place(self, sample: int) -> tuple[str, int]:
        """The file and the line."""
        return self._where(self._paths[self._columns["file"][sample]]), int(self._columns["line"][sample])

    def identity(self, sample: int) -> str:
        """The file and the line's bytes, so that it does not depend on other lines; equal lines share it."""
        columns = self._columns
        digest = int(columns["digest"][sample]) % 2**64
        return f"{self._paths[columns['file'][sample]]}, a line of {columns['bytes'][sample]} bytes, {digest:016x}"
