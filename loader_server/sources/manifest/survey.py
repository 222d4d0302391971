"""The survey of manifests: their rows are counted, and duplicates found, before any recording is looked at.

Rules: a manifest may be larger than memory. Of equal rows, all but the first are bad.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from loader_server.sources.files.file_facts import absent
from loader_server.sources.files.same_files import list_facts
from loader_server.sources.manifest.rows import (
    AUDIO_COLUMNS,
    OFFSET_COLUMN,
    Columns,
    ManifestRow,
    columns_of,
    named_paths,
    read_rows,
)
from loader_server.sources.remote.urls import joined
from loader_server.sources.source import BadRow, Inventory
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files
    from loader_server.sources.remote.remote_files import RemotePath

__all__ = ["RowPiece", "named_files", "survey_manifests"]

#: Number of rows that are compared with the repeated hashes at a time.
_BLOCK_ROWS = 2**20


@dataclass(frozen=True, slots=True)
class RowPiece:
    """Consecutive rows of a survey, the first of which is number `start` among all.

    `others` is the number of further columns, and `whole` says that every row is a whole file.
    """

    start: int
    rows: tuple[ManifestRow | BadRow, ...]
    others: int
    has_text: bool
    whole: bool


def survey_manifests(
    paths: Sequence[str], files: Files, columns_in: Callable[[Path | RemotePath], Columns] = columns_of
) -> Inventory:
    """Read the manifests once, count their rows and find duplicates, which the inventory's pieces have as bad rows.

    Raise a DataError if there is no manifest, one cannot be opened, is not text or has unusable columns (`columns_in`),
    or only some of them have transcripts; raise a ReadError if a store cannot be asked or read, a SettingsError if its
    library is missing, and an OSError if the disk fails. Other errors of the cache of remote files pass. The pieces
    read the manifests again, and raise the errors of `read_rows`.
    """
    manifests = tuple(map(files.path, paths))
    if not manifests:
        raise DataError(
            expected="at least one manifest", got="none", where="paths", remedy='Write paths = ["train.csv"].'
        )
    origin = [list_facts(path, files, "manifest") for path in paths]
    columns = tuple(columns_in(manifest) for manifest in manifests)
    _refuse_some_without_text(manifests, columns)
    others = tuple(dict.fromkeys(name for own in columns for name in own.others))
    # Eight bytes a row is all that is kept of the rows, which are read again for the pieces: a manifest may be larger
    # than memory.
    read = partial(_all_rows, manifests, columns, others)
    hashes = array("Q", (_hash(row, manifests) for row in read()))
    duplicates = _duplicates(np.frombuffer(hashes, np.uint64) if hashes else np.zeros(0, np.uint64))

    def pieces(rows: int) -> Iterator[RowPiece]:
        start, marked = 0, _marked(read(), manifests, *duplicates)
        while piece := tuple(islice(marked, rows)):
            yield RowPiece(start, piece, len(others), bool(columns[0].text), OFFSET_COLUMN not in others)
            start += len(piece)

    return Inventory(total=len(hashes), pieces=pieces, origin=origin, about={"others": list(others)})


def _all_rows(
    manifests: tuple[Path | RemotePath, ...], columns: tuple[Columns, ...], others: tuple[str, ...]
) -> Iterator[ManifestRow | BadRow]:
    """Yield the rows of all manifests in order, unusable ones as BadRow.

    Raise an OSError if a manifest cannot be read, and a DataError if its suffix is that of no manifest or a CSV's first
    line cannot be parsed; what opening and reading a remote manifest raises passes through.
    """
    for number, (manifest, own) in enumerate(zip(manifests, columns, strict=True)):
        yield from read_rows(manifest, number, own, others)


def _hash(row: ManifestRow | BadRow, manifests: tuple[Path | RemotePath, ...]) -> int:
    """Return a hash that is equal for equal rows that name the same file; a bad row's differs from all others."""
    if isinstance(row, BadRow):
        parts: tuple[str, ...] = ("bad", row.where, str(row.line))
    else:
        parts = (joined(str(manifests[row.manifest].parent), row.path), row.text, *row.others)
    return xxhash.xxh3_64_intdigest("\x1f".join(parts).encode("utf-8", "surrogateescape"))


def _duplicates(hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of rows whose 64-bit hash another row has, and for each the number of its group of equals.

    Both are empty if no two are equal. Only arrays of numbers are held, and rows are compared in blocks, because all
    rows may be duplicates.
    """
    ordered = np.sort(hashes)
    again = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered  # frees eight bytes a row before the comparison takes memory
    blocks = [_equal_to_any(hashes[at : at + _BLOCK_ROWS], again) + at for at in range(0, len(hashes), _BLOCK_ROWS)]
    places = np.concatenate([np.zeros(0, np.int64), *blocks])
    return places, np.searchsorted(again, hashes[places])


def _equal_to_any(hashes: NDArray[np.uint64], again: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the positions of the hashes that are in `again`, which is sorted; none if `again` is empty."""
    at = np.searchsorted(again[:-1], hashes)  # without the last entry, so that every place found is in `again`
    return np.flatnonzero(again[at] == hashes) if len(again) else np.zeros(0, np.int64)


def _marked(
    rows: Iterable[ManifestRow | BadRow],
    manifests: tuple[Path | RemotePath, ...],
    places: NDArray[np.int64],
    groups: NDArray[np.int64],
) -> Iterator[ManifestRow | BadRow]:
    """Yield the rows; all but the first of several equal ones become bad rows that name the first one's place.

    A row that was bad before stays as it is, and does not count as the first.
    """
    # Manifest and line of the first good row of each group, or -1: an equal row that is bad by itself comes first only
    # by chance, and is none to refer to.
    firsts = np.full((int(groups.max(initial=-1)) + 1, 2), -1)
    pairs = zip(places, groups, strict=True)
    place, group = next(pairs, (-1, -1))
    for number, row in enumerate(rows):
        if number != place:
            yield row
            continue
        manifest, line = firsts[group]
        if isinstance(row, BadRow):
            yield row
        elif line < 0:  # the first of its group stays good
            firsts[group] = row.manifest, row.line
            yield row
        else:
            detail = f"expected each row once, got {row.path} as in {manifests[manifest]}, line {line}"
            yield BadRow(str(manifests[row.manifest]), row.line, "duplicate", detail)
        place, group = next(pairs, (-1, -1))


def named_files(paths: Sequence[str], files: Files, columns: Sequence[str] = AUDIO_COLUMNS) -> Iterator[str]:
    """Yield the manifests and every file they name, each manifest before its files.

    Raise a DataError if a manifest cannot be read or its suffix is that of no manifest, a ReadError if a remote one
    cannot be fetched, and a SettingsError if its store's library is missing. MachineError of reading it passes.
    """
    for path in paths:
        manifest = files.path(path)
        folder = str(manifest.parent)
        yield path
        try:
            for name in named_paths(manifest, columns):
                yield joined(folder, name)
        except OSError as error:
            raise absent(str(manifest), error.strerror or type(error).__name__, "manifest") from None


def _refuse_some_without_text(manifests: tuple[Path | RemotePath, ...], columns: tuple[Columns, ...]) -> None:
    """Raise a DataError if some manifests have a column of transcripts and others have none."""
    without = [str(manifest) for manifest, own in zip(manifests, columns, strict=True) if not own.text]
    if 0 < len(without) < len(manifests):
        raise DataError(
            expected="a transcript in all manifests or in none",
            got=f"no such column in {without[0]}",
            where=", ".join(map(str, manifests)),
            remedy='Add the column "text".',
        )
