"""The manifest source: CSV or JSON lines that name audio files (WAV, FLAC, OGG, MP3) and their transcripts.

Rules: paths are relative to the manifest that names them; several manifests count as one, in their order. It opens
from the index alone and never parses a manifest again, but refuses one that is no longer what was indexed, and a file
that has changed since.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.manifest.audio import Header, decoded_audio, header_of
from loader_server.sources.manifest.plain_wav import plain_wav
from loader_server.sources.manifest.rows import ManifestRow
from loader_server.sources.manifest.survey import RowPiece, refuse_other_manifest, survey_manifests
from loader_server.sources.source import BadRow, Found, Indexed, Inventory, Source
from shared.config import setting, texts
from shared.errors import ReadError, SampleError
from shared.hashing import fingerprint
from shared.wire.layout import Field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["ManifestSettings", "ManifestSource"]

_AUDIO = Field(key="audio", dtype="float32", shape=(None,))


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSettings:
    """What a stream with source = "manifest" says besides."""

    paths: tuple[str, ...] = setting(texts, "manifests, .csv or .jsonl, relative to the job file")


class ManifestSource(Source):
    """Recordings and transcripts. Columns: of each sample the manifest (counted from 0), its line, the file's `bytes`,
    `mtime_ns`, `frames` and `rate`, the transcript and its `characters`, the path, and further columns as strings.
    """

    Settings = ManifestSettings
    local_columns = frozenset(("mtime_ns",))
    settings: ManifestSettings

    @property
    def fields(self) -> tuple[Field, ...]:
        """Audio in frames, at whatever rate its file has; where all files have one rate, it has time."""
        rate = self.indexed.about["rate"] if hasattr(self, "indexed") else 0
        return (replace(_AUDIO, per_second=float(rate)) if rate else _AUDIO,)

    # --- while an index is made ---

    def survey(self) -> Inventory:
        """All rows, counted and compared."""
        found = survey_manifests(self.settings.paths, self.base)
        return Inventory(
            total=found.total, pieces=found.pieces, origin=found.origin, about={"others": list(found.others)}
        )

    def probe(self, piece: RowPiece) -> Found:
        """The headers of the files that these rows name."""
        manifests = [self.base / path for path in self.settings.paths]
        places = [(str(manifest), str(manifest.parent)) for manifest in manifests]
        good, headers, bad = dict[int, ManifestRow](), list[Header](), dict[int, BadRow]()
        for number, row in enumerate(piece.rows, piece.start):
            if isinstance(row, BadRow):
                bad[number] = row
                continue
            header = _header(row, *places[row.manifest])
            if isinstance(header, BadRow):
                bad[number] = header
            else:
                good[number] = row
                headers.append(header)
        rows = list(good.values())
        return Found(rows=list(good), numbers=_numbers(rows, headers, piece), strings=_strings(rows, piece), bad=bad)

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        """The one rate of all files, or 0."""
        rates = numbers["rate"]
        return {"rate": int(rates[0]) if (rates == rates[0]).all() else 0}

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index, if the manifests are still those that it was made from."""
        self._manifests = [self.base / facts["path"] for facts in indexed.origin]
        for facts, manifest in zip(indexed.origin, self._manifests, strict=True):
            refuse_other_manifest(facts, manifest, indexed.place)
        self.indexed = indexed
        self._folders = [str(manifest.parent) for manifest in self._manifests]
        self._columns = indexed.numbers
        self._paths = indexed.strings["path"]
        self._others = {name: indexed.strings[f"column_{n}"] for n, name in enumerate(indexed.about["others"])}
        self._text = indexed.strings.get("text")

    @property
    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """Audio in frames, with its rate in hertz; the transcript in characters."""
        keys = {"audio": "frames", "audio_rate": "rate", "text": "characters"}
        return {key: self._columns[column] for key, column in keys.items() if column in self._columns}

    @property
    def parts(self) -> tuple[int, ...]:
        """Where each manifest starts that has samples."""
        return tuple(np.flatnonzero(np.diff(self._columns["manifest"], prepend=-1)).tolist())

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """The bytes of each file, which must be the one that was indexed."""
        return map(self._read, samples)

    def _read(self, sample: int) -> bytes:
        columns, sample = self._columns, self.checked(sample)
        nbytes, mtime_ns = int(columns["bytes"][sample]), int(columns["mtime_ns"][sample])
        place = os.path.join(self._folders[columns["manifest"][sample]], self._paths[sample])  # noqa: PTH118
        # A bare descriptor: a Python file asks the system twice as often, which is 3 µs of 12.
        handle = os.open(place, os.O_RDONLY)
        try:
            status = os.fstat(handle)
            same = (status.st_size, status.st_mtime_ns) == (nbytes, mtime_ns)
            raw = _bytes_of(handle, nbytes) if same else b""
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
        frames = int(self._columns["frames"][sample])
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

    def name(self, sample: int) -> str:
        """The path as the manifest says it."""
        path: str = self._paths[self.checked(sample)]
        return path

    def place(self, sample: int) -> tuple[str, int]:
        """The manifest, and the line in it."""
        return str(self._manifests[self._columns["manifest"][sample]]), int(self._columns["line"][sample])

    def identity(self, sample: int) -> str:
        """The file as it was indexed, and what the rest of its row said."""
        columns = self._columns
        origin = self.indexed.origin[columns["manifest"][sample]]["path"]
        place = os.path.join(os.path.dirname(origin), self._paths[sample])  # noqa: PTH118, PTH120
        row = [column[sample] for column in (*self._others.values(), *([self._text] if self._text is not None else []))]
        nbytes, mtime_ns = columns["bytes"][sample], columns["mtime_ns"][sample]
        return f"{place}, {nbytes} bytes, changed at {mtime_ns} ns, row {fingerprint(*row)[:8]}"

    def _where(self, sample: int) -> str:
        return f"{self._paths[sample]} ({self._line(sample)})"

    def _line(self, sample: int) -> str:
        manifest, line = self.place(sample)
        return f"{manifest}, line {line}"


def _header(row: ManifestRow, manifest: str, folder: str) -> Header | BadRow:
    path = os.path.join(folder, row.path)  # noqa: PTH118 - a Path a row costs more than the rest
    try:
        return header_of(path)
    except SampleError as error:
        return BadRow(manifest, row.line, error.reason, f"expected {error.expected}, got {error.got}")
    except OSError as error:
        reason = "missing_file" if isinstance(error, FileNotFoundError) else "unreadable"
        return BadRow(manifest, row.line, reason, f"{error.strerror}: {path}")


def _numbers(rows: Sequence[ManifestRow], headers: Sequence[Header], piece: RowPiece) -> dict[str, list[int]]:
    numbers = {"manifest": [row.manifest for row in rows], "line": [row.line for row in rows]}
    numbers |= {
        name: [header[n] for header in headers] for n, name in enumerate(("bytes", "mtime_ns", "frames", "rate"))
    }
    return numbers | ({"characters": [len(row.text) for row in rows]} if piece.has_text else {})


def _strings(rows: Sequence[ManifestRow], piece: RowPiece) -> dict[str, list[str]]:
    strings = {"path": [row.path for row in rows]} | ({"text": [row.text for row in rows]} if piece.has_text else {})
    return strings | {f"column_{n}": [row.others[n] for row in rows] for n in range(piece.others)}


def _bytes_of(handle: int, nbytes: int) -> bytes:
    """So many bytes, or all that there are: the system may give a large file in pieces."""
    raw = os.read(handle, nbytes)
    while len(raw) < nbytes and (more := os.read(handle, nbytes - len(raw))):
        raw += more
    return raw
