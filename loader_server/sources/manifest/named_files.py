"""The files source: manifests whose columns name files of arrays, images and recordings, several of them a row.

Rules: paths are relative to the manifest that names them, and may be URLs; rows of several manifests are numbered
through. Each file is read whole. Manifests and files that have changed since indexing are refused. A pickle is never
loaded.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.any_size import any_size_setting, refuse_resized, refuse_unknown_keys
from loader_server.sources.array_files import HEAD_OF_ARRAY
from loader_server.sources.batch_columns import Columns as BatchColumns
from loader_server.sources.batch_columns import fields_of_rows, joined_parts, parted
from loader_server.sources.columns_at_once import MOST_AT_ONCE, joined_columns
from loader_server.sources.files.file_facts import FileFacts
from loader_server.sources.files.local import bytes_at
from loader_server.sources.files.presence import IndexedFiles
from loader_server.sources.files.same_files import digest_of_handle, number_of_digest, refuse_other_list
from loader_server.sources.files.sample_files import SampleFiles
from loader_server.sources.image_files import colours_setting, resize_setting
from loader_server.sources.manifest.cell_forms import KINDS, CellForm, Decoders, number_of, versions_of_cells
from loader_server.sources.manifest.rows import Columns, ManifestRow, columns_wanted, read_rows
from loader_server.sources.manifest.survey import RowPiece, named_files, survey_manifests
from loader_server.sources.remote.urls import is_url, joined
from loader_server.sources.source import BadRow, Found, Indexed, Inventory, Source
from loader_server.sources.text_blocks import texts_of_column
from shared.errors import DataError, ReadError, SampleError, SettingsError
from shared.hashing import fingerprint
from shared.settings.parsers import by_key, choice, setting, text, texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shared.wire.batch_layout import Field

__all__ = ["FilesSettings", "FilesSource"]

#: How many rows are looked at for the form of a column's files.
_FIRST_ROWS = 64
#: The most columns; the index keeps several files for each.
_MOST_COLUMNS = 64
#: Facts of a column's files in the index.
_FACTS = ("bytes", "mtime_ns", "content")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSettings:
    """Further settings of a stream with source = "files"."""

    paths: tuple[str, ...] = setting(texts, "manifests, .csv or .jsonl, relative to the job file")
    columns: tuple[tuple[str, str], ...] = setting(
        by_key(choice(*KINDS)), 'what each column becomes, such as { mel = "array", photo = "image", label = "int64" }'
    )
    rename: tuple[tuple[str, str], ...] = setting(
        by_key(text),
        'keys for columns that are called otherwise in the manifests, such as { audio = "wav" }',
        default=(),
        later=True,
    )
    resize: tuple[int, ...] = resize_setting()
    any_size: bool | tuple[str, ...] = any_size_setting()
    colours: str = colours_setting()


@dataclass(frozen=True, slots=True)
class _LookedAt:
    """What is known of a file from looking at it: its beginning, its size, its version, and a digest of its content."""

    head: bytes
    facts: FileFacts
    content: int


class FilesSource(Source):
    """Rows of manifests that name files.

    Index columns: each sample's manifest (counted from 0) and line, of each file its bytes, time of change and content,
    lengths, and all cells as strings.
    """

    Settings = FilesSettings
    local_columns = frozenset(f"mtime_ns_{number}" for number in range(_MOST_COLUMNS))
    settings: FilesSettings
    #: The common rate of each column of recordings; known once there is an index.
    _rates: Mapping[str, int] = {}

    @cached_property
    def _asked(self) -> tuple[CellForm, ...]:
        """Return the columns that the job file names, files first; their files are not looked at.

        Raise a SettingsError if none is of files, if there are too many, or if `rename` does not fit them.
        """
        keys = {column: key for key, column in self.settings.rename}
        forms = [CellForm(key=keys.get(column, column), kind=kind) for column, kind in self.settings.columns]
        self._refuse_other_names({form.key for form in forms})
        if not any(form.is_file for form in forms) or len(forms) > _MOST_COLUMNS:
            raise SettingsError(
                expected=f'at most {_MOST_COLUMNS} columns, one of them "array", "image" or "audio"',
                got=f"{len(forms)}: " + ", ".join(f"{form.key} = {form.kind}" for form in forms[:_MOST_COLUMNS]),
                where=f"{self.of_job.table}, columns",
                remedy='Name a column of files: columns = { mel = "array" }.',
            )
        return tuple(sorted(forms, key=lambda form: not form.is_file))

    def _refuse_other_names(self, keys: set[str]) -> None:
        """Raise a SettingsError if `rename` names a column that `columns` does not, or two columns got one key."""
        named = dict(self.settings.columns)
        lacking = [column for _, column in self.settings.rename if column not in named]
        if lacking or len(keys) < len(named):
            raise SettingsError(
                expected="a key of its own for each column of `columns`",
                got=f'"{lacking[0]}", which `columns` lacks' if lacking else "two columns of one key",
                where=f"{self.of_job.table}, rename",
                remedy='Mend `rename`, which names columns by keys: rename = { audio = "wav" }.',
            )

    def _columns_of(self, forms: Iterable[CellForm]) -> list[str]:
        """Return what the manifests call the columns of these forms."""
        named = dict(self.settings.rename)
        return [named.get(form.key, form.key) for form in forms]

    @cached_property
    def _forms(self) -> tuple[CellForm, ...]:
        """Return the columns with dtypes and shapes, of the first of 64 rows whose file can be used.

        Raise a DataError if no file of a column can be used, and what `survey` raises.
        """
        rows = [row for row in self._first_rows() if isinstance(row, ManifestRow)]
        return tuple(self._found_form(place, form, rows) for place, form in enumerate(self._asked))

    def _first_rows(self) -> Iterator[ManifestRow | BadRow]:
        """Return the first rows of the manifests; errors of reading these pass."""
        first, *others = self._columns_of(self._asked)
        columns = Columns(first, "", tuple(others), may_cut=False)
        manifests = enumerate(map(self.files.path, self.settings.paths))
        rows = (row for at, manifest in manifests for row in read_rows(manifest, at, columns, columns.others))
        return islice(rows, _FIRST_ROWS)

    def _found_form(self, place: int, form: CellForm, rows: Sequence[ManifestRow]) -> CellForm:
        """Return a column's form by the first file that can be used; raise a DataError if there is none.

        Errors of looking at remote files pass, and a SettingsError for images without Pillow.
        """
        complaint = "no rows that can be used"
        for row in rows if form.is_file else ():
            path = self._path_in(row, place)
            look = self._looked(path, form)
            try:
                if isinstance(look, _LookedAt):
                    return self._decoders.form_of_file(form, look.head, look.facts.bytes, path)
                complaint = look.detail
            except SampleError as error:
                complaint = f"{error.got} ({path})"
        if not form.is_file:
            return form
        raise DataError(
            expected=f'files that can be used in the column "{form.key}", as {form.kind}',
            got=complaint,
            where=", ".join(self.settings.paths),
            remedy="Mend the first rows, or `columns` of the stream.",
        )

    @property
    def content_columns(self) -> frozenset[str]:  # type: ignore[override]
        """Return the index's columns of digests, one for each column of files.

        Raise a SettingsError if there is none, or if there are too many.
        """
        return frozenset(f"content_{place}" for place, form in enumerate(self._asked) if form.is_file)

    @cached_property
    def _decoders(self) -> Decoders:
        """Return what looks at files and decodes them; raise a SettingsError if `any_size` does not fit the columns."""
        settings, where, forms = self.settings, self.of_job.table, self._asked
        refuse_unknown_keys(settings.any_size, [form.key for form in forms if form.kind in ("array", "image")], where)
        refuse_resized(settings.any_size, settings.resize, [form.key for form in forms if form.kind == "image"], where)
        return Decoders(settings.colours, settings.resize, self.of_job, any_size=settings.any_size)

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the fields of arrays, images, recordings and numbers; texts have none.

        Before there is an index, raise what `survey` raises.
        """
        columns = [column for form in self._forms if (column := form.column()) is not None]
        return fields_of_rows(columns, self._rates)

    # --- while an index is made ---

    def stamp(self) -> str:
        """Return a text that changes with the manifests and every file they name, missing ones included.

        Raise a DataError if a manifest cannot be read or its suffix is not that of a manifest, a ReadError if a store
        cannot be asked or read, and a SettingsError if its library is missing. MachineError of the cache of remote
        files passes.
        """
        columns = self._columns_of(form for form in self._asked if form.is_file)
        return self.files.stamp(named_files(self.settings.paths, self.files, columns))

    def _surveyed(self) -> Inventory:
        """Return the inventory of the manifests, without the forms of their columns; raise as `survey_manifests` does.

        A manifest that lacks one of the columns is a DataError as well.
        """
        wanted = self._columns_of(self._asked)
        return survey_manifests(self.settings.paths, self.files, partial(columns_wanted, wanted=wanted))

    def survey(self) -> Inventory:
        """Count the rows of all manifests and find duplicates; look at the first files of each column.

        Raise a DataError for an unusable manifest, one that lacks a column, or a column of which no file can be used;
        raise a ReadError if a store cannot be asked or read, a SettingsError if a library is missing or no column is of
        files, and an OSError if the disk fails. MachineError of reading remote ones passes.
        """
        surveyed = self._surveyed()
        surveyed.about["forms"] = [form.to_json() for form in self._forms]
        return surveyed

    def probe(self, piece: RowPiece) -> Found:
        """Look at the files that these rows name, and read their numbers; unusable rows become bad rows.

        Rows that the survey found bad stay so. Raise a ReadError if a remote file cannot be fetched, a SettingsError if
        a library is missing, and what `survey` raises if the files' forms are not known yet. MachineError of reading
        remote files passes.
        """
        good, bad = dict[int, list[int]](), dict[int, BadRow]()
        cells = list[tuple[str, ...]]()
        for number, row in enumerate(piece.rows, piece.start):
            found = row if isinstance(row, BadRow) else self._measured(row)
            if isinstance(found, BadRow):
                bad[number] = found
            elif isinstance(row, ManifestRow):
                good[number] = [row.manifest, row.line, *found]
                cells.append((row.path, *row.others))
        columns = zip(*good.values(), strict=True) if good else [()] * len(self._names)
        strings = zip(*cells, strict=True) if cells else [()] * len(self._forms)
        return Found(
            rows=list(good),
            numbers=dict(zip(self._names, map(list, columns), strict=True)),
            strings={f"cell_{place}": list(column) for place, column in enumerate(strings)},
            bad=bad,
        )

    @cached_property
    def _names(self) -> list[str]:
        """Return the names of the numeric index columns, in their order; errors of `_forms` pass."""
        facts = [f"{fact}_{place}" for place, form in enumerate(self._forms) if form.is_file for fact in _FACTS]
        return ["manifest", "line", *facts, *(f"length_{key}" for form in self._forms for key in form.lengths)]

    def _measured(self, row: ManifestRow) -> list[int] | BadRow:
        """Return the facts of a row's files, then all lengths; a BadRow if the row cannot be used."""
        facts, lengths = list[int](), list[int]()
        where = str(self.files.path(self.settings.paths[row.manifest]))
        for place, (form, cell) in enumerate(zip(self._forms, (row.path, *row.others), strict=True)):
            try:
                if form.is_file:
                    look = self._looked(self._path_in(row, place), form) if cell and "\0" not in cell else None
                    if not isinstance(look, _LookedAt):
                        return _bad(where, row.line, form.key, look)
                    facts += (look.facts.bytes, look.facts.version, look.content)
                    lengths += self._decoders.measure(form, look.head, look.facts.bytes, cell)
                elif form.kind == "text":
                    lengths.append(len(cell))
                else:
                    number_of(cell, form, where)
            except SampleError as error:
                detail = f'"{form.key}", {cell}: expected {error.expected}, got {error.got}. {error.remedy}'
                return BadRow(where, row.line, error.reason, detail)
        return facts + lengths

    def _path_in(self, row: ManifestRow, place: int) -> str:
        """Return the path or URL of a row's file in the column at this place."""
        folder = str(self.files.path(self.settings.paths[row.manifest]).parent)
        return joined(folder, (row.path, *row.others)[place])

    def _looked(self, path: str, form: CellForm) -> _LookedAt | BadRow:
        """Return what is known of a file from looking at it, or a BadRow without a place if it cannot be read.

        Raise a ReadError if a remote file cannot be fetched. SettingsError and MachineError of the cache of remote
        files pass.
        """
        # Of a large array the header is enough; an image's may stand anywhere.
        most = HEAD_OF_ARRAY if form.kind == "array" and path.lower().endswith(".npy") else 2**62
        try:
            return self._looked_remote(path, most) if is_url(path) else self._looked_local(path, most)
        except ReadError:  # a subclass of DataError: a store that fails now says nothing about the row
            raise
        except DataError as error:
            return BadRow(path, 0, "missing_file", f"expected {error.expected}, got {error.got}: {path}")
        except OSError as error:
            reason = "missing_file" if isinstance(error, FileNotFoundError) else "unreadable"
            return BadRow(path, 0, reason, f"{error.strerror}: {path}")

    def _looked_local(self, path: str, most: int) -> _LookedAt | BadRow:
        """Return what is known of a local file, with its first `most` bytes; a BadRow if it is no regular file.

        Raise an OSError if it cannot be opened or read.
        """
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # O_NONBLOCK: opening a pipe must not wait
        try:
            # The status is taken before the bytes are read: a write in between gives the file another status.
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                return BadRow(path, 0, "not_a_file", f"expected a file, got something else: {path}")
            head = bytes_at(handle, 0, min(status.st_size, most))
            content = number_of_digest(digest_of_handle(handle, status, self.files.seen))
            return _LookedAt(head, FileFacts(bytes=status.st_size, version=status.st_mtime_ns), content)
        finally:
            os.close(handle)

    def _looked_remote(self, url: str, most: int) -> _LookedAt:
        """Return what is known of a remote file, with its first `most` bytes.

        Raise a DataError if it is missing, and a ReadError if it cannot be fetched. SettingsError and MachineError of
        the cache of remote files pass.
        """
        facts = self.files.facts(url)
        return _LookedAt(self.files.part(url, facts, 0, min(facts.bytes, most)), facts, 0)

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        """Return the rate that all recordings of a column have, or 0 if they differ, for each such column, as `rates`.

        There has to be a sample. Errors of `_forms` pass, if it was not made before.
        """
        rates = {form.key: numbers[f"length_{form.key}_rate"] for form in self._forms if form.kind == "audio"}
        return {"rates": {key: int(column[0]) if (column == column[0]).all() else 0 for key, column in rates.items()}}

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if a manifest has changed since or cannot be opened.

        The files that it names are not looked at. Raise a ReadError if a store cannot be asked or a manifest fetched, a
        SettingsError if the store's library is missing, and an OSError if the disk fails. Other errors of
        `refuse_other_list` pass.
        """
        for facts in indexed.origin:
            refuse_other_list(facts, self.files, "manifest", indexed.place)
        self.indexed = indexed
        self._forms = tuple(map(CellForm.from_json, indexed.about["forms"]))
        self._rates = indexed.about["rates"]
        self._manifests = [self.files.path(facts["path"]) for facts in indexed.origin]
        self._cells = [indexed.strings[f"cell_{place}"] for place in range(len(self._forms))]
        self._of_column = [
            SampleFiles(
                {fact: indexed.numbers[f"{fact}_{place}"] for fact in _FACTS},
                partial(self._path, place),
                self._line,
                self.files,
            )
            for place, form in enumerate(self._forms)
            if form.is_file
        ]
        self.files.note_remote(indexed.samples, partial(self._path, 0))

    def _path(self, place: int, sample: int) -> str:
        """Return the path or URL of a sample's file in the column at this place."""
        return joined(str(self._manifests[self.indexed.numbers["manifest"][sample]].parent), self._cells[place][sample])

    def _line(self, sample: int) -> str:
        """Return how messages name the line that lists a sample."""
        return "{}, line {}".format(*self.place(sample))

    def look_for_changes(self, time_s: float) -> None:
        """Raise a ReadError for local files that are gone or changed, looking at as many as fit into `time_s`."""
        for files in self._of_column:
            files.look_for_changes(time_s / len(self._of_column))

    def indexed_files(self) -> IndexedFiles:
        """Return the files of all samples, column after column; remote ones have an empty path."""
        count = self.samples
        listed = [files.indexed_files() for files in self._of_column]
        return IndexedFiles(count * len(listed), lambda number: listed[number // count].file_at(number % count))

    def texts(self, key: str) -> Iterator[Sequence[str]] | None:
        """Return the texts of a column, which the index has; None for a key that is no column of texts."""
        cells = (cells for form, cells in zip(self._forms, self._cells, strict=True) if _is_text(form, key))
        found = next(cells, None)
        return None if found is None else texts_of_column(found)

    @property
    def columns(self) -> dict[str, Any]:
        """Return the cells of all columns as strings, by name."""
        return {form.key: cells for form, cells in zip(self._forms, self._cells, strict=True)}

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the first sample of each manifest that has samples, in the manifests' order; () without samples."""
        return tuple(np.flatnonzero(np.diff(self.indexed.numbers["manifest"], prepend=-1)).tolist())

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Start fetching the files of these samples, if they are remote; fetches that fail are dropped."""
        for files in self._of_column if self.files.are_remote else ():
            files.expect(samples.tolist())

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of each sample's files, joined.

        Raise a ReadError if a file is not the indexed one or cannot be fetched, an IndexError if a sample's number is
        out of range, and an OSError if a file cannot be opened or read. SettingsError and MachineError of `read_whole`
        pass through.
        """
        for sample in samples:
            self.checked(sample)
            yield joined_parts([files.read_whole(sample) for files in self._of_column])

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the values of all columns by key; raise a SampleError if a file cannot be decoded.

        Raise an IndexError if there is no such sample. Other errors of decoding recordings pass, such as a
        SettingsError for MP3.
        """
        return self.decode_picture(sample, raw, "")

    def decode_picture(self, sample: int, raw: bytes, key: str) -> dict[str, Any]:
        """Return what `decode` does, but a Picture under the key, if it holds an image; raise what `decode` raises."""
        self.checked(sample)
        values, parts = dict[str, Any](), iter(parted(raw, len(self._of_column)))
        for form, cells in zip(self._forms, self._cells, strict=True):
            cell = cells[sample]
            if form.is_file:
                length = int(self.indexed.numbers[f"length_{form.key}"][sample]) if form.lengths else 0
                values |= self._decoders.decode(form, bytes(next(parts)), length, cell, key)
            else:
                values[form.key] = cell if form.kind == "text" else number_of(cell, form, self._line(sample))
        return values

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> BatchColumns | None:
        """Return the decoded samples as columns; None if they are large together, or a column has a fixed shape.

        Raise what `decode` raises, for any of them.
        """
        sizes = self.decoded_bytes({name: column[samples] for name, column in self.indexed.numbers.items()})
        if not len(samples) or (sizes is not None and sizes.sum() > MOST_AT_ONCE):
            return None
        return joined_columns(list(map(self.decode, samples, raw)), self.fields)

    # --- for people ---

    def name(self, sample: int) -> str:
        """Return the first file's path as the manifest has it; raise an IndexError if there is no such sample."""
        return str(self._cells[0][self.checked(sample)])

    def place(self, sample: int) -> tuple[str, int]:
        """Return the path of the manifest that has the sample, and its line there, from 1; no number is refused."""
        numbers = self.indexed.numbers
        return str(self._manifests[numbers["manifest"][sample]]), int(numbers["line"][sample])

    def identity(self, sample: int) -> str:
        """Return the first file's path, all files as they were indexed, and a digest of the row.

        Raise an IndexError if there is no such sample.
        """
        origin = self.indexed.origin[self.indexed.numbers["manifest"][self.checked(sample)]]["path"]
        files = "; ".join(files.identity(sample) for files in self._of_column)
        row = fingerprint(*(cells[sample] for cells in self._cells))[:8]
        return f"{self.files.beside(origin, self.name(sample))}, {files}, row {row}"

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the libraries that decode images and recordings, by name.

        Raise importlib's PackageNotFoundError if one was not installed as a package, or a SettingsError if it is
        missing or no column is of files.
        """
        return versions_of_cells(self._asked)


def _is_text(form: CellForm, key: str) -> bool:
    return form.kind == "text" and form.key == key


def _bad(where: str, line: int, key: str, look: BadRow | None) -> BadRow:
    """Return the BadRow of a row whose file could not be read, or is not named at all."""
    if look is None:
        return BadRow(where, line, "missing_column", f'expected a path in the column "{key}", got none')
    return BadRow(where, line, look.reason, look.detail)
