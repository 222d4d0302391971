"""Rows of manifests: CSV and JSON lines, one after another; unusable rows come with their line and the reason.

Rules: rows are read one at a time, so that a manifest may be larger than memory. A bad row is a value and not an
exception; a manifest that cannot be read at all is a DataError. Knows nothing about audio: whether the named files
exist is the source's business.
"""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from loader_server.sources.audio.stretches import Stretch
from loader_server.sources.source import BadRow
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from loader_server.sources.remote.remote_path import RemotePath

__all__ = [
    "AUDIO_COLUMNS",
    "OFFSET_COLUMN",
    "TEXT_COLUMNS",
    "Columns",
    "ManifestRow",
    "columns_of",
    "named_paths",
    "read_rows",
]

#: Names of the column with the audio file: ours, DeepSpeech's, NeMo's, Common Voice's; the first one present is used.
AUDIO_COLUMNS = ("audio", "wav_filename", "audio_filepath", "path")
#: Names of the column with the transcript.
TEXT_COLUMNS = ("text", "transcript", "sentence")
#: As in NeMo's manifests, a row with an offset is a stretch of a longer recording, in seconds.
OFFSET_COLUMN = "offset"
_DURATION_COLUMN = "duration"
#: The index keeps each column in two files, all of which are open at the same time.
_MOST_COLUMNS = 1000


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """A row as it stands in the manifest; `manifest` counts the manifests from 0."""

    manifest: int
    line: int
    path: str
    text: str
    others: tuple[str, ...]
    stretch: Stretch


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a manifest by their meaning; `text` is empty if there is no transcript."""

    audio: str
    text: str
    others: tuple[str, ...]


_WHOLE = Stretch()

_Cells: TypeAlias = "Mapping[str, str] | BadRow"


def columns_of(manifest: Path | RemotePath) -> Columns:
    """Return the columns of a manifest, from its header (CSV) or from all its objects (JSON lines).

    Raise a DataError if no column names audio files, or if there are too many columns.
    """
    names: dict[str, None] = {}
    if _is_csv(manifest):
        names = dict.fromkeys(_header(manifest))
    else:
        # One name too many is enough to refuse: all the names of an absurd manifest could fill memory.
        for _, cells in _json_cells(manifest):
            if not isinstance(cells, BadRow) and len(names) <= _MOST_COLUMNS:
                names.update(dict.fromkeys(cells))
    if len(names) > _MOST_COLUMNS:
        raise DataError(
            expected=f"at most {_MOST_COLUMNS} columns",
            got=str(len(names)),
            where=str(manifest),
            remedy="Each line is a recording: leave out what no transform needs, or turn rows into lines.",
        )
    audio = next((name for name in AUDIO_COLUMNS if name in names), "")
    text = next((name for name in TEXT_COLUMNS if name in names), "")
    if not audio:
        raise DataError(
            expected="a column " + " or ".join(f'"{name}"' for name in AUDIO_COLUMNS),
            got=f"the columns {', '.join(names)}" if names else "no columns",
            where=str(manifest),
            remedy="Rename the column that names the audio files.",
        )
    return Columns(audio, text, tuple(name for name in names if name not in (audio, text)))


def read_rows(
    manifest: Path | RemotePath, number: int, columns: Columns, others: tuple[str, ...]
) -> Iterator[ManifestRow | BadRow]:
    """Yield the rows of a manifest in order; `others` are the further columns of all manifests together.

    A row that cannot be used is yielded as a BadRow.
    """
    cells_of = _csv_cells if _is_csv(manifest) else _json_cells
    for line, cells in cells_of(manifest):
        if isinstance(cells, BadRow):
            yield cells
            continue
        missing = [name for name in (columns.audio, columns.text) if name and name not in cells]
        if missing or not cells[columns.audio]:
            name = missing[0] if missing else columns.audio
            yield BadRow(str(manifest), line, "missing_column", f'expected a value for the column "{name}", got none')
            continue
        text = cells[columns.text] if columns.text else ""
        stretch = _stretch(cells, manifest, line)
        if isinstance(stretch, BadRow):
            yield stretch
            continue
        further = tuple(cells.get(name, "") for name in others)
        row = ManifestRow(number, line, cells[columns.audio], text, further, stretch)
        yield _refused(row, manifest) or row


def _stretch(cells: Mapping[str, str], manifest: Path | RemotePath, line: int) -> Stretch | BadRow:
    """Return the row's stretch: the whole file without an offset, or a BadRow if its seconds are no numbers."""
    offset, duration = cells.get(OFFSET_COLUMN), cells.get(_DURATION_COLUMN)
    if not offset:
        return _WHOLE
    try:
        stretch = Stretch(float(offset), float(duration)) if duration else Stretch(float(offset))
    except ValueError:
        stretch = Stretch(math.nan)
    if not math.isfinite(stretch.start_s) or (duration and not math.isfinite(stretch.duration_s)):
        detail = f"expected seconds as offset and duration, got {offset} and {duration}"
        return BadRow(str(manifest), line, "malformed", detail)
    return stretch


