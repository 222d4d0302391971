"""Sources whose samples are lines of text files: the base class of all, and the lines source.

Rules: the index has each line's place and a digest of its bytes; a line is read from its place, and a line that has
changed since indexing is refused. Subclasses know what a line means: for the lines source a text in UTF-8, under the
key `text`, whose length is its characters, that is Unicode code points, without the end of the line. A line that is
empty or not UTF-8 is a bad row there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from operator import add, getitem
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from loader_server.sources.files.file_facts import changed
from loader_server.sources.files.held_files import HeldFiles
from loader_server.sources.files.same_files import digest_of_number, plain_digest, plain_digests
from loader_server.sources.source import Found, Indexed, Inventory, Source
from loader_server.sources.text_blocks import texts_read
from loader_server.sources.text_files.whole_lines import (
    WholeLines,
    count_lines,
    cut_lines,
    digests_of,
    taken_apart,
    unusable_line,
)
from shared.settings.parsers import setting, texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns
    from shared.wire.batch_layout import Field

__all__ = ["LinePiece", "LineSource", "LinesSettings", "LinesSource", "TextSource"]


@dataclass(frozen=True, slots=True)
class LinePiece:
    """So many whole `lines` of file number `file`, from byte `start` to before `stop`.

    `line` is the first line's number in its file, from 1, and `row` its number among the lines of all files.
    """

    path: str
    file: int
    start: int
    stop: int
    line: int
    row: int
    lines: int


class TextSource(Source):
    """Base of all sources of lines: their files, which are compared with the index once, and split into lines."""

    measured_rows = 1024
    #: The keys whose values are texts as they stand in the files.
    text_keys: Sequence[str] = ("text",)

    #: The origin whose files `open` has checked, so that opening again with the same one checks nothing.
    _origin: list[dict[str, Any]] | None = None
    _held: HeldFiles

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return (): a text becomes numbers only in a transform."""
        return ()

    def _count(self, path: str) -> int:
        """Return the number of lines of a file; raise a DataError if it is no text or cannot be opened.

        Raise a ReadError if a remote file cannot be fetched, and an OSError if the disk fails. Other errors of
        `refuse_no_text`, and of reading a remote file, pass through, such as a SettingsError.
        """
        self.files.refuse_no_text(path)
        with self.files.open(path) as file:
            return count_lines(file)

    def _lines_between(self, path: str, start: int, stop: int, count: int) -> WholeLines:
        """Read these bytes of a file, and split them into lines; raise a ReadError if they are not `count` lines.

        Raise it too if the file ends before, or a remote one cannot be fetched, a DataError if one is gone when it is
        first looked at, and an OSError if a local one cannot be read. SettingsError and MachineError of `read` pass
        through.
        """
        lines = taken_apart(self.files.read(path, start, stop - start), begins_file=not start)
        # Somebody has rewritten the file since it was cut into pieces: its lines would count as other rows.
        if len(lines.starts) != count:
            raise changed(f"{count} lines in bytes {start} to {stop}", f"{len(lines.starts)}", self.files.where(path))
        return lines

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if a local file has another size, or a remote one another version.

        Raise it as well if a file is gone, a ReadError if its store cannot be asked, and a SettingsError if the store's
        library is missing. Opening again with the same origin compares nothing.
        """
        # A process that measures lengths opens the source once for each piece; the files are checked only the first
        # time.
        if self._origin is not indexed.origin:
            self.files.refuse_changed(indexed.origin, indexed.place)
            self._origin = indexed.origin
            self._paths = [facts["path"] for facts in indexed.origin]
            self._where = cache(self.files.where)
            self._held = HeldFiles(self.files, indexed.origin)
        self.indexed = indexed
        self._columns = indexed.numbers

    @property
    def reads_at_once(self) -> bool:  # type: ignore[override]
        """Return whether all files are held in memory by now."""
        return self._held.has_all

    def _read_lines(self, paths: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of these lines, fewer where a file is shorter than it was.

        Raise what `read_all` raises, or an OSError if a file cannot be opened.
        """
        contents = self._held.contents(set(paths))
        if contents is None:
            return self.files.read_all(paths, offsets, sizes)
        # Without a line of Python for each: there are hundreds in a batch.
        places: Iterator[slice] = map(slice, offsets, map(add, offsets, sizes))
        return map(getitem, map(contents.__getitem__, paths), places)  # type: ignore[arg-type] # of its overloads

    def close(self) -> None:
        """Close the files; what is read later opens them again."""
        if self._origin is not None:
            self._held.close()
        super().close()

    def texts(self, key: str) -> Iterator[Sequence[str]] | None:
        """Return the texts under this key, read again block by block; None for another key or for remote files.

        While they are read, raise a ReadError if they have changed or the disk fails; errors of `decode_all` pass
        through.
        """
        return texts_read(self, key) if key in self.text_keys and not self.files.are_remote else None


