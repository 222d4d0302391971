"""The manifest source: CSV or JSON lines that name audio files (WAV, FLAC, OGG, MP3) and their transcripts.

Rules: paths are relative to the manifest that names them; several manifests count as one, in their order. It opens
from the index alone and never parses a manifest again, but refuses one that is no longer what was indexed, and a file
that has changed since.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from loader_server.sources.index.probe import RAW_FIELDS, Chunk, decoded_audio
from loader_server.sources.plain_wav import plain_wav
from loader_server.sources.rows import BadRow, Columns, Row, columns_of, read_rows
from shared.config import setting, texts
from shared.errors import DataError, ReadError, SampleError
from shared.hashing import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from loader_server.sources.index.folder import Index
    from shared.wire.layout import Field

__all__ = ["ManifestSettings", "ManifestSource", "ManifestSurvey", "open_manifest", "survey"]

_BLOCK_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSettings:
    """What a stream with source = "manifest" says besides."""

    paths: tuple[str, ...] = setting(texts, "manifests, .csv or .jsonl, relative to the job file")


# --- finding the samples ---


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

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """The rows in order, duplicates marked."""
        start, held = 0, list[Row | BadRow]()
        firsts = dict.fromkeys(self.duplicates.values(), "")
        for place, row in enumerate(_all_rows(self.manifests, self.columns, self.others)):
            if place in firsts and isinstance(row, Row):
                firsts[place] = f"{self.manifests[row.manifest]}, line {row.line}"
            held.append(self._without_duplicate(place, row, firsts))
            if len(held) == rows:
                yield self._chunk(start, held)
                start, held = start + len(held), []
        if held:
            yield self._chunk(start, held)

    def _without_duplicate(self, place: int, row: Row | BadRow, firsts: dict[int, str]) -> Row | BadRow:
        first = self.duplicates.get(place)
        if first is None or isinstance(row, BadRow):
            return row
        detail = f"expected each row once, got {row.path} as in {firsts[first]}"
        return BadRow(str(self.manifests[row.manifest]), row.line, "duplicate", detail)

    def _chunk(self, start: int, rows: list[Row | BadRow]) -> Chunk:
        names = tuple(str(manifest) for manifest in self.manifests)
        folders = tuple(str(manifest.parent) for manifest in self.manifests)
        return Chunk(start, tuple(rows), names, folders, self.others, self.has_text)


def survey(settings: ManifestSettings, base: Path) -> ManifestSurvey:
    """Read the manifests once: count their rows and find duplicates."""
    manifests = tuple(base / path for path in settings.paths)
    if not manifests:
        raise DataError(
            expected="at least one manifest", got="none", where=str(base), remedy='Write paths = ["train.csv"].'
        )
    origin = [_facts(path, manifest) for path, manifest in zip(settings.paths, manifests, strict=True)]
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
) -> Iterator[Row | BadRow]:
    for number, (manifest, found) in enumerate(zip(manifests, columns, strict=True)):
        yield from read_rows(manifest, number, found, others)


def _hash(row: Row | BadRow, manifests: tuple[Path, ...]) -> int:
    """Equal for equal rows that name the same file; a bad row equals none."""
    if isinstance(row, BadRow):
        parts: tuple[str, ...] = ("bad", row.manifest, str(row.line))
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


def _refuse_other_manifest(facts: dict[str, Any], manifest: Path, index: Index) -> None:
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
        where=f"{manifest}, index {index.folder}",
        remedy="The index was made from another manifest: run loader-server index.",
    )


# --- the source ---


def open_manifest(index: Index, base: Path) -> ManifestSource:
    """Open the source of an index whose manifests lie under `base`."""
    manifests = [base / facts["path"] for facts in index.origin]
    for facts, manifest in zip(index.origin, manifests, strict=True):
        _refuse_other_manifest(facts, manifest, index)
    return ManifestSource(index, manifests)


class ManifestSource:
    """Samples of manifests, by number."""

    def __init__(self, index: Index, manifests: list[Path]) -> None:
        self._index = index
        self._manifests = manifests
        self._folders = [str(manifest.parent) for manifest in manifests]
        self._paths = index.strings["path"]
        self._others = {name: index.strings[f"column_{place}"] for place, name in enumerate(index.others)}
        self._text = index.strings.get("text")

    @property
    def samples(self) -> int:
        """How many there are."""
        return self._index.samples

    @property
    def fields(self) -> tuple[Field, ...]:
        """Audio; where all files have one rate, it has time."""
        rate = self._index.rate
        return tuple(replace(field, per_second=float(rate) if rate else None) for field in RAW_FIELDS)

    def name(self, sample: int) -> str:
        """The path as the manifest says it."""
        return self._paths[sample]

    def identity(self, sample: int) -> str:
        """The file as it was indexed, and what the rest of its row said."""
        columns = self._index.columns
        origin = self._index.origin[columns["manifest"][sample]]["path"]
        place = os.path.join(os.path.dirname(origin), self._paths[sample])  # noqa: PTH118, PTH120
        row = [column[sample] for column in (*self._others.values(), *([self._text] if self._text is not None else []))]
        nbytes, mtime_ns = columns["bytes"][sample], columns["mtime_ns"][sample]
        return f"{place}, {nbytes} bytes, changed at {mtime_ns} ns, row {fingerprint(*row)[:8]}"

    def read(self, sample: int) -> bytes:
        """The bytes of the file, which must be the one that was indexed."""
        columns = self._index.columns
        nbytes, mtime_ns = int(columns["bytes"][sample]), int(columns["mtime_ns"][sample])
        place = os.path.join(self._folders[columns["manifest"][sample]], self._paths[sample])  # noqa: PTH118
        # A bare descriptor: a Python file asks the system twice as often, which is 3 µs of 12.
        handle = os.open(place, os.O_RDONLY)
        try:
            status = os.fstat(handle)
            same = (status.st_size, status.st_mtime_ns) == (nbytes, mtime_ns)
            raw = _read(handle, nbytes) if same else b""
        finally:
            os.close(handle)
        if not same or len(raw) != nbytes:
            raise ReadError(
                expected=f"the file that was indexed ({nbytes} bytes)",
                got=f"one of {len(raw) if same else status.st_size} bytes, changed since",
                where=f"{place} ({self._line(sample)})",
                remedy="Put the file back, or run loader-server index and start the job anew.",
            )
        return raw

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Audio with its rate, the transcript, and further columns as strings."""
        # Where it came from is put into words only for those who need it.
        audio, rate = plain_wav(raw) or decoded_audio(raw, self._where(sample))
        frames = int(self._index.columns["frames"][sample])
        if len(audio) != frames:
            raise SampleError(
                reason="truncated",
                expected=f"{frames} frames, as the file's header says",
                got=str(len(audio)),
                where=self._where(sample),
                remedy="Mend or remove the file, then run loader-server index.",
            )
        made: dict[str, Any] = {name: column[sample] for name, column in self._others.items()}
        made |= {"audio": audio, "audio_rate": rate}
        if self._text is not None:
            made["text"] = self._text[sample]
        return made

    def close(self) -> None:
        """Nothing stays open between reads; the mapped index goes with its last user."""

    def _where(self, sample: int) -> str:
        return f"{self._paths[sample]} ({self._line(sample)})"

    def _line(self, sample: int) -> str:
        columns = self._index.columns
        return f"{self._manifests[columns['manifest'][sample]]}, line {columns['line'][sample]}"


def _read(handle: int, nbytes: int) -> bytes:
    """So many bytes, or all that there are: the system may give a large file in pieces."""
    raw = os.read(handle, nbytes)
    while len(raw) < nbytes and (more := os.read(handle, nbytes - len(raw))):
        raw += more
    return raw