def _refused(row: ManifestRow, manifest: Path | RemotePath) -> BadRow | None:
    """Return a BadRow if the row has text that is not UTF-8 or a zero byte in its path, else None."""
    try:
        "\n".join((row.path, row.text, *row.others)).encode()
    except UnicodeEncodeError:
        return BadRow(str(manifest), row.line, "not_utf8", "expected UTF-8, got other bytes")
    if "\0" in row.path:
        return BadRow(str(manifest), row.line, "malformed", "expected a path, got one with a zero byte")
    return None


def named_paths(manifest: Path | RemotePath) -> Iterator[str]:
    """Yield what stands in the columns that may name an audio file.

    Bad rows are included, as far as they can be parsed: a stamp has to change with every file that is named. This is
    quicker than `read_rows`.
    """
    if not _is_csv(manifest):
        for _, cells in _json_cells(manifest):
            yield from () if isinstance(cells, BadRow) else (cells[name] for name in AUDIO_COLUMNS if name in cells)
        return
    with manifest.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = _lists(csv.reader(file))
        places = [place for place, name in enumerate(next(rows, [])) if name.strip() in AUDIO_COLUMNS]
        for row in rows:
            for place in places:
                if place < len(row):
                    yield row[place]


def _lists(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield the rows as lists, and skip rows that cannot be parsed."""
    while True:
        # `csv.reader` can go on after an error, but `yield from` cannot: it is entered again for the following rows.
        try:
            yield from reader
        except csv.Error:
            continue
        return


def _is_csv(manifest: Path | RemotePath) -> bool:
    """Tell CSV from JSON lines by the suffix; raise a DataError for any other."""
    suffix = manifest.suffix.lower()
    if suffix not in (".csv", ".jsonl", ".json"):
        raise DataError(
            expected="a manifest that ends in .csv, .jsonl or .json (one object a line)",
            got=f'"{manifest.name}"',
            where=str(manifest),
            remedy="Rename it, or convert it.",
        )
    return suffix == ".csv"


def _header(manifest: Path | RemotePath) -> list[str]:
    """Return the column names of a CSV file; raise a DataError if its first line cannot be parsed."""
    with manifest.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        try:
            return [name.strip() for name in next(csv.reader(file), [])]
        except csv.Error as error:
            raise DataError(
                expected="a first line with the columns",
                got=str(error),
                where=str(manifest),
                remedy="Write it anew: a quote has no end, for example, or it is no CSV at all.",
            ) from None


def _csv_cells(manifest: Path | RemotePath) -> Iterator[tuple[int, _Cells]]:
    """Yield each row's line number and its cells by column, or a BadRow."""
    header = _header(manifest)
    # Bytes that are not UTF-8 pass as surrogates, so that `_refused` can name their row and the other rows stay good.
    with manifest.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file)
        next(reader, None)
        while True:
            line = reader.line_num + 1  # where the row begins; it may span several lines
            try:
                cells = next(reader, None)
            except csv.Error as error:
                yield line, BadRow(str(manifest), line, "malformed", str(error))
                continue
            if cells is None:
                return
            if len(cells) > len(header):
                detail = f"expected {len(header)} columns, got {len(cells)}: put a text with commas in quotes"
                yield line, BadRow(str(manifest), line, "malformed", detail)
            elif cells:
                yield line, dict(zip(header, cells))  # noqa: B905 - a short row lacks its last columns


def _json_cells(manifest: Path | RemotePath) -> Iterator[tuple[int, _Cells]]:
    """Yield each object's line number and its values as text by key, or a BadRow; blank lines are skipped."""
    with manifest.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for line, source in enumerate(file, 1):
            if source.strip():
                yield line, _object(source, manifest, line)


def _object(source: str, manifest: Path | RemotePath, line: int) -> _Cells:
    """Parse a line; null values count as missing."""
    try:
        found = json.loads(source)
    except (ValueError, RecursionError) as error:
        return BadRow(str(manifest), line, "malformed", str(error))
    if not isinstance(found, dict):
        return BadRow(str(manifest), line, "malformed", f"expected an object, got {type(found).__name__}")
    return {key: _text(value) for key, value in found.items() if value is not None}


def _text(value: Any) -> str:
    """Return a string as it is, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
