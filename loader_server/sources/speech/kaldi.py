"""The kaldi source: Kaldi data folders, with audio (wav.scp, segments) or with features (feats.scp and archives).

Rules: a folder's tables are joined by key and need not be sorted; commands in them are never run. The index has
everything that the tables say, so they are not read again, and tables that have changed are refused. Bad rows are the
lines that cannot be used, and lines of `text` without audio or features.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from loader_server.sources.audio.recorded_source import ListedSource
from loader_server.sources.audio.recordings import audio_field, common_rate
from loader_server.sources.audio.stretches import AudioStretch, Headers, channel_setting, stretch_columns
from loader_server.sources.files.same_files import list_facts
from loader_server.sources.source import BadRow, Found, Indexed, Inventory, Source
from loader_server.sources.speech.kaldi_audio import ArchivedAudioHeaders, ArchivedRecordings, archived_columns
from loader_server.sources.speech.kaldi_entries import KaldiUtterance, utterance_of
from loader_server.sources.speech.kaldi_features import (
    ArchivedFeatures,
    ArchiveHeaders,
    ArchivePlace,
    feature_columns,
    features_field,
)
from loader_server.sources.speech.kaldi_folder import FEATURES, TABLES, TEXT, JoinedLine, KaldiFolder
from shared.errors import DataError
from shared.settings.parsers import choice, setting, text, texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns
    from shared.wire.batch_layout import Field

__all__ = ["KaldiPiece", "KaldiSettings", "KaldiSource"]

#: What follows an archive in the name of a recording in it.
_AT_PLACE = re.compile(r":\d+$")

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
    one whose lines are rows. `columns` is the width of all features. `placed` says that the index needs columns for
    more than the file: some features are ranges, or some recordings lie in archives.
    """

    start: int
    folder: int
    tables: tuple[str, ...]
    rows: tuple[JoinedLine | BadRow, ...]
    columns: int
    placed: bool


