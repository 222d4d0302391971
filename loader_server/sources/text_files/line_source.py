"""Base class of sources whose samples are lines of text files: where a line is, and whether it has changed.

Rules: the index has each line's place and a digest of its bytes; a line is read from its place, and a line that has
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
    """Whole lines of file number `file`, from byte `start` to before `stop`.

    `line` is the first line's number in its file, from 1, and `row` its number among the lines of all files.
    """

    path: str
    file: int
    start: int
    stop: int
    line: int
    row: int


class LineSource(Source):
    """Base of sources whose samples are the lines of several files, numbered through in the files' order.

    Index columns: each sample's file (counted from 0) and line, where its bytes begin, how many there are, and their
    digest.
    """

    piece_rows = 20_000
    measured_rows = 1024
    #: Suffixes of the files that are taken from a folder.
    suffixes: ClassVar[tuple[str, ...]]

    #: The origin whose files `open` has checked, so that opening again with the same one checks nothing.
    _origin: list[dict[str, Any]] | None = None

    # --- while an index is made ---

    def _found_paths(self) -> list[str]:
        return self.files.found(self.settings.paths, *self.suffixes)

    def stamp(self) -> str:
        """Return a text that changes with any of the files."""
        return self.files.stamp(self._found_paths())

    def survey(self) -> Inventory:
        """Count the lines of all files; raise a DataError for a file that is no text."""
        paths = self._found_paths()
        origin = self.files.origin(paths)
        total = 0
        for path in paths:
            self.files.refuse_no_text(path)
            with self.files.open(path) as file:
                total += count_lines(file)
        return Inventory(total=total, pieces=lambda rows: self._pieces(paths, rows), origin=origin)

    def _pieces(self, paths: Sequence[str], rows: int) -> Iterator[LinePiece]:
        """Yield pieces of at most `rows` whole lines, file after file."""
        row = 0
        for number, path in enumerate(paths):
            line = 1
            with self.files.open(path) as file:
                for start, stop, lines in cut_lines(file, rows):
                    yield LinePiece(path, number, start, stop, line, row)
                    line, row = line + lines, row + lines

    def _lines_of(self, piece: LinePiece) -> WholeLines:
        """Read a piece, and split it into lines."""
        data = self.files.read(piece.path, piece.start, piece.stop - piece.start)
        return taken_apart(data, begins_file=not piece.start)

    @staticmethod
    def _columns_of(piece: LinePiece, lines: WholeLines, which: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Return the index columns of those lines of a piece that `which` numbers."""
        return {
            "file": np.full(len(which), piece.file),
            "line": piece.line + which,
            "offset": piece.start + lines.starts[which],
            "bytes": lines.sizes[which],
            "digest": digests_of(lines, which),
        }

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if a local file has another size, or a remote one another version.

        A process that measures lengths opens the source once for each piece; the files are checked only the first time.
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
        """The first sample of each file that has samples."""
        return tuple(np.flatnonzero(np.diff(self._columns["file"], prepend=-1)).tolist())

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Start fetching the byte ranges of these lines, if their files are remote."""
        if self.files.are_remote:
            files, offsets, sizes = (self._columns[name][samples].tolist() for name in ("file", "offset", "bytes"))
            self.files.expect(zip((self._paths[file] for file in files), offsets, sizes, strict=True))

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of each line; raise a ReadError if they are not the indexed ones."""
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
        """Return the file as the job file names it, and the line."""
        return f"{self._paths[self._columns['file'][self.checked(sample)]]}:{self._columns['line'][sample]}"

    def place(self, sample: int) -> tuple[str, int]:
        """Return the file and the line."""
        return self._where(self._paths[self._columns["file"][sample]]), int(self._columns["line"][sample])

    def identity(self, sample: int) -> str:
        """Return the file, and size and digest of the line: other lines do not matter; equal lines share it."""
        columns = self._columns
        digest = int(columns["digest"][sample]) % 2**64
        return f"{self._paths[columns['file'][sample]]}, a line of {columns['bytes'][sample]} bytes, {digest:016x}"
