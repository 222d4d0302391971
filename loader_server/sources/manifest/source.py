"""The manifest source: CSV, TSV or JSON lines that name audio files (WAV, FLAC, OGG, MP3) and their transcripts.

Rules: paths are relative to the manifest that names them; rows of several manifests are numbered through, in their
order. The source opens from the index alone and never parses a manifest again. It refuses manifests and audio files
that have changed since indexing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.audio.audio_files import AVERAGED, audio_versions
from loader_server.sources.audio.recorded_source import RecordedSource
from loader_server.sources.audio.recordings import Recordings, audio_field, common_rate
from loader_server.sources.audio.stretches import AudioStretch, Headers, channel_setting, stretch_columns
from loader_server.sources.files.same_files import refuse_other_list
from loader_server.sources.manifest.rows import OFFSET_COLUMN, ManifestRow
from loader_server.sources.manifest.survey import RowPiece, named_files, survey_manifests
from loader_server.sources.remote.urls import joined
from loader_server.sources.source import BadRow, Found, Indexed, Inventory
from loader_server.sources.text_blocks import texts_of_column
from shared.hashing import fingerprint
from shared.settings.parsers import setting, texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shared.wire.batch_layout import Field

__all__ = ["ManifestSettings", "ManifestSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSettings:
    """Further settings of a stream with source = "manifest"."""

    paths: tuple[str, ...] = setting(texts, "manifests, .csv, .tsv or .jsonl, relative to the job file")
    channel: int = channel_setting("recordings with several")


class ManifestSource(RecordedSource):
    """Source of recordings and transcripts.

    Index columns: each sample's manifest (counted from 0), its line, the file's `bytes`, `mtime_ns`, `frames` and
    `rate`, the transcript and its `characters`, the path, and further columns as strings.
    """

    Settings = ManifestSettings
    local_columns = frozenset(("mtime_ns",))
    content_columns = frozenset(("content",))
    settings: ManifestSettings

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the field of audio, one value a frame at its file's own rate.

        Its time is known if all files have one rate and there is an index.
        """
        return (audio_field(self.indexed.about["rate"] if hasattr(self, "indexed") else 0),)

    # --- while an index is made ---

    def stamp(self) -> str:
        """Return a text that changes with the manifests and every file they name, missing ones included.

        Raise a DataError if a manifest cannot be read or its suffix is not that of a manifest, a ReadError if a store
        cannot be asked or read, and a SettingsError if its library is missing. MachineError of the cache of remote
        files passes.
        """
        return self.files.stamp(named_files(self.settings.paths, self.files))

    def survey(self) -> Inventory:
        """Count the rows of all manifests and find duplicates; raise a DataError for an unusable manifest.

        Raise it too if there is no manifest, or only some of them have transcripts; raise a ReadError if a store cannot
        be asked or read, a SettingsError if its library is missing, and an OSError if the disk fails. MachineError of
        reading remote ones passes.
        """
        return survey_manifests(self.settings.paths, self.files)

    def probe(self, piece: RowPiece) -> Found:
        """Read the headers of the files that these rows name; rows with unusable files become bad rows.

        Rows that the survey found bad stay so. Raise a ReadError if a remote file cannot be fetched, a SettingsError if
        a store's library is missing, and a DataError if something other than a file is in a manifest's place.
        MachineError of `_audio` passes through.
        """
        places = [(str(manifest), str(manifest.parent)) for manifest in map(self.files.path, self.settings.paths)]
        good, audio, bad = dict[int, ManifestRow](), list[AudioStretch](), dict[int, BadRow]()
        headers = Headers(self.files, self.settings.channel, self.of_job.largest_indexed)
        for number, row in enumerate(piece.rows, piece.start):
            stretch = row if isinstance(row, BadRow) else _audio(row, headers, *places[row.manifest])
            if isinstance(stretch, BadRow):
                bad[number] = stretch
            elif isinstance(row, ManifestRow):
                good[number] = row
                audio.append(stretch)
        rows = list(good.values())
        numbers = _numbers(rows, piece) | stretch_columns(
            audio, plain=piece.whole and self.settings.channel == AVERAGED
        )
        return Found(rows=list(good), numbers=numbers, strings=_strings(rows, piece), bad=bad)

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        """Return the sampling rate that all files have, or 0 if they differ, as `rate`; there has to be a sample."""
        return {"rate": common_rate(numbers["rate"])}

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if a manifest has changed since or cannot be opened.

        Recordings are not looked at. Raise a ReadError if a store cannot be asked or a manifest fetched, a
        SettingsError if the store's library is missing, and an OSError if the disk fails. Other errors of
        `refuse_other_list` pass.
        """
        for facts in indexed.origin:
            refuse_other_list(facts, self.files, "manifest", indexed.place)
        self._manifests = [self.files.path(facts["path"]) for facts in indexed.origin]
        self.indexed = indexed
        self._folders = [str(manifest.parent) for manifest in self._manifests]
        self._columns = indexed.numbers
        self._paths = indexed.strings["path"]
        self._others = {name: indexed.strings[f"column_{n}"] for n, name in enumerate(indexed.about["others"])}
        self._text = indexed.strings.get("text")
        #: The columns of a row that are neither its file nor its place, by the keys of a sample.
        self._row = self._others if self._text is None else {**self._others, "text": self._text}
        self._recordings = Recordings(indexed.numbers, self._path, self._line, self.files, self.of_job.largest_sample)
        self.files.note_remote(indexed.samples, self._path)

    @property
    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """Return lengths by key: audio in frames, with its rate in hertz; the transcript, if any, in characters."""
        keys = {"audio": "frames", "audio_rate": "rate", "text": "characters"}
        return {key: self._columns[column] for key, column in keys.items() if column in self._columns}

    def texts(self, key: str) -> Iterator[Sequence[str]] | None:
        """Return the transcripts, which the index has; None for another key or if there are no transcripts."""
        return texts_of_column(self._text) if key == "text" and self._text is not None else None

    @property
    def columns(self) -> dict[str, Any]:
        """Return the paths, and the further columns of the manifests, by name."""
        return {"path": self._paths, **self._others}

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the first sample of each manifest that has samples, in the manifests' order; () without samples."""
        return tuple(np.flatnonzero(np.diff(self._columns["manifest"], prepend=-1)).tolist())

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Start fetching the recordings of these samples, if they are remote; fetches that fail are dropped."""
        if self.files.are_remote:
            self._recordings.expect(samples.tolist())

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of each recording or stretch; empty bytes if decoding has to seek in the file.

        Raise a ReadError if the file is not the indexed one or cannot be fetched, an IndexError if a sample's number is
        out of range, and an OSError if the file cannot be opened or read. SettingsError and MachineError of `read` pass
        through.
        """
        return map(self._recordings.read, map(self.checked, samples))

    def _path(self, sample: int) -> str:
        folder: str = self._folders[self._columns["manifest"][sample]]
        return joined(folder, self._paths[sample])

    def values_beside_audio(self, sample: int) -> dict[str, Any]:
        """Return the row's transcript and further columns as strings, by key."""
        return {name: column[sample] for name, column in self._row.items()}

    def name(self, sample: int) -> str:
        """Return the path as the manifest has it, with the offset in seconds if the sample is a stretch.

        Raise an IndexError if the sample's number is out of range.
        """
        path: str = self._paths[self.checked(sample)]
        return path if self._recordings.is_whole(sample) else f"{path}@{self._others[OFFSET_COLUMN][sample]}"

    def place(self, sample: int) -> tuple[str, int]:
        """Return the path of the manifest that has the sample, and its line there, from 1; no number is refused."""
        return str(self._manifests[self._columns["manifest"][sample]]), int(self._columns["line"][sample])

    def identity(self, sample: int) -> str:
        """Return the file as it was indexed, and a digest of the rest of its row; the number is not checked."""
        origin = self.indexed.origin[self._columns["manifest"][sample]]["path"]
        place = self.files.beside(origin, self._paths[sample])
        row = fingerprint(*(column[sample] for column in self._row.values()))[:8]
        return f"{place}, {self._recordings.identity(sample)}, row {row}"

    @property
    def versions(self) -> dict[str, str]:
        """Return the versions of the decoding libraries, by name.

        Raise importlib's PackageNotFoundError if soundfile was not installed as a package.
        """
        return audio_versions()

    def _line(self, sample: int) -> str:
        manifest, line = self.place(sample)
        return f"{manifest}, line {line}"


def _audio(row: ManifestRow, headers: Headers, manifest: str, folder: str) -> AudioStretch | BadRow:
    """Return the stretch of audio that a row names, or a BadRow if its file or the stretch cannot be used.

    Raise a ReadError if a remote file cannot be fetched, and a SettingsError if its store's library is missing.
    MachineError of `find` passes through.
    """
    return headers.find(joined(folder, row.path), row.stretch, (manifest, row.line))


def _numbers(rows: Sequence[ManifestRow], piece: RowPiece) -> dict[str, list[int]]:
    """Return the numeric columns from the rows themselves: manifest, line and, if there are transcripts, characters."""
    numbers = {"manifest": [row.manifest for row in rows], "line": [row.line for row in rows]}
    return numbers | ({"characters": [len(row.text) for row in rows]} if piece.has_text else {})


def _strings(rows: Sequence[ManifestRow], piece: RowPiece) -> dict[str, list[str]]:
    """Return the columns of strings: paths, transcripts if there are any, and further columns by their number."""
    strings = {"path": [row.path for row in rows]} | ({"text": [row.text for row in rows]} if piece.has_text else {})
    return strings | {f"column_{n}": [row.others[n] for row in rows] for n in range(piece.others)}
