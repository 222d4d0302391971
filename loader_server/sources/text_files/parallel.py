"""The parallel source: two or more text files, such as a text and its translation; a sample is the same line of each.

Rules: all files have equally many lines, or the source is refused; a row is bad if any of its lines is; lengths are
characters. The index has each sample's place in each file, and one digest of all its lines.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import chain, tee
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.files.file_facts import changed
from loader_server.sources.files.same_files import digest_of_number, plain_digest, plain_digests, signed_digest
from loader_server.sources.source import Found, Inventory
from loader_server.sources.text_files.line_source import TextSource
from loader_server.sources.text_files.whole_lines import (
    cut_lines,
    spans_of,
    unusable_line,
)
from shared.errors import DataError
from shared.settings.parsers import by_key, setting, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns

__all__ = ["ParallelPiece", "ParallelSettings", "ParallelSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSettings:
    """Further settings of a stream with source = "parallel"."""

    paths: tuple[tuple[str, str], ...] = setting(
        by_key(text),
        "text files in UTF-8 of equally many lines, by the key that each line gets, relative to the job file: "
        '`{ source = "train.en", target = "train.de" }`',
    )


@dataclass(frozen=True, slots=True)
class ParallelPiece:
    """The same whole lines of all files: begin and end in each file, the first line's number, from 0, and how many."""

    spans: tuple[tuple[int, int], ...]
    row: int
    lines: int