class LineSource(TextSource):
    """Base of sources whose samples are the lines of several files, numbered through in the files' order.

    Index columns: each sample's file (counted from 0) and line, where its bytes begin, how many there are, and their
    digest.
    """

    piece_rows = 20_000
    #: Suffixes of the files that are taken from a folder.
    suffixes: ClassVar[tuple[str, ...]]

    # --- while an index is made ---

    def _found_paths(self) -> list[str]:
        return self.files.found(self.settings.paths, *self.suffixes)

    def stamp(self) -> str:
        """Return a text that changes with any of the files.

        Raise a DataError if `paths` gives no file, a file twice or an unusable URL, a ReadError if a store cannot be
        asked, and a SettingsError if its library is missing or braces stand for too many names.
        """
        return self.files.stamp(self._found_paths())

    def survey(self) -> Inventory:
        """Count the lines of all files; raise a DataError for a file that is no text.

        Raise it too if there is no file, or one is named twice or absent; raise a ReadError if a store cannot be asked
        or a file not be fetched, a SettingsError if the store's library is missing or braces stand for too many names,
        and an OSError if the disk fails. The pieces read the files again. Other errors of `_count` pass through.
        """
        paths = self._found_paths()
        origin = self.files.origin(paths)
        total = sum(map(self._count, paths))
        return Inventory(total=total, pieces=lambda rows: self._pieces(paths, rows), origin=origin)

    def _pieces(self, paths: Sequence[str], rows: int) -> Iterator[LinePiece]:
        """Yield pieces of at most `rows` whole lines, file after file; raise a DataError if a file cannot be opened.

        An empty file has no piece. Raise a ReadError if a remote file cannot be fetched, and an OSError if the disk
        fails. Other errors of opening and reading a remote file pass through, such as a SettingsError.
        """
        row = 0
        for number, path in enumerate(paths):
            line = 1
            with self.files.open(path) as file:
                for start, stop, lines in cut_lines(file, rows):
                    yield LinePiece(path, number, start, stop, line, row, lines)
                    line, row = line + lines, row + lines

    def _lines_in(self, piece: LinePiece) -> WholeLines:
        """Read the lines of a piece; raise a ReadError if they are not as many as when it was cut.

        Other errors of `_lines_between` pass through.
        """
        return self._lines_between(piece.path, piece.start, piece.stop, piece.lines)

    @staticmethod
    def _columns_of(piece: LinePiece, lines: WholeLines, numbers: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Return the index columns of the lines with these numbers: `file`, `line`, `offset`, `bytes` and `digest`.

        Numbers count within the piece, and `bytes` is a line's size.
        """
        return {
            "file": np.full(len(numbers), piece.file),
            "line": piece.line + numbers,
            "offset": piece.start + lines.starts[numbers],
            "bytes": lines.sizes[numbers],
            "digest": digests_of(lines, numbers),
        }

    # --- once there is an index ---

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the first sample of each file that has samples, in the files' order; () without samples."""
        return tuple(np.flatnonzero(np.diff(self._columns["file"], prepend=-1)).tolist())

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Start fetching the byte ranges of these lines, if their files are remote.

        Raise a DataError if a file is gone when it is first looked at, or a ReadError if its store cannot be asked.
        SettingsError of `expect` passes through.
        """
        if self.files.are_remote:
            files, offsets, sizes = (self._columns[name][samples].tolist() for name in ("file", "offset", "bytes"))
            self.files.expect(zip((self._paths[file] for file in files), offsets, sizes, strict=True))

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of each line; raise a ReadError if they are not the indexed ones or cannot be fetched.

        Raise an IndexError if a sample's number is out of range, and an OSError if the disk fails or a file is gone.
        Other errors of `read_all` pass through, such as a SettingsError or a MachineError.
        """
        known = self.all_checked(samples)
        files, offsets, sizes = (self._columns[name][known].tolist() for name in ("file", "offset", "bytes"))
        lines = self._read_lines([self._paths[file] for file in files], offsets, sizes)
        for sample, raw, digest in zip(samples, lines, plain_digests(self._columns["digest"][known]), strict=True):
            if plain_digest(raw) != digest:
                where, line = self.place(sample)
                raise changed(f"the line that was indexed ({len(raw)} bytes)", "other bytes", f"{where}, line {line}")
            yield raw

    def name(self, sample: int) -> str:
        """Return the file as the job file names it, and the line; raise an IndexError if `sample` is out of range."""
        return f"{self._paths[self._columns['file'][self.checked(sample)]]}:{self._columns['line'][sample]}"

    def place(self, sample: int) -> tuple[str, int]:
        """Return the file, and the line's number in it, from 1; `sample` must be in range, which is not checked."""
        return self._where(self._paths[self._columns["file"][sample]]), int(self._columns["line"][sample])

    def identity(self, sample: int) -> str:
        """Return the file, and size and digest of the line: other lines do not matter; equal lines of a file share it.

        The number must be in range, which is not checked.
        """
        columns = self._columns
        path, nbytes = self._paths[columns["file"][sample]], columns["bytes"][sample]
        return f"{path}, a line of {nbytes} bytes, {digest_of_number(int(columns['digest'][sample]))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesSettings:
    """Further settings of a stream with source = "lines"."""

    paths: tuple[str, ...] = setting(
        texts,
        "text files in UTF-8, each line a sample, relative to the job file; also folders and patterns such as *.txt",
    )


class LinesSource(LineSource):
    """Source of lines of text. Index columns: those of a line, and its number of characters."""

    Settings = LinesSettings
    suffixes = (".txt",)
    settings: LinesSettings

    def probe(self, piece: LinePiece) -> Found:
        """Measure the lines of a piece; empty lines and those that are not UTF-8 become bad rows.

        Raise a ReadError if the file was rewritten since it was surveyed or cannot be fetched, and an OSError if the
        disk fails. Other errors of `_lines_between` pass through.
        """
        lines, where = self._lines_in(piece), self.files.where(piece.path)
        good = np.flatnonzero(lines.characters > 0)
        bad = {
            piece.row + number: unusable_line(where, piece.line + number, lines.line(number))
            for number in np.flatnonzero(lines.characters <= 0).tolist()
        }
        columns = self._columns_of(piece, lines, good) | {"length_text": lines.characters[good]}
        return Found(rows=(piece.row + good).tolist(), numbers=columns, bad=bad)

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the line as a string under `text`.

        Indexing has found it to be UTF-8; raise a UnicodeDecodeError for other bytes.
        """
        return {"text": raw.decode()}

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns:
        """Return the lines as one column of strings under `text`.

        Indexing has found them to be UTF-8; raise a UnicodeDecodeError for other bytes.
        """
        return {"text": list(map(bytes.decode, raw))}