class KaldiSource(ListedSource):
    """Utterances of Kaldi data folders.

    The index has these columns: folder (counted from 0), line in the folder's first table, length of the text, and the
    columns of `stretch_columns` or `feature_columns`; and these strings: key, path, speaker, and text if there is one.
    """

    Settings = KaldiSettings
    list_kind = "table"
    beside_audio = ("speaker", TEXT)
    settings: KaldiSettings

    #: Recordings, or ArchivedRecordings, or ArchivedFeatures, which are read and checked by the same methods.
    _recordings: Any
    _folders: tuple[KaldiFolder, ...] = ()

    @property
    def _features(self) -> bool:
        """Return whether samples are features, not audio."""
        return self.settings.values == "features"

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the field of audio, with time if all files have one rate; or the field of features.

        Before indexing, the width of features is that of the first matrix that can be read; raise a DataError then if a
        folder has no feats.scp, a ReadError if a store cannot be asked, or an OSError if an archive cannot be read.
        SettingsError of `_first_columns` passes through.
        """
        about = self.indexed.about if hasattr(self, "indexed") else {}
        if not self._features:
            return (audio_field(about.get("rate", 0)),)
        return (features_field(about["columns"] if "columns" in about else self._first_columns()),)

    # --- while an index is made ---

    def stamp(self) -> str:
        """Return a stamp of all tables, present or missing, and of every file that they name.

        Raise a DataError if a folder lacks the table of audio or features, a ReadError if a store cannot be asked, or
        an OSError if a table cannot be read. SettingsError of `stamp` passes through.
        """
        # A file that is replaced may have another length, although no table has changed.
        named = chain.from_iterable(folder.named_files() for folder in self._all_folders())
        tables = (f"{path.rstrip('/')}/{table}" for path in self.settings.paths for table in TABLES)
        return self.files.stamp(chain(tables, map(self._below_root, named)))

    def _all_folders(self) -> tuple[KaldiFolder, ...]:
        """Return all folders; raise a DataError if one lacks the table of audio or features.

        Raise a ReadError if a store cannot be asked which tables there are. SettingsError of `KaldiFolder` passes
        through.
        """
        return tuple(KaldiFolder(self.files, path, features=self._features) for path in self.settings.paths)

    def survey(self) -> Inventory:
        """Join each folder's tables and count their rows.

        Raise a DataError if there are no folders, if one is named twice or lacks a table that is needed, if a table is
        no readable text, or if only some folders have a `text`; a ReadError if a store cannot be asked or read, and an
        OSError if the disk fails. SettingsError of `list_facts` and MachineError of `join` pass through.
        """
        # The utterances of a folder that is named twice, perhaps by a link, would count twice.
        self.files.refuse_twice(path.rstrip("/") for path in self.settings.paths)
        self._folders = folders = self._all_folders()
        _refuse_other_folders(folders, ", ".join(self.settings.paths) or str(self.base))
        listed = [f"{folder.path}/{table}" for folder in folders for table in folder.tables]
        about: dict[str, Any] = {"first": [folder.tables[0] for folder in folders]}
        about |= {"columns": self._first_columns()} if self._features else {}
        placed = any(folder.has_ranges() if self._features else folder.has_places() for folder in folders)
        return Inventory(
            total=sum(folder.join() for folder in folders),
            pieces=lambda rows: self._pieces(rows, about.get("columns", 0), placed=placed),
            origin=[list_facts(path, self.files, "table") for path in listed],
            about=about,
        )

    def _first_columns(self) -> int:
        """Return the width of the first features that can be read; 0 for vectors or without any.

        Raise a DataError if a folder has no feats.scp, a ReadError if a store cannot be asked, or an OSError if an
        archive cannot be read. Other errors of `Files.open` and of `ArchiveHeaders.find` pass through.
        """
        find = self._finder(None, archived=False)
        for path in self.settings.paths:
            with self.files.open(f"{path.rstrip('/')}/{FEATURES}") as file:
                for number, line in enumerate(file):
                    row = utterance_of(JoinedLine(number, line, {}, -1), FEATURES, path, ())
                    place = row if isinstance(row, BadRow) else find(row, (path, row.line))
                    if isinstance(place, ArchivePlace):
                        return place.header.columns
        return 0

    def _pieces(self, rows: int, columns: int, *, placed: bool) -> Iterator[KaldiPiece]:
        """Yield the rows of all folders in pieces of at most `rows` rows."""
        start = 0
        for number, folder in enumerate(self._folders):
            left = folder.rows()
            while some := tuple(islice(left, rows)):
                yield KaldiPiece(
                    start=start, folder=number, tables=folder.tables, rows=some, columns=columns, placed=placed
                )
                start += len(some)

    def probe(self, piece: KaldiPiece) -> Found:
        """Read the header of every audio file or matrix that these rows name.

        Return the good rows' columns and the bad rows; raise a ReadError if a remote file cannot be fetched, or an
        OSError if an archive of features cannot be read. Other errors of reading headers pass, such as a SettingsError
        if a store's library is missing.
        """
        find = self._finder(piece.columns, archived=piece.placed)
        where = self._where(piece.folder, piece.tables[0])
        good, bad = _Rows(), dict[int, BadRow]()
        for number, row in enumerate(piece.rows, piece.start):
            utterance = row if isinstance(row, BadRow) else utterance_of(row, piece.tables[0], where, piece.tables)
            place = utterance if isinstance(utterance, BadRow) else find(utterance, (where, utterance.line))
            if isinstance(place, BadRow):
                bad[number] = place
            elif isinstance(utterance, KaldiUtterance):
                good[number] = utterance, place
        return self._found(piece, good, bad)

    def _finder(
        self, columns: int | None, *, archived: bool
    ) -> Callable[[KaldiUtterance, tuple[str, int]], AudioStretch | ArchivePlace | BadRow]:
        """Return a function that finds the stretch or matrix of an utterance, or a BadRow.

        `archived` says that recordings may lie in archives. Features of another width than `columns` are bad; None
        allows any. The function raises what `Headers.find` or `ArchiveHeaders.find` does: a ReadError if a remote file
        cannot be fetched, or an OSError if an archive cannot be read.
        """
        if not self._features:
            channel, largest = self.settings.channel, self.of_job.largest_indexed
            if archived:  # archives are read by their names in the table, relative to the job file
                inside = ArchivedAudioHeaders(self.files, channel, largest)
                return lambda utterance, where: inside.find(self._below_root(utterance.path), utterance.stretch, where)
            headers = Headers(self.files, channel, largest)
            return lambda utterance, where: headers.find(self._from_base(utterance.path), utterance.stretch, where)
        archives = ArchiveHeaders(self.files)

        def find(utterance: KaldiUtterance, where: tuple[str, int]) -> ArchivePlace | BadRow:
            place = archives.find(self._below_root(utterance.path), utterance.offset, utterance.rows, where)
            if isinstance(place, BadRow) or columns in (None, place.header.columns):
                return place
            return BadRow(
                *where,
                "other_columns",
                f"expected {columns} columns, as the first features have, got {place.header.columns}",
            )

        return find

    def _found(self, piece: KaldiPiece, good: _Rows, bad: Mapping[int, BadRow]) -> Found:
        """Return the columns of the good rows, together with the bad rows.

        There are columns of features or of stretches of recordings, and those of texts if the folder has any.
        """
        utterances, places = [utterance for utterance, _ in good.values()], [place for _, place in good.values()]
        names = ("key", "path", "speaker", *((TEXT,) if TEXT in piece.tables else ()))
        strings = {name: list(map(attrgetter(name), utterances)) for name in names}
        numbers = {"folder": [piece.folder] * len(good), "line": list(map(attrgetter("line"), utterances))}
        if self._features:
            numbers |= feature_columns(places, ranged=piece.placed)
        else:
            numbers |= archived_columns(places) if piece.placed else stretch_columns(places, plain=False)
        numbers |= {"length_text": list(map(len, strings[TEXT]))} if TEXT in strings else {}
        return Found(rows=list(good), numbers=numbers, strings=strings, bad=bad)

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        """Return the common rate of all audio, or 0 if files differ; nothing for features."""
        return {} if self._features else {"rate": common_rate(numbers["rate"])}

    def _where(self, folder: int, table: str) -> str:
        """Return how messages name a folder's table."""
        return self.files.where(f"{self.settings.paths[folder].rstrip('/')}/{table}")

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if a table is gone or has changed since it was made.

        Raise a ReadError if its store cannot be asked, or an OSError if the disk fails. SettingsError of `open` passes
        through.
        """
        super().open(indexed)
        if self._features:
            self._recordings = ArchivedFeatures(self.files, indexed.numbers, self._path, indexed.about["columns"])
        elif "offset" in indexed.numbers:
            largest, line_of = self.of_job.largest_sample, partial(Source.name, self)
            self._recordings = ArchivedRecordings(self.files, indexed.numbers, self._archive, line_of, largest)

    def _archive(self, sample: int) -> str:
        """Return the archive that a recording lies in, or the file that it is."""
        return _AT_PLACE.sub("", self._path(sample))

    @property
    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """Return the lengths of features, or of audio in frames with its rate, and of texts in characters."""
        numbers = self.indexed.numbers
        return super().lengths | ({} if self._features else {"audio": numbers["frames"], "audio_rate": numbers["rate"]})

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the first sample of each folder that has samples."""
        return tuple(np.flatnonzero(np.diff(self.indexed.numbers["folder"], prepend=-1)).tolist())

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the audio with its rate, or the features, and the text and speaker as strings.

        Raise a SampleError if audio cannot be decoded, or a ReadError if a file turns out not to be the indexed one; an
        OSError if audio has to be read from a file that cannot be opened, or a ValueError if the bytes of features do
        not fit. MachineError and SettingsError of `decode` pass through.
        """
        if not self._features:
            return super().decode(sample, raw)
        return self.values_beside_audio(sample) | {"features": self._recordings.decode(sample, raw)}

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns | None:
        """Return the samples as columns if that pays, or None; always None for features. Raise what `decode` raises."""
        return None if self._features else super().decode_all(samples, raw)

    def place(self, sample: int) -> tuple[str, int]:
        """Return the table whose lines are rows, and the sample's line in it, counted from 1."""
        folder = int(self.indexed.numbers["folder"][sample])
        return self._where(folder, self.indexed.about["first"][folder]), int(self.indexed.numbers["line"][sample])

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the audio libraries; none for features, which are plain numbers.

        Raise importlib's PackageNotFoundError as `audio_versions` does if a library is not installed.
        """
        return {} if self._features else super().versions

    def close(self) -> None:
        """Close tables and archives; archives open again when they are read, tables with the next `survey`."""
        super().close()
        for folder in self._folders:
            folder.close()


def _refuse_other_folders(folders: Sequence[KaldiFolder], where: str) -> None:
    """Raise a DataError if there are no folders, or if only some have a `text`."""
    if not folders:
        raise DataError(expected="at least one folder", got="none", where=where, remedy='Write paths = ["data/train"].')
    # Every piece of an index has the same columns, so texts have to be everywhere or nowhere.
    without = [folder.path for folder in folders if TEXT not in folder.tables]
    if 0 < len(without) < len(folders):
        raise DataError(
            expected="a text in all folders or in none",
            got=f"none in {without[0]}",
            where=where,
            remedy="Add the table text.",
        )
