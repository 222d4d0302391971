"""Rows of manifests: CSV, TSV and JSON lines, one after another; unusable rows come with their line and the reason.

Rules: rows are read one at a time, so that a manifest may be larger than memory. A bad row is a value and not an
exception; a manifest that cannot be read at all is a DataError. Knows nothing about audio: whether the named files
exist is the source's business.
"""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from loader_server.sources.audio.stretches import Stretch
from loader_server.sources.source import BadRow
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from loader_server.sources.remote.remote_files import RemotePath

__all__ = [
    "AUDIO_COLUMNS",
    "OFFSET_COLUMN",
    "TEXT_COLUMNS",
    "Columns",
    "ManifestRow",
    "columns_of",
    "columns_wanted",
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
#: A table's cells are parted by what its first line has most of; of equals, by the first of these.
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
#: Common Voice has its recordings in this folder beside its .tsv files, whose column `path` has bare names.
_CLIPS = "clips"
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
    """The columns of a manifest by their meaning; `text` is empty if there is no transcript.

    `audio` is the column of the file that a row is known by, whatever is in it. If `may_cut`, offset and duration
    choose a stretch of it.
    """

    audio: str
    text: str
    others: tuple[str, ...]
    may_cut: bool = True


_WHOLE = Stretch()
#: That of a row whose offset or duration are no finite numbers.
_NO_STRETCH = Stretch(math.nan)

_Cells: TypeAlias = "Mapping[str, str] | BadRow"


def columns_of(manifest: Path | RemotePath) -> Columns:
    """Return the columns of a manifest, from its header (CSV, TSV) or from all its objects (JSON lines).

    Raise a DataError if no column names audio files, if there are too many columns, if a table's first line cannot be
    parsed, or if the suffix is that of no manifest. Raise an OSError if the manifest cannot be read; what opening and
    reading a remote one raises passes through.
    """
    names = dict.fromkeys(_header(manifest)) if _is_table(manifest) else _keys(manifest)
    if len(names) > _MOST_COLUMNS:
        raise DataError(
            expected=f"at most {_MOST_COLUMNS} columns",
            got=str(len(names)),
            where=str(manifest),
            remedy="Each line is a recording: leave out what no transform needs, or turn rows into lines.",
        )
    audio, text = _first_of(AUDIO_COLUMNS, names), _first_of(TEXT_COLUMNS, names)
    if not audio:
        raise DataError(
            expected="a column " + " or ".join(f'"{name}"' for name in AUDIO_COLUMNS),
            got=f"the columns {', '.join(names)}" if names else "no columns",
            where=str(manifest),
            remedy="Rename the column that names the audio files.",
        )
    return Columns(audio, text, tuple(name for name in names if name not in (audio, text)))


def columns_wanted(manifest: Path | RemotePath, wanted: Sequence[str]) -> Columns:
    """Return these columns of a manifest, of which the first names a file; no stretch is cut from it.

    Raise a DataError if a column is missing, if a CSV's first line cannot be parsed, or if the suffix is that of no
    manifest. Raise an OSError if the manifest cannot be read; what opening and reading a remote one raises passes
    through.
    """
    names = dict.fromkeys(_header(manifest)) if _is_table(manifest) else _keys(manifest)
    for name in wanted:
        if name not in names:
            raise DataError(
                expected=f'a column "{name}", as `columns` says',
                got=f"the columns {', '.join(names)}" if names else "no columns",
                where=str(manifest),
                remedy="Mend `columns` of the stream, or the manifest.",
            )
    return Columns(wanted[0], "", tuple(wanted[1:]), may_cut=False)


def _first_of(known: tuple[str, ...], names: Mapping[str, None]) -> str:
    return next((name for name in known if name in names), "")


def _keys(manifest: Path | RemotePath) -> dict[str, None]:
    """Return the keys of all objects of a manifest of JSON lines, in order of first use.

    Lines that hold no object are skipped, and no more keys are added once there are too many. Raise an OSError if the
    manifest cannot be read; what opening and reading a remote one raises passes through.
    """
    keys: dict[str, None] = {}
    # One key too many is enough to refuse: all the keys of an absurd manifest could fill memory.
    for _, cells in _json_cells(manifest):
        if not isinstance(cells, BadRow) and len(keys) <= _MOST_COLUMNS:
            keys.update(dict.fromkeys(cells))
    return keys


def read_rows(
    manifest: Path | RemotePath, number: int, columns: Columns, others: tuple[str, ...]
) -> Iterator[ManifestRow | BadRow]:
    """Yield the rows of a manifest in order; `others` are the further columns of all manifests together.

    A row that cannot be used is yielded as a BadRow; blank ones are skipped. Raise an OSError if the manifest cannot be
    read, and a DataError if its suffix is that of no manifest or a table's first line cannot be parsed; what opening
    and reading a remote manifest raises passes through.
    """
    cells_of = _table_cells if _is_table(manifest) else _json_cells
    for line, cells in cells_of(manifest):
        if isinstance(cells, BadRow):
            yield cells
            continue
        stretch = _stretch(cells) if columns.may_cut else _WHOLE
        reason, detail = _fault(cells, columns, stretch)
        if reason:
            yield BadRow(str(manifest), line, reason, detail)
            continue
        text = cells[columns.text] if columns.text else ""
        further = tuple(cells.get(name, "") for name in others)
        yield ManifestRow(number, line, _named(manifest, columns.audio, cells[columns.audio]), text, further, stretch)


def _named(manifest: Path | RemotePath, column: str, cell: str) -> str:
    """Return the path that a cell names; a bare name in the column `path` of a .tsv file is one of Common Voice."""
    bare = column == "path" and _is_tsv(manifest) and "/" not in cell
    return f"{_CLIPS}/{cell}" if bare else cell


def _stretch(cells: Mapping[str, str]) -> Stretch:
    """Return the row's stretch: the whole file without an offset; one of NaN if its seconds are no finite numbers.

    Without a duration, the stretch ends with the file.
    """
    offset, duration = cells.get(OFFSET_COLUMN), cells.get(_DURATION_COLUMN)
    if not offset:
        return _WHOLE
    try:
        seconds = [float(text) for text in (offset, duration) if text]
    except ValueError:
        return _NO_STRETCH
    start_s, duration_s = (*seconds, math.inf)[:2]
    return Stretch(start_s, duration_s) if all(map(math.isfinite, seconds)) else _NO_STRETCH


def _fault(cells: Mapping[str, str], columns: Columns, stretch: Stretch) -> tuple[str, str]:
    """Return why a row cannot be used, as a reason in one word and the detail; both are empty if it can."""
    missing = [name for name in (columns.audio, columns.text) if name and name not in cells]
    if missing or not cells[columns.audio]:
        name = missing[0] if missing else columns.audio
        return "missing_column", f'expected a value for the column "{name}", got none'
    if stretch is _NO_STRETCH:
        offset, duration = cells.get(OFFSET_COLUMN), cells.get(_DURATION_COLUMN)
        return "malformed", f"expected seconds as offset and duration, got {offset} and {duration}"
    # Bytes that are not UTF-8 were read as surrogates, which cannot be encoded.
    try:
        "\n".join(cells.values()).encode()
    except UnicodeEncodeError:
        return "not_utf8", "expected UTF-8, got other bytes"
    # The system refuses such a path with a ValueError, which would end the whole index.
    if "\0" in cells[columns.audio]:
        return "malformed", "expected a path, got one with a zero byte"
    return "", ""


def named_paths(manifest: Path | RemotePath, columns: Sequence[str] = AUDIO_COLUMNS) -> Iterator[str]:
    """Yield what stands in the columns that may name a file.

    Bad rows are included, as far as they can be parsed: a stamp has to change with every file that is named. This is
    quicker than `read_rows`. Raise a DataError if the suffix is that of no manifest, or an OSError if the manifest
    cannot be read; what opening and reading a remote one raises passes through.
    """
    if _is_table(manifest):
        yield from _table_paths(manifest, columns)
        return
    for _, cells in _json_cells(manifest):
        if not isinstance(cells, BadRow):
            yield from (cells[name] for name in columns if name in cells)


def _table_paths(manifest: Path | RemotePath, columns: Sequence[str]) -> Iterator[str]:
    with manifest.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = _lists(_reader(manifest, file)[0])
        places = [(place, name.strip()) for place, name in enumerate(next(rows, [])) if name.strip() in columns]
        for row in rows:
            yield from (_named(manifest, name, row[place]) for place, name in places if place < len(row))


def _lists(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield the rows as lists, and skip rows that cannot be parsed."""
    while True:
        # `csv.reader` can go on after an error, but `yield from` cannot: it is entered again for the following rows.
        try:
            yield from reader
        except csv.Error:
            continue
        return


def _is_table(manifest: Path | RemotePath) -> bool:
    """Return whether a manifest is CSV or TSV and not JSON lines, by its suffix; raise a DataError for any other."""
    suffix = manifest.suffix.lower()
    if suffix not in (".csv", ".tsv", ".jsonl", ".json"):
        raise DataError(
            expected="a manifest that ends in .csv, .tsv, .jsonl or .json (one object a line)",
            got=f'"{manifest.name}"',
            where=str(manifest),
            remedy="Rename it, or convert it.",
        )
    return suffix in (".csv", ".tsv")


def _is_tsv(manifest: Path | RemotePath) -> bool:
    return manifest.suffix.lower() == ".tsv"


def _reader(manifest: Path | RemotePath, file: Iterable[str]) -> tuple[Any, str]:
    """Return a `csv.reader` of a table's lines, and the name of what parts its cells.

    A .tsv file has tabs, and quotes in it are part of the text; others have what their first line has most of.
    """
    lines = iter(file)
    if _is_tsv(manifest):
        return csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE), _DELIMITERS["\t"]
    first = next(lines, "")
    delimiter = max(_DELIMITERS, key=first.count)  # the first of equals
    return csv.reader(chain([first], lines), delimiter=delimiter), _DELIMITERS[delimiter]


def _header(manifest: Path | RemotePath) -> list[str]:
    """Return the column names of a table, none if it is empty; raise a DataError if its first line is malformed.

    Raise an OSError if the file cannot be read; what opening and reading a remote one raises passes.
    """
    with manifest.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        try:
            return [name.strip() for name in next(_reader(manifest, file)[0], [])]
        except csv.Error as error:
            raise DataError(
                expected="a first line with the columns",
                got=str(error),
                where=str(manifest),
                remedy="Write it anew: a quote has no end, for example, or it is no CSV at all.",
            ) from None


def _table_cells(manifest: Path | RemotePath) -> Iterator[tuple[int, _Cells]]:
    """Yield each row's line number and its cells by column; empty rows are skipped.

    A row that cannot be parsed, or has more cells than there are columns, is yielded as a BadRow; a shorter one lacks
    its last columns. Raise a DataError if the first line cannot be parsed, and an OSError if the file cannot be read;
    what opening and reading a remote one raises passes.
    """
    header = _header(manifest)
    # Bytes that are not UTF-8 pass as surrogates, so that `_refused` can name their row and the other rows stay good.
    with manifest.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader, delimiters = _reader(manifest, file)
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
                advice = "" if _is_tsv(manifest) else f": put a text with {delimiters} in quotes"
                detail = f"expected {len(header)} columns, got {len(cells)}{advice}"
                yield line, BadRow(str(manifest), line, "malformed", detail)
            elif cells:
                yield line, dict(zip(header, cells))  # noqa: B905 - a short row lacks its last columns


def _json_cells(manifest: Path | RemotePath) -> Iterator[tuple[int, _Cells]]:
    """Yield each object's line number and its values as text by key; blank lines are skipped.

    A line that holds no object is yielded as a BadRow. Raise an OSError if the file cannot be read; what opening and
    reading a remote one raises passes.
    """
    with manifest.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for line, source in enumerate(file, 1):
            if source.strip():
                yield line, _object(source, manifest, line)


def _object(source: str, manifest: Path | RemotePath, line: int) -> _Cells:
    """Return the values of a line's object as text by key, without null values; a BadRow if it is no JSON object."""
    try:
        value = json.loads(source)
    except (ValueError, RecursionError) as error:
        return BadRow(str(manifest), line, "malformed", str(error))
    if not isinstance(value, dict):
        return BadRow(str(manifest), line, "malformed", f"expected an object, got {type(value).__name__}")
    return {key: _text(cell) for key, cell in value.items() if cell is not None}


def _text(value: Any) -> str:
    """Return a string as it is, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
