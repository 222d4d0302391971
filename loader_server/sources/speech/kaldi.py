"""The kaldi source: Kaldi data folders, with audio (wav.scp, segments) or with features (feats.scp and archives).

Rules: a folder's tables are joined by key and need not be sorted; commands in them are never run. The index has
everything that the tables say, so they are not read again, and tables that have changed are refused. Bad rows are the
lines that cannot be used, and lines of `text` without audio or features.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from loader_server.sources.audio.decoding import audio_versions
from loader_server.sources.audio.recorded_source import RecordedSource
from loader_server.sources.audio.recordings import Recordings, audio_field, common_rate
from loader_server.sources.audio.stretches import AudioStretch, Headers, channel_setting, stretch_columns
from loader_server.sources.files.lists import list_facts, refuse_other_list
from loader_server.sources.remote.urls import is_url, joined
from loader_server.sources.source import BadRow, Found, Indexed, Inventory, texts_of_column
from loader_server.sources.speech.kaldi_entries import (
    FEATURES,
    TABLES,
    TEXT,
    KaldiUtterance,
    utterance_of,
)
from loader_server.sources.speech.kaldi_features import (
    ArchivedFeatures,
    ArchiveHeaders,
    ArchivePlace,
    feature_columns,
    features_field,
)
from loader_server.sources.speech.kaldi_folder import KaldiFolder
from loader_server.sources.speech.kaldi_tables import JoinedLine
from shared.errors import DataError
from shared.hashing import fingerprint
from shared.settings.parsers import choice, setting, text, texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns
    from loader_server.sources.files.presence import IndexedFiles
    from shared.wire.batch_layout import Field

__all__ = ["KaldiPiece", "KaldiSettings", "KaldiSource"]

#: Good rows by number: the utterance as the tables give it, and its audio stretch or its matrix in an archive.
_Rows: TypeAlias = dict[int, tuple[KaldiUtterance, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KaldiSettings:
    """Settings of a stream with source = "kaldi", besides those of every stream."""

    paths: tuple[str, ...] = setting(texts, "Kaldi data folders, relative to the job file, or URLs")
    values: str = setting(
        choice("audio", "features"), "what samples have: audio of wav.scp, or features of feats.scp", default="audio"
    )
    root: str = setting(
        text, "where relative paths in the folders' tables start from, relative to the job file", default="."
    )
    channel: int = channel_setting("recordings with several, where no segment says it")


@dataclass(frozen=True, slots=True, kw_only=True)
class KaldiPiece:
    """Consecutive rows of one folder.

    `start` is the number of the first row, counted over all folders. `tables` are the tables of the folder, first the
    one whose lines are rows. `columns` is the width of all features, and `ranged` is set if any of them are ranges.
    """

    start: int
    folder: int
    tables: tuple[str, ...]
    rows: tuple[JoinedLine | BadRow, ...]
    columns: int
    ranged: bool


class KaldiSource(RecordedSource):
    """Utterances of Kaldi data folders.

    The index has these columns: folder (counted from 0), line in the folder's first table, length of the text, and the
    columns of `stretch_columns` or `feature_columns`; and these strings: key, path, speaker, and text if there is one.
    """

    Settings = KaldiSettings
    local_columns = frozenset(("mtime_ns",))
    content_columns = frozenset(("content",))
    settings: KaldiSettings

    _folders: tuple[KaldiFolder, ...] = ()

    @property
    def _features(self) -> bool:
        """Return whether samples are features, not audio."""
        return self.settings.values == "features"

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the field of audio, with time if all files have one rate; or the field of features.

        Before indexing, the width of features is that of the first matrix that can be read.
        """
        about = self.indexed.about if hasattr(self, "indexed") else {}
        if not self._features:
            return (audio_field(about.get("rate", 0)),)
        return (features_field(about["columns"] if "columns" in about else self._first_columns()),)

    # --- while an index is made ---

    def stamp(self) -> str:
        """Return a stamp of all tables, present or missing, and of every file that they name."""
        named = chain.from_iterable(folder.named_files() for folder in self._all_folders())
        tables = (f"{path.rstrip('/')}/{table}" for path in self.settings.paths for table in TABLES)
        return self.files.stamp(chain(tables, map(self._below, named)))

    def _all_folders(self) -> tuple[KaldiFolder, ...]:
        """Return all folders; raise a DataError if one lacks the table of audio or features."""
        return tuple(KaldiFolder(self.files, path, features=self._features) for path in self.settings.paths)

    def survey(self) -> Inventory:
        """Join each folder's tables and count their rows.

        Raise a DataError if there are no folders, if one lacks a table that is needed, or if only some have a `text`.
        """
        # The utterances of a folder that is named twice, perhaps by a link, would count twice.
        self.files.refuse_twice(path.rstrip("/") for path in self.settings.paths)
        self._folders = folders = self._all_folders()
        self._refuse_some_without_text(folders)
        listed = [f"{folder.path}/{table}" for folder in folders for table in folder.tables]
        about: dict[str, Any] = {"first": [folder.tables[0] for folder in folders]}
        about |= {"columns": self._first_columns()} if self._features else {}
        ranged = self._features and any(folder.has_ranges() for folder in folders)
        return Inventory(
            total=sum(folder.join() for folder in folders),
            pieces=lambda rows: self._pieces(rows, about.get("columns", 0), ranged=ranged),
            origin=[list_facts(path, self.files, "table") for path in listed],
            about=about,
        )

    def _refuse_some_without_text(self, folders: Sequence[KaldiFolder]) -> None:
        """Raise a DataError unless all folders have a `text`, or none."""
        without = [folder.path for folder in folders if TEXT not in folder.tables]
        if not folders or 0 < len(without) < len(folders):
            raise DataError(
                expected="a text in all folders or in none" if folders else "at least one folder",
                got=f"none in {without[0]}" if folders else "none",
                where=", ".join(self.settings.paths) or str(self.base),
                remedy="Add the table text." if folders else 'Write paths = ["data/train"].',
            )

    def _first_columns(self) -> int:
        """Return the width of the first features that can be read; 0 for vectors or without any."""
        find = self._finder(None)
        for path in self.settings.paths:
            with self.files.open(f"{path.rstrip('/')}/{FEATURES}") as file:
                for number, line in enumerate(file):
                    row = utterance_of(JoinedLine(number, line, {}, -1), FEATURES, path, ())
                    found = row if isinstance(row, BadRow) else find(row, (path, row.line))
                    if isinstance(found, ArchivePlace):
                        return found.header.columns
        return 0

    def _pieces(self, rows: int, columns: int, *, ranged: bool) -> Iterator[KaldiPiece]:
        """Yield the rows of all folders in pieces of at most `rows` rows."""
        start = 0
        for number, folder in enumerate(self._folders):
            left = folder.rows()
            while some := tuple(islice(left, rows)):
                yield KaldiPiece(
                    start=start, folder=number, tables=folder.tables, rows=some, columns=columns, ranged=ranged
                )
                start += len(some)

    def probe(self, piece: KaldiPiece) -> Found:
        """Read the header of every audio file or matrix that these rows name.

        Return the good rows' columns and the bad rows.
        """
        find = self._finder(piece.columns)
        where = self._where(piece.folder, piece.tables[0])
        good, bad = _Rows(), dict[int, BadRow]()
        for number, row in enumerate(piece.rows, piece.start):
            said = row if isinstance(row, BadRow) else utterance_of(row, piece.tables[0], where, piece.tables)
            if isinstance(said, BadRow):
                bad[number] = said
                continue
            found = find(said, (where, said.line))
            if isinstance(found, BadRow):
                bad[number] = found
            else:
                good[number] = said, found
        return self._found(piece, good, bad)

    def _finder(
        self, columns: int | None
    ) -> Callable[[KaldiUtterance, tuple[str, int]], AudioStretch | ArchivePlace | BadRow]:
        """Return a function that finds the stretch or matrix of an utterance, or a BadRow.

        Features of another width than `columns` are bad; None allows any.
        """
        if not self._features:
            headers = Headers(self.files, self.settings.channel, self.of_job.largest_indexed)
            return lambda said, where: headers.find(self._from_base(self._below(said.path)), said.stretch, where)
        archives = ArchiveHeaders(self.files)

        def find(said: KaldiUtterance, where: tuple[str, int]) -> ArchivePlace | BadRow:
            found = archives.find(self._below(said.path), said.offset, said.rows, where)
            if isinstance(found, BadRow) or columns in (None, found.header.columns):
                return found
            detail = f"expected {columns} columns, as the first features have, got {found.header.columns}"
            return BadRow(*where, "other_columns", detail)

        return find

    def _found(self, piece: KaldiPiece, good: _Rows, bad: Mapping[int, BadRow]) -> Found:
        """Return the columns of the good rows, together with the bad rows."""
        said, places = (list(one) for one in zip(*good.values(), strict=True)) if good else ([], [])
        names = ("key", "path", "speaker", *((TEXT,) if TEXT in piece.tables else ()))
        strings = {name: [getattr(one, name) for one in said] for name in names}
        numbers = {"folder": [piece.folder] * len(good), "line": [one.line for one in said]}
        if self._features:
            numbers |= feature_columns(places, ranged=piece.ranged)
        else:
            numbers |= stretch_columns(places, plain=False)
        numbers |= {"length_text": [len(one) for one in strings[TEXT]]} if TEXT in strings else {}
        return Found(rows=list(good), numbers=numbers, strings=strings, bad=bad)

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        """Return the common rate of all audio, or 0 if files differ; nothing for features."""
        return {} if self._features else {"rate": common_rate(numbers["rate"])}

    def _below(self, path: str) -> str:
        """Return a path from a table, relative to the job file, or its URL."""
        return joined(self.settings.root, path)

    def _from_base(self, path: str) -> str:
        """Return a path on this machine, or the URL as it is."""
        return path if is_url(path) else str(self.base / path)

    def _where(self, folder: int, table: str) -> str:
        """Return how messages name a folder's table."""
        return self.files.where(f"{self.settings.paths[folder].rstrip('/')}/{table}")

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if a table has changed since it was made."""
        for facts in indexed.origin:
            refuse_other_list(facts, self.files, "table", indexed.place)
        self.indexed = indexed
        self._strings = indexed.strings
        self._recordings = Recordings(indexed.numbers, self._path, self._line, self.files, self.of_job.largest_sample)
        columns = indexed.about.get("columns", 0)
        self.files.note_remote(indexed.samples, self._archive)
        self._archived = ArchivedFeatures(self.files, indexed.numbers, self._archive, columns)

    @property
    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """Return the lengths of features, or of audio in frames with its rate, and of texts in characters."""
        numbers = self.indexed.numbers
        return super().lengths | ({} if self._features else {"audio": numbers["frames"], "audio_rate": numbers["rate"]})

    def texts(self, key: str) -> Iterator[Sequence[str]] | None:
        """Return the transcripts, block by block, out of the index; None if there are none under this key."""
        return texts_of_column(self._strings[TEXT]) if key == TEXT and TEXT in self._strings else None

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the first sample of each folder that has samples."""
        return tuple(np.flatnonzero(np.diff(self.indexed.numbers["folder"], prepend=-1)).tolist())

    def read(self, samples: Sequence[int]) -> Iterable[bytes]:
        """Return the bytes of each sample's audio or features, read when they are asked for.

        Raise an IndexError for a number that is no sample; reading raises a ReadError if a file is not the indexed one.
        """
        checked = [self.checked(sample) for sample in samples]
        return self._archived.read(checked) if self._features else map(self._recordings.read, checked)

    def look_for_changes(self, time_s: float) -> None:
        """Refuse recordings or archives that changed since indexing, as time allows."""
        (self._archived if self._features else self._recordings).look_for_changes(time_s)

    def indexed_files(self) -> IndexedFiles:
        """Return the files of the recordings, or the archives."""
        return (self._archived if self._features else self._recordings).indexed_files()

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Start fetching the samples' recordings, or their places in archives, if they are remote."""
        if self.files.are_remote:
            (self._archived if self._features else self._recordings).expect(samples.tolist())

    def _archive(self, sample: int) -> str:
        """Return the sample's file or archive, relative to the job file, or its URL."""
        return self._below(self._strings["path"][sample])

    def _path(self, sample: int) -> str:
        """Return the sample's file on this machine, or its URL."""
        return self._from_base(self._archive(sample))

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the audio with its rate, or the features, and the text and speaker as strings."""
        if self._features:
            return self.said_of(sample) | {"features": self._archived.decode(sample, raw)}
        return super().decode(sample, raw)

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns | None:
        """Return the samples as columns if that pays; always None for features."""
        return None if self._features else super().decode_all(samples, raw)

    def said_of(self, sample: int) -> dict[str, Any]:
        """Return the text, if the folders have one, and the speaker (empty without utt2spk)."""
        return {name: self._strings[name][sample] for name in ("text", "speaker") if name in self._strings}

    def name(self, sample: int) -> str:
        """Return the utterance's key."""
        key: str = self._strings["key"][self.checked(sample)]
        return key

    def place(self, sample: int) -> tuple[str, int]:
        """Return the table whose lines are rows, and the sample's line in it."""
        folder = int(self.indexed.numbers["folder"][sample])
        return self._where(folder, self.indexed.about["first"][folder]), int(self.indexed.numbers["line"][sample])

    def _line(self, sample: int) -> str:
        """Return how messages name the sample's line."""
        return "{}, line {}".format(*self.place(sample))

    def identity(self, sample: int) -> str:
        """Return the key, the file as indexed, and a hash of speaker and text."""
        own = (self._archived if self._features else self._recordings).identity(sample)
        said = fingerprint(*(self._strings[name][sample] for name in ("speaker", "text") if name in self._strings))
        return f"{self.name(sample)}, {self._strings['path'][sample]}, {own}, row {said[:8]}"

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the audio libraries; none for features, which are plain numbers."""
        return {} if self._features else audio_versions()

    def close(self) -> None:
        """Close tables and archives."""
        super().close()
        for folder in self._folders:
            folder.close()
