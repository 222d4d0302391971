"""The lhotse source: cut manifests (.jsonl, .jsonl.gz) and Shar folders, with recordings, features and custom fields.

Rules: a sample is a cut, its supervisions' texts joined by blanks in order of time, or each supervision is a sample.
Plain recordings and stored arrays are read without Lhotse, and only the sample's stretch; cuts that only Lhotse can
make (`use_lhotse`) are made by it. The index has everything that manifests say, so they are not read again, and one
that has changed is refused. Lengths come from files, or are those that Lhotse promises.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.audio.recorded_source import ListedSource
from loader_server.sources.audio.recordings import audio_field, common_rate
from loader_server.sources.audio.stretches import channel_setting
from loader_server.sources.batch_columns import fields_of_rows
from loader_server.sources.cuts.custom_fields import FIELD_KINDS, MOST_FIELDS, cells_of, forms_asked
from loader_server.sources.cuts.cut_columns import FoundCut, columns_of_cuts
from loader_server.sources.cuts.cut_finder import FEATURES, CutFinder, form_found
from loader_server.sources.cuts.made_cuts import MadeCuts, lhotse_versions
from loader_server.sources.cuts.plain_cuts import MIXED, PLAIN, WHOLE_CUT, UnusableCut, cut_sample, samples_in
from loader_server.sources.cuts.recipes import files_named
from loader_server.sources.cuts.sample_parts import SampleParts
from loader_server.sources.cuts.shar_folders import Shard, manifest_lines, shard_lines, shards_of
from loader_server.sources.cuts.stored_arrays import StoredColumn, array_versions
from loader_server.sources.cuts.stored_places import RootedPaths
from loader_server.sources.files.same_files import list_facts, refuse_absent_list
from loader_server.sources.manifest.cell_forms import CellForm, number_of
from loader_server.sources.source import BadRow, Found, Indexed, Inventory, Source
from shared.errors import DataError
from shared.hashing import fingerprint
from shared.settings.parsers import by_key, choice, flag, setting, text, texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns
    from loader_server.sources.files.presence import IndexedFiles
    from loader_server.sources.source import Chunk
    from shared.wire.batch_layout import Field

__all__ = ["CutPiece", "LhotseSettings", "LhotseSource"]

_MANIFEST = "cut manifest"
_SUFFIXES = (".jsonl", ".jsonl.gz")
#: How many rows are looked at for the forms of features and arrays.
_FIRST_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LhotseSettings:
    """Settings of a stream with source = "lhotse", besides those of every stream."""

    paths: tuple[str, ...] = setting(
        texts, "cut manifests, .jsonl or .jsonl.gz, or Shar folders, relative to the job file, or URLs"
    )
    sample: str = setting(
        choice("cut", "supervision"), "a cut with the texts of its supervisions, or each supervision", default="cut"
    )
    root: str = setting(text, "where relative paths in the manifests start from, relative to the job file", default=".")
    channel: int = channel_setting("cuts with several")
    values: str = setting(
        choice("audio", FEATURES), "what samples have: audio, or features that were stored", default="audio", later=True
    )
    custom: tuple[tuple[str, str], ...] = setting(
        by_key(choice(*FIELD_KINDS)),
        'custom fields and what they become, such as { snr = "float32", domain = "text", alignment = "array" }',
        default=(),
        later=True,
    )
    use_lhotse: bool = setting(
        flag,
        "whether Lhotse makes the samples: mixed, padded and perturbed cuts, Shar folders",
        default=False,
        later=True,
    )


@dataclass(frozen=True, slots=True)
class CutPiece:
    """Consecutive rows: `start` is the first one's number over all manifests, whose paths are `manifests`.

    Each row has its manifest's number, its line number, the line, and a supervision's number or WHOLE_CUT. `forms` are
    those of features and custom fields.
    """

    start: int
    rows: tuple[tuple[int, int, bytes, int], ...]
    manifests: tuple[str, ...]
    forms: tuple[CellForm, ...]


class LhotseSource(ListedSource):
    """Cuts of Lhotse manifests or Shar folders, or their supervisions.

    The index has these columns: manifest (counted from 0), line, length of the text, and those of what samples are made
    of (`stretch_columns`, `array_columns`, `made_columns`); and these strings: key, path, text, speaker and language,
    and custom fields.
    """

    Settings = LhotseSettings
    list_kind = _MANIFEST
    beside_audio = ("text", "speaker", "language")
    local_columns = frozenset(("mtime_ns", *(f"mtime_ns_{place}" for place in range(MOST_FIELDS + 1))))
    settings: LhotseSettings

    @property
    def content_columns(self) -> frozenset[str]:  # type: ignore[override]
        """Return the index's columns of digests: of recordings, if they are plain, and of each key of arrays.

        Raise a SettingsError as `survey` does, for custom fields.
        """
        recordings = () if self._has_features or self.settings.use_lhotse else ("content",)
        return frozenset((*recordings, *(f"content_{place}" for place in range(len(self._stored(self._asked))))))

    def _stored(self, forms: tuple[CellForm, ...]) -> list[CellForm]:
        """Return the forms of arrays that are read from their places: not those of features that Lhotse makes."""
        arrays = [form for form in forms if form.kind == "array"]
        return [form for form in arrays if form.key != FEATURES] if self.settings.use_lhotse else arrays

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the field of audio, with time if all files have one rate, or of features; then custom fields.

        Before there is an index, raise what `survey` raises if there are features or arrays.
        """
        about = self.indexed.about if hasattr(self, "indexed") else {}
        main = () if self._has_features else (audio_field(about.get("rate", 0)),)
        columns = [column for form in self._forms if (column := form.column()) is not None]
        arrays = fields_of_rows(columns, {}) if columns else ()
        return (*main, *arrays)

    @property
    def _has_features(self) -> bool:
        return self.settings.values == FEATURES

    @property
    def _types(self) -> tuple[str, ...]:
        """Return the types of cuts that are read."""
        return MIXED if self.settings.use_lhotse else PLAIN

    @cached_property
    def _asked(self) -> tuple[CellForm, ...]:
        """Return the forms of features, if they are wanted, and of custom fields, arrays first; dtypes are not known.

        Raise a SettingsError if a custom field has a name that samples have otherwise.
        """
        features = (CellForm(key=FEATURES, kind="array"),) if self._has_features else ()
        return (*features, *forms_asked(self.settings.custom, self.of_job.table))

    @cached_property
    def _forms(self) -> tuple[CellForm, ...]:
        """Return the forms with dtypes and shapes; those of arrays are of the first of 64 rows that can be used.

        Raise a DataError if there is no such row, and what `survey` raises.
        """
        if hasattr(self, "indexed") and "forms" in self.indexed.about:
            return tuple(map(CellForm.from_json, self.indexed.about["forms"]))
        if all(form.kind != "array" for form in self._asked):
            return self._asked
        complaint = "no rows"
        paths = [path for path, _ in self._manifests]
        with closing(self._finder()) as finder:
            for manifest, place, line, supervision in islice(self._rows(), _FIRST_ROWS):
                where = self.files.where(paths[manifest]), place
                found = self._found_cut(finder, (line, supervision), where, self._asked)
                if isinstance(found, FoundCut):
                    return found.forms
                complaint = found.detail
        raise DataError(
            expected=f"a cut among the first {_FIRST_ROWS} that has all that `values` and `custom` ask for",
            got=complaint,
            where=", ".join(self.settings.paths),
            remedy="Mend the first cuts, or `values` and `custom` of the stream.",
        )

    # --- while an index is made ---

    @cached_property
    def _manifests(self) -> tuple[tuple[str, Shard | None], ...]:
        """Return the manifests, each with its shard if it is one of a Shar folder.

        Raise a DataError if a Shar folder cannot be used, and a ReadError if a store cannot be asked. SettingsError of
        `shards_of` passes through.
        """
        found = list[tuple[str, Shard | None]]()
        for path in self.settings.paths:
            if path.endswith(_SUFFIXES) or not (self.settings.use_lhotse or self._has_features):
                found.append((path, None))
            else:
                found += [(shard.cuts, shard) for shard in shards_of(path, self.files)]
        return tuple(found)

    def stamp(self) -> str:
        """Return a stamp of the manifests, and of every file that they name.

        Raise a DataError if a manifest is missing, has another suffix or is a damaged gzip file; a ReadError if a store
        cannot be asked or read, or an OSError if the disk fails. SettingsError of `stamp` passes through.
        """
        return self.files.stamp(self._named_files())

    def _named_files(self) -> Iterator[str]:
        """Yield the manifests, and the files that cuts name; a repeated neighbour is given once.

        Raise a DataError if a manifest is missing, has another suffix, or is a damaged gzip file; a ReadError if a
        store cannot be asked or read, or an OSError if the disk fails. SettingsError of `_lines` passes through.
        """
        for path, shard in self._manifests:
            yield path
            yield from shard.fields.values() if shard is not None else ()
        before = list[str]()
        for path, shard in self._manifests:
            for _, line in () if shard is not None else self._lines(path, None):
                # Cuts of a recording follow each other, so neighbours are compared, and no set of all names is kept.
                named = files_named(line)
                yield from (self._below_root(name) for name in named if name not in before)
                before = named

    def survey(self) -> Inventory:
        """Count the cuts, or their supervisions.

        Raise a DataError if there are no manifests, or if one is named twice, is missing, has another suffix, is no
        text, or is a damaged gzip file, or if no cut has what is asked for; a ReadError if a store cannot be asked or
        read, or an OSError if the disk fails. SettingsError of `list_facts`, and of missing libraries, passes through.
        """
        if not self.settings.paths:
            raise DataError(
                expected="at least one manifest",
                got="none",
                where=str(self.base),
                remedy='Write paths = ["cuts.jsonl.gz"].',
            )
        self.files.refuse_twice(path.rstrip("/") for path in self.settings.paths)
        # Before the lines are counted, so that a manifest that is written meanwhile is noticed as a change.
        origin = [list_facts(path, self.files, _MANIFEST) for path, _ in self._manifests]
        total = sum(1 for _ in self._rows(completed=False))
        about = {"forms": [form.to_json() for form in self._forms]} if self._asked else {}
        return Inventory(total=total, pieces=self._pieces, origin=origin, about=about)

    def _pieces(self, rows: int) -> Iterator[CutPiece]:
        """Yield all rows in pieces of at most `rows` rows; raise a DataError if a manifest cannot be read.

        Raise an OSError if the disk fails. SettingsError of `_rows` passes through.
        """
        start, left = 0, self._rows()
        manifests = tuple(path for path, _ in self._manifests)
        while some := tuple(islice(left, rows)):
            yield CutPiece(start, some, manifests, self._forms)
            start += len(some)

    def _rows(self, *, completed: bool = True) -> Iterator[tuple[int, int, bytes, int]]:
        """Yield manifest, line number, line and supervision of each row.

        Lines of Shar folders are completed by where their data lie, unless they are only counted. Raise a DataError if
        a manifest cannot be read, or an OSError if the disk fails. SettingsError of `_lines` passes through.
        """
        for number, (path, shard) in enumerate(self._manifests):
            for place, line in self._lines(path, shard if completed else None):
                if self.settings.sample == "cut":
                    yield number, place, line, WHOLE_CUT
                else:
                    supervisions = samples_in(line, self._types)
                    yield from ((number, place, line, supervision) for supervision in range(supervisions))

    def _lines(self, path: str, shard: Shard | None) -> Iterator[tuple[int, bytes]]:
        """Yield the lines of a manifest that are not empty, with their numbers (from 1), completed if a shard is given.

        Raise a DataError if it is missing, has another suffix, or is a damaged gzip file; a ReadError if a store cannot
        be asked or read, or an OSError if the disk fails. SettingsError of `refuse_absent_list` passes through.
        """
        if not path.endswith(_SUFFIXES):
            remedy = 'Write it with cuts.to_file("cuts.jsonl.gz"); for a Shar folder write use_lhotse = true.'
            raise DataError(
                expected="a cut manifest that ends in .jsonl or .jsonl.gz",
                got=f'"{PurePosixPath(path).name}"',
                where=self.files.where(path),
                remedy=remedy,
            )
        refuse_absent_list(path, self.files, _MANIFEST)
        return manifest_lines(path, self.files) if shard is None else shard_lines(shard, self.files)

    def probe(self, piece: CutPiece) -> Found:
        """Look at the files that these cuts name: headers of recordings, and where arrays lie.

        Return the good rows' columns and the bad rows; raise a ReadError if a remote file cannot be fetched, and a
        SettingsError if a library is missing. MachineError and OSError of looking at files pass through.
        """
        good, bad = dict[int, FoundCut](), dict[int, BadRow]()
        places, manifests = list[tuple[int, int]](), list(map(self.files.where, piece.manifests))
        with closing(self._finder()) as finder:
            for number, (manifest, place, line, supervision) in enumerate(piece.rows, piece.start):
                found = self._found_cut(finder, (line, supervision), (manifests[manifest], place), piece.forms)
                if isinstance(found, BadRow):
                    bad[number] = found
                else:
                    good[number] = found
                    places.append((manifest, place))
        numbers, strings = columns_of_cuts(list(good.values()), piece.forms, makes=self.settings.use_lhotse)
        numbers["manifest"] = [manifest for manifest, _ in places]
        numbers["line"] = [line for _, line in places]
        return Found(rows=list(good), numbers=numbers, strings=strings, bad=bad)

    def _finder(self) -> CutFinder:
        """Return what finds the files of cuts."""
        paths = RootedPaths(self.base, self.settings.root)
        largest, makes = self.of_job.largest_indexed, self.settings.use_lhotse
        return CutFinder(self.files, paths, self.settings.values, largest, makes=makes)

    def _found_cut(
        self, finder: CutFinder, row: tuple[bytes, int], where: tuple[str, int], forms: tuple[CellForm, ...]
    ) -> FoundCut | BadRow:
        """Return what a row is made of, with its forms; a BadRow if it cannot be used, or has other forms.

        Raise a ReadError if a remote file cannot be fetched. SettingsError and MachineError of `find` pass through.
        """
        try:
            part = cut_sample(*row, self.settings.channel, self._types)
            made_of = finder.find(part, where)
            if isinstance(made_of, BadRow):
                return made_of
            labels = part.key, part.text, part.speaker, part.language
            if not forms:
                return FoundCut(labels, made_of, [], [], ())
            arrays = [finder.array(part, form) for form in forms if form.kind == "array" and form.key != FEATURES]
            cells = cells_of(part, forms, where[0])
            found = [made_of, *arrays] if self._has_features else arrays
            known = [form_found(*pair) for pair in zip(forms, found, strict=False)]
            return FoundCut(labels, made_of, arrays, cells, (*known, *forms[len(known) :]))
        except UnusableCut as error:
            return BadRow(*where, *error.args)

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        """Return the common rate of all files, or 0 if they differ; nothing for features."""
        return {} if self._has_features else {"rate": common_rate(numbers["rate"])}

    # --- once there is an index ---

    def _open_recordings(self, indexed: Indexed) -> None:
        """Make what reads and decodes what samples are made of."""
        self.__dict__.pop("_forms", None)  # those of the index from now on
        line_of, settings = partial(Source.name, self), self.settings
        self._made: MadeCuts | None = None
        if settings.use_lhotse:
            lengths = indexed.numbers[f"length_{FEATURES}" if self._has_features else "frames"]
            self._made = MadeCuts(self.files, indexed, lengths, (settings.values, settings.channel), line_of)
            self._recordings = self._made  # type: ignore[assignment] # it reads and decodes by the same methods
        elif not self._has_features:
            super()._open_recordings(indexed)
        columns = {
            form.key: StoredColumn(self.files, indexed, form, place, line_of)
            for place, form in enumerate(self._stored(self._forms))
        }
        readers = {} if self._has_features and self._made is None else {"": self._recordings}
        self._arrays = columns
        self._parts = SampleParts({**readers, **columns})
        others = [form for form in self._forms if form.kind != "array"]
        self._cells = {form.key: (form, indexed.strings[f"custom_{place}"]) for place, form in enumerate(others)}
        for place in range(len(columns)):
            self.files.note_remote(indexed.samples, indexed.strings[f"file_{place}"].__getitem__)

    @property
    def _is_plain(self) -> bool:
        """Return whether samples are made of recordings alone, read without Lhotse."""
        return self._made is None and self._parts.keys == ("",)

    @property
    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """Return a number a sample by key: `audio` in frames, `audio_rate` in Hz, `text` in characters.

        Features and arrays have steps.
        """
        numbers = self.indexed.numbers
        audio = {} if self._has_features else {"audio": numbers["frames"], "audio_rate": numbers["rate"]}
        return audio | super().lengths

    @property
    def columns(self) -> dict[str, Any]:
        """Return the strings of all samples by name: labels and paths, and custom fields that are no arrays."""
        labels = {name: self._strings[name] for name in ("key", "path", *self.beside_audio)}
        return labels | {key: cells for key, (_, cells) in self._cells.items()}

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the first sample of each manifest that has samples."""
        return tuple(np.flatnonzero(np.diff(self.indexed.numbers["manifest"], prepend=-1)).tolist())

    def look_for_changes(self, time_s: float) -> None:
        """Raise an error for local files that are gone or changed, looking at as many as fit into `time_s`."""
        self._parts.look_for_changes(time_s)

    def indexed_files(self) -> IndexedFiles:
        """Return the files that samples are read from, and their sizes; remote ones have an empty path."""
        return self._parts.indexed_files()

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Start fetching what these samples are made of, if it is remote; fetches that fail are dropped."""
        if self.files.are_remote:
            self._parts.expect(samples.tolist())

    def read(self, samples: Sequence[int]) -> Iterable[bytes]:
        """Return the bytes of what each sample is made of, read when they are asked for.

        Raise an IndexError for a number that is no sample; reading raises a ReadError if a file is not the indexed one
        or a remote one cannot be fetched, a DataError if a local one is gone, and an OSError if it cannot be read.
        SettingsError and MachineError of `read` pass through.
        """
        return map(self._parts.read, map(self.checked, samples))

    def values_beside_audio(self, sample: int) -> dict[str, Any]:
        """Return the labels of a sample, and its custom fields that are no arrays."""
        cells = {
            key: cells[sample] if form.kind == "text" else number_of(cells[sample], form, self.name(sample))
            for key, (form, cells) in self._cells.items()
        }
        return super().values_beside_audio(sample) | cells

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return audio and its rate, or features; labels, and custom fields.

        Raise a SampleError if something cannot be decoded, is not as long as indexed, or Lhotse cannot make it. Other
        errors of decoding pass, such as a ReadError if a file that decoding seeks in has changed, and a SettingsError
        for MP3 or for a library that is missing.
        """
        parts = self._parts.parted(raw)
        values: dict[str, Any] = {}
        if "" in parts:
            made, rate = self._recordings.decode(sample, parts.pop(""))
            values = {FEATURES: made} if self._has_features else {"audio": made, "audio_rate": rate}
        values |= {key: self._arrays[key].decode(sample, part) for key, part in parts.items()}
        return {**values, **self.values_beside_audio(sample)}

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns | None:
        """Return the samples as columns if that pays, or None; always None unless they are plain recordings.

        Raise what `decode` raises.
        """
        return super().decode_all(samples, raw) if self._is_plain else None

    def read_chunks(self, chunks: Sequence[Chunk]) -> Iterable[bytes]:
        """Return the bytes of each stretch of plain recordings, as `RecordedSource` does; otherwise of whole samples.

        Raise what `read` raises.
        """
        return super().read_chunks(chunks) if self._is_plain else Source.read_chunks(self, chunks)

    def decode_chunk(self, chunk: Chunk, raw: bytes) -> dict[str, Any]:
        """Return the stretch of the keys that are cut, with the sample's other values; raise what `decode` raises."""
        return super().decode_chunk(chunk, raw) if self._is_plain else Source.decode_chunk(self, chunk, raw)

    def place(self, sample: int) -> tuple[str, int]:
        """Return the manifest, and the sample's line in it."""
        numbers = self.indexed.numbers
        return self.files.where(self.indexed.origin[numbers["manifest"][sample]]["path"]), int(numbers["line"][sample])

    def identity(self, sample: int) -> str:
        """Return the key, the files as indexed, the stretch or places in them, and a hash of labels and fields.

        Raise an IndexError if the number is out of range.
        """
        file = f"{self._strings['path'][self.checked(sample)]}, {self._parts.identity(sample)}"
        row = fingerprint(*map(str, self.values_beside_audio(sample).values()))[:8]
        return f"{self.name(sample)}, {file}, row {row}"

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the libraries that decode samples or make them, by name.

        Raise importlib's PackageNotFoundError if soundfile was not installed as a package, and a SettingsError if
        Lhotse has to make samples and is missing.
        """
        if self.settings.use_lhotse:
            return lhotse_versions()
        audio = {} if self._has_features else super().versions
        return {**audio, **(array_versions() if any(form.kind == "array" for form in self._asked) else {})}
