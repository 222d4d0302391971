"""Which rows there are: the manifests read once, before any recording is looked at, and compared again later.

Rules: a manifest may be larger than memory; a row that stands there twice is bad the second time.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from loader_server.sources.manifest.rows import OFFSET_COLUMN, Columns, ManifestRow, columns_of, read_rows
from loader_server.sources.source import BadRow
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["ManifestSurvey", "RowPiece", "refuse_other_manifest", "survey_manifests"]

_BLOCK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class RowPiece:
    """Consecutive rows of a survey: `start` counts from its first row, `others` are further columns, and `whole` says
    that every row is a whole file.
    """

    start: int
    rows: tuple[ManifestRow | BadRow, ...]
    others: int
    has_text: bool
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSurvey:
    """All rows of the manifests, counted and compared; they are read again when they are wanted."""

    manifests: tuple[Path, ...]
    columns: tuple[Columns, ...]
    others: tuple[str, ...]
    total: int
    duplicates: dict[int, int]
    origin: list[dict[str, Any]]

    @property
    def has_text(self) -> bool:
        """Whether there are transcripts."""
        return bool(self.columns[0].text)

    def pieces(self, rows: int) -> Iterator[RowPiece]:
        """The rows in order, duplicates marked."""
        start, held = 0, list[ManifestRow | BadRow]()
        firsts = dict.fromkeys(self.duplicates.values(), "")
        for place, row in enumerate(_all_rows(self.manifests, self.columns, self.others)):
            if place in firsts and isinstance(row, ManifestRow):
                firsts[place] = f"{self.manifests[row.manifest]}, line {row.line}"
            held.append(self._without_duplicate(place, row, firsts))
            if len(held) == rows:
                yield self._piece(start, held)
                start, held = start + len(held), []
        if held:
            yield self._piece(start, held)

    def _without_duplicate(self, place: int, row: ManifestRow | BadRow, firsts: dict[int, str]) -> ManifestRow | BadRow:
        first = self.duplicates.get(place)
        if first is None or isinstance(row, BadRow):
            return row
        detail = f"expected each row once, got {row.path} as in {firsts[first]}"
        return BadRow(str(self.manifests[row.manifest]), row.line, "duplicate", detail)

    def _piece(self, start: int, rows: list[ManifestRow | BadRow]) -> RowPiece:
        return RowPiece(start, tuple(rows), len(self.others), self.has_text, OFFSET_COLUMN not in self.others)


def survey_manifests(paths: Sequence[str], base: Path) -> ManifestSurvey:
    """Read the manifests once: count their rows and find duplicates."""
    manifests = tuple(base / path for path in paths)
    if not manifests:
        raise DataError(
            expected="at least one manifest", got="none", where=str(base), remedy='Write paths = ["train.csv"].'
        )
    origin = [_facts(path, manifest) for path, manifest in zip(paths, manifests, strict=True)]
    columns = tuple(columns_of(manifest) for manifest in manifests)
    _refuse_some_without_text(manifests, columns)
    others = tuple(dict.fromkeys(name for found in columns for name in found.others))
    hashes = array("Q", (_hash(row, manifests) for row in _all_rows(manifests, columns, others)))
    return ManifestSurvey(
        manifests=manifests,
        columns=columns,
        others=others,
        total=len(hashes),
        duplicates=_duplicates(np.frombuffer(hashes, np.uint64) if hashes else np.zeros(0, np.uint64)),
        origin=origin,
    )


def _all_rows(
    manifests: tuple[Path, ...], columns: tuple[Columns, ...], others: tuple[str, ...]
) -> Iterator[ManifestRow | BadRow]:
    for number, (manifest, found) in enumerate(zip(manifests, columns, strict=True)):
        yield from read_rows(manifest, number, found, others)


def _hash(row: ManifestRow | BadRow, manifests: tuple[Path, ...]) -> int:
    """Equal for equal rows that name the same file; a bad row equals none."""
    if isinstance(row, BadRow):
        parts: tuple[str, ...] = ("bad", row.where, str(row.line))
    else:
        parts = (str(manifests[row.manifest].parent), row.path, row.text, *row.others)
    return xxhash.xxh3_64_intdigest("\x1f".join(parts).encode("utf-8", "surrogateescape"))


def _duplicates(hashes: np.ndarray[Any, np.dtype[np.uint64]]) -> dict[int, int]:
    """The place of each later one of equal rows, and the place of the first."""
    order = np.argsort(hashes, kind="stable")
    again = np.flatnonzero(hashes[order][1:] == hashes[order][:-1]) + 1
    firsts: dict[int, int] = {}
    for place in again:
        before = int(order[place - 1])
        firsts[int(order[place])] = firsts.get(before, before)
    return firsts


def _refuse_some_without_text(manifests: tuple[Path, ...], columns: tuple[Columns, ...]) -> None:
    without = [str(manifest) for manifest, found in zip(manifests, columns, strict=True) if not found.text]
    if 0 < len(without) < len(manifests):
        raise DataError(
            expected="a transcript in all manifests or in none",
            got=f"no such column in {without[0]}",
            where=", ".join(map(str, manifests)),
            remedy='Add the column "text".',
        )


# --- is it still what was indexed? ---


def _facts(path: str, manifest: Path) -> dict[str, Any]:
    try:
        status = manifest.stat()
        digest = _digest(manifest)
    except OSError as error:
        raise _absent(manifest, error) from None
    return {"path": path, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "digest": digest}


def _digest(manifest: Path) -> str:
    state = xxhash.xxh3_128()
    with manifest.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            state.update(block)
    return state.hexdigest()


def _absent(manifest: Path, error: OSError) -> DataError:
    return DataError(
        expected="a manifest that can be read",
        got=f"{error.strerror or type(error).__name__}",
        where=str(manifest),
        remedy="Mend `paths` of the stream, which are relative to the job file, or put the manifest there.",
    )


def refuse_other_manifest(facts: dict[str, Any], manifest: Path, index: Path) -> None:
    """Refuse a manifest that is no longer what was indexed; one that was only touched or copied is."""
    try:
        status = manifest.stat()
        same = (status.st_size, status.st_mtime_ns) == (facts["bytes"], facts["mtime_ns"])
        if same or (status.st_size == facts["bytes"] and _digest(manifest) == facts["digest"]):
            return
    except OSError as error:
        raise _absent(manifest, error) from None
    raise DataError(
        expected=f"the manifest that the index was made from ({facts['bytes']} bytes)",
        got=f"another one ({status.st_size} bytes)",
        where=f"{manifest}, index {index}",
        remedy="The index was made from another manifest: run loader-server index.",
    )
