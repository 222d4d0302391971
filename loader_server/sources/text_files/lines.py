"""The lines source: text files in UTF-8, each line a sample, under the key `text`.

Rules: lengths are characters, that is Unicode code points, without the end of the line. A line that is empty or not
UTF-8 is a bad row. The base class, `LineSource`, knows where a line is, and whether it has changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.source import Found, texts_read
from loader_server.sources.text_files.line_source import LinePiece, LineSource
from loader_server.sources.text_files.whole_lines import unusable_line
from shared.settings.parsers import setting, texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loader_server.sources.batch_columns import Columns
    from shared.wire.batch_layout import Field

__all__ = ["LinesSettings", "LinesSource"]


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

    @property
    def fields(self) -> tuple[Field, ...]:
        """No fields: a text becomes numbers in a transform."""
        return ()

    def probe(self, piece: LinePiece) -> Found:
        """Measure the lines of a piece; empty lines and those that are not UTF-8 become bad rows."""
        lines, where = self._lines_of(piece), self.files.where(piece.path)
        good = np.flatnonzero(lines.characters > 0)
        bad = {
            piece.row + number: unusable_line(where, piece.line + number, lines.line(number))
            for number in np.flatnonzero(lines.characters <= 0).tolist()
        }
        columns = self._columns_of(piece, lines, good) | {"length_text": lines.characters[good]}
        return Found(rows=(piece.row + good).tolist(), numbers=columns, bad=bad)

    def texts(self, key: str) -> Iterator[Sequence[str]] | None:
        """Return the lines, read again block by block; None for another key or for remote files."""
        return texts_read(self, key) if key == "text" and not self.files.are_remote else None

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the line as a string under `text`."""
        return {"text": raw.decode()}

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns:
        """Return the lines as one column of strings under `text`."""
        return {"text": list(map(bytes.decode, raw))}