class ParallelSource(TextSource):
    """Source whose samples are the same line of several files.

    Index columns: the line number, a digest of the line over all files, and for each file, by its number, where the
    line begins, its bytes, and its characters.
    """

    Settings = ParallelSettings
    piece_rows = 10_000
    settings: ParallelSettings

    def __init__(self, settings: ParallelSettings, base: Path) -> None:
        super().__init__(settings, base)
        self.text_keys = tuple(key for key, _ in settings.paths)
        self._names = tuple(name for _, name in settings.paths)
        self._places = tuple(map(self.files.where, self._names))

    # --- while an index is made ---

    def stamp(self) -> str:
        """Return a text that changes with any of the files; raise a ReadError if a store cannot be asked.

        Raise a SettingsError if the store's library is missing.
        """
        return self.files.stamp(self._names)

    def survey(self) -> Inventory:
        """Count the lines; raise a DataError if the files do not have equally many, or one is absent or no text.

        Raise a ReadError if a store cannot be asked or a file not be fetched, a SettingsError if the store's library is
        missing, and an OSError if the disk fails. Other errors of `_count` pass through.
        """
        origin = self.files.origin(self._names)
        counts = dict(zip(self._places, map(self._count, self._names), strict=True))
        if len(set(counts.values())) > 1:
            shortest = min(counts, key=counts.__getitem__)
            raise DataError(
                expected="equally many lines in each of the parallel files",
                got=", ".join(f"{count} in {path}" for path, count in counts.items()),
                where=shortest,
                remedy=f"It ends first, after line {counts[shortest]}: make the lines of all files match.",
            )
        return Inventory(total=next(iter(counts.values())), pieces=self._pieces, origin=origin)

    def _pieces(self, rows: int) -> Iterator[ParallelPiece]:
        """Yield pieces of the same whole lines of all files; raise a ReadError if one has fewer lines than the first.

        The first file decides how many lines a piece has; the others are cut after as many lines, wherever their bytes
        end, and further lines are left out. Raise a DataError if a file cannot be opened, a ReadError if it cannot be
        fetched, and an OSError if the disk fails. Other errors of opening and reading a remote file pass through.
        """
        with contextlib.ExitStack() as opened:
            first, *others = [opened.enter_context(self.files.open(name)) for name in self._names]
            # The first file is cut lazily, once; the copies only pass on line counts. `zip` advances all in step, so
            # `tee` never holds more than one cut.
            cuts, *same_cuts = tee(cut_lines(first, rows), len(self._names))
            counts = [(lines for *_, lines in same) for same in same_cuts]
            spans = map(spans_of, others, counts, self._places[1:])
            row = 0
            for (start, stop, lines), *same in zip(cuts, *spans, strict=True):
                yield ParallelPiece(((start, stop), *same), row, lines)
                row += lines

    def probe(self, piece: ParallelPiece) -> Found:
        """Measure the lines of all files; a row with an empty or undecodable line becomes a bad row.

        Raise a ReadError if a file was rewritten since it was surveyed, so that the piece has another number of lines,
        or cannot be fetched, and an OSError if the disk fails. Other errors of `_lines_between` pass through.
        """
        spans = zip(self._names, piece.spans, strict=True)
        files = [self._lines_between(name, *span, piece.lines) for name, span in spans]
        usable = np.array([lines.characters > 0 for lines in files])
        good = np.flatnonzero(usable.all(axis=0))
        spoiled = np.flatnonzero(~usable.all(axis=0))
        # A row is blamed on the first file whose line spoils it.
        bad = {
            piece.row + number: unusable_line(self._places[file], piece.row + 1 + number, files[file].line(number))
            for number, file in zip(spoiled.tolist(), np.argmin(usable[:, spoiled], axis=0).tolist(), strict=True)
        }
        # No line contains a newline, so that different lines never join to the same bytes.
        together = (b"\n".join(lines.line(number) for lines in files) for number in good.tolist())
        columns = {
            "line": piece.row + 1 + good,
            "digest": np.fromiter(map(signed_digest, together), np.int64, len(good)),
        }
        for place, (lines, (start, _)) in enumerate(zip(files, piece.spans, strict=True)):
            columns[f"offset_{place}"] = start + lines.starts[good]
            columns[f"bytes_{place}"] = lines.sizes[good]
            columns[f"characters_{place}"] = lines.characters[good]
        return Found(rows=(piece.row + good).tolist(), numbers=columns, bad=bad)

    # --- once there is an index ---

    @property
    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """Return the number of characters of each line, by key."""
        return {key: self._columns[f"characters_{place}"] for place, key in enumerate(self.text_keys)}

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield each sample's lines, joined by newlines; raise a ReadError if they are not the indexed ones.

        Raise it too if they cannot be fetched, an IndexError if a sample's number is out of range, and an OSError if
        the disk fails or a file is gone. Other errors of `read_all` pass through, such as a SettingsError or a
        MachineError.
        """
        known = self.all_checked(samples)
        columns = self._columns
        lines = (self._read_lines(*self._extents(file, known)) for file in range(len(self._names)))
        together = map(b"\n".join, zip(*lines, strict=True))
        for sample, raw, digest in zip(samples, together, plain_digests(columns["digest"][known]), strict=True):
            if plain_digest(raw) != digest:
                raise changed(
                    "the lines that were indexed",
                    "other bytes",
                    f"{', '.join(self._places)}, line {columns['line'][sample]}",
                )
            yield raw

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Start fetching the byte ranges of these lines in all files, if they are remote.

        Raise a DataError if a file is gone when it is first looked at, or a ReadError if its store cannot be asked.
        SettingsError of `expect` passes through.
        """
        if self.files.are_remote:
            extents = (self._extents(file, samples) for file in range(len(self._names)))
            self.files.expect(chain.from_iterable(zip(*columns, strict=True) for columns in extents))

    def _extents(self, file: int, samples: NDArray[np.int64]) -> tuple[list[str], list[int], list[int]]:
        """Return the paths, the offsets and the sizes of the samples' lines in one file."""
        offsets, sizes = (self._columns[f"{column}_{file}"][samples].tolist() for column in ("offset", "bytes"))
        return [self._names[file]] * len(samples), offsets, sizes

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the lines as strings, by key.

        Raise a ValueError if there are not as many lines as keys, or they are not UTF-8.
        """
        return dict(zip(self.text_keys, raw.decode().split("\n"), strict=True))

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns:
        """Return one column of strings for each key, from at least one sample.

        All samples are decoded as one text and then split; raise a ValueError if there are not as many lines in all as
        samples times keys, or they are not UTF-8.
        """
        lines = b"\n".join(raw).decode().split("\n")
        if len(lines) != len(raw) * len(self.text_keys):
            raise ValueError(f"{len(lines)} lines of {len(raw)} samples")
        return {key: lines[place :: len(self.text_keys)] for place, key in enumerate(self.text_keys)}

    def name(self, sample: int) -> str:
        """Return the files as the job file names them, and the line.

        Raise an IndexError if `sample` is out of range.
        """
        return f"{', '.join(self._names)}:{self._columns['line'][self.checked(sample)]}"

    def place(self, sample: int) -> tuple[str, int]:
        """Return the first file, and the line's number in each file, from 1.

        The sample's number must be in range, which is not checked.
        """
        return self._places[0], int(self._columns["line"][sample])

    def identity(self, sample: int) -> str:
        """Return the files and the digest of the lines, which stay when other rows come or go; equal rows share it.

        The sample's number must be in range, which is not checked.
        """
        return f"{', '.join(self._names)}, lines of digest {digest_of_number(int(self._columns['digest'][sample]))}"
