"""The webdataset source: tar shards, in which consecutive members of one key are a sample.

Rules: shards are mapped into memory, their headers are followed once, and samples are read from their places in any
order. A sample whose headers are no longer the indexed ones is refused, and so is a shard of another size or with other
bytes. The members to read are those that the job file names, or else those of the first samples; a sample that lacks
one is a bad row.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from loader_server.sources.files.looking import look_at_some
from loader_server.sources.files.opening import changed
from loader_server.sources.records.file_records import FileRecordsSource
from loader_server.sources.records.mapped_files import MappedFiles
from loader_server.sources.records.member_formats import MemberForm, form_of_member
from loader_server.sources.records.tar_members import BLOCK
from loader_server.sources.records.tar_samples import TarSample, refuse_no_tar, samples_of
from loader_server.sources.remote.urls import is_url
from loader_server.sources.source import BadRow, Found, Inventory
from shared.errors import DataError, SampleError
from shared.settings.parsers import setting, texts

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.sources.source import Indexed
    from shared.wire.batch_layout import Field

__all__ = ["ShardPiece", "WebDatasetSettings", "WebDatasetSource"]

#: Number of samples whose members are read if the job file names none.
_FIRST_SAMPLES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WebDatasetSettings:
    """Further settings of a stream with source = "webdataset"."""

    paths: tuple[str, ...] = setting(texts, "tar shards, folders of them, and patterns such as train-*.tar")
    members: tuple[str, ...] = setting(
        texts,
        'the members to read, by suffix: ["flac", "txt"]; left out: those of the first samples',
        default=(),
    )


@dataclass(frozen=True, slots=True)
class ShardPiece:
    """A run of samples of shard number `file`, from the header at byte `at` on.

    `number` is the first sample's number in its shard, from 0, and `row` its number among the samples of all shards.
    """

    path: str
    file: int
    at: int
    rows: int
    number: int
    row: int


class WebDatasetSource(FileRecordsSource):
    """Source of the samples in tar shards.

    Index columns: each sample's shard (counted from 0), its number there, a digest of its headers, where each member
    begins and its size, lengths, and the key.
    """

    Settings = WebDatasetSettings
    suffixes = (".tar",)
    number_column = "number"
    piece_rows = 1024
    settings: WebDatasetSettings
    #: The common rate of each audio key; known once there is an index.
    _rates: Mapping[str, int] = {}

    def __init__(self, settings: WebDatasetSettings, base: Path) -> None:
        super().__init__(settings, base)
        self._mapped = MappedFiles(self.files)

    @functools.cached_property
    def _forms(self) -> tuple[MemberForm, ...]:
        """The form of each member that is read, derived from the first usable sample that has it."""
        first = [self._first_samples(path) for path in self._paths]
        forms: dict[str, MemberForm] = {}
        for data, sample in islice(chain.from_iterable(first), _FIRST_SAMPLES):
            for suffix in self.settings.members or sample.members:
                if suffix not in forms and suffix in sample.members:
                    forms |= _known_form(suffix, _bytes_of(data, sample, suffix))
        self._refuse_lacking(forms)
        return tuple(forms[suffix] for suffix in sorted(forms))

    def _first_samples(self, path: str) -> Iterator[tuple[mmap.mmap | bytes, TarSample]]:
        """Return an iterator over a shard's usable samples; raise a DataError if it is no tar file."""
        data = self._mapped[path]
        refuse_no_tar(data, self.files.where(path))
        return ((data, sample) for sample in samples_of(data) if not sample.reason)

    def _refuse_lacking(self, forms: Mapping[str, MemberForm]) -> None:
        """Raise a DataError if no member can be read, or one that the job file names is missing."""
        lacking = [suffix for suffix in self.settings.members if suffix not in forms]
        if forms and not lacking:
            return
        raise DataError(
            expected=f"members that end in .{lacking[0]}" if lacking else "members such as 000017.flac",
            got=f"none among the first {_FIRST_SAMPLES} samples{self._first_fault()}",
            where=", ".join(self.settings.paths),
            remedy='Name other shards, or the members that there are: members = ["flac", "txt"].',
        )

    def _first_fault(self) -> str:
        """Return what is wrong with the first unusable sample near a shard's beginning, in parentheses, or ""."""
        for path in self._paths:
            for sample in islice(samples_of(self._mapped[path]), _FIRST_SAMPLES):
                detail = sample.detail or _fault_of_members(self._mapped[path], sample)
                if detail:
                    return f" ({self.files.where(path)}: {detail})"
        return ""

    @property
    def fields(self) -> tuple[Field, ...]:
        """Audio, numbers and arrays; texts, JSON and bytes have no field."""
        found = (form.field(self._rates.get(form.key, 0)) for form in self._forms)
        return tuple(field for field in found if field is not None)

    # --- while an index is made ---

    def survey(self) -> Inventory:
        """Follow the headers of all shards and count samples; note a digest of each local shard."""
        forms = {form.suffix: [form.dtype, None if form.shape is None else list(form.shape)] for form in self._forms}
        total = sum(rows for path in self._paths for _, rows in self._blocks(path, self.piece_rows))
        origin = self._mapped.noted(self._origin)
        return Inventory(total=total, pieces=self._pieces, origin=origin, about={"members": forms})

    def _blocks(self, path: str, rows: int) -> Iterator[tuple[int, int]]:
        """Yield where each block of samples begins and how many it has."""
        samples = samples_of(self._mapped[path])
        while block := list(islice(samples, rows)):
            yield block[0].at, len(block)

    def _pieces(self, rows: int) -> Iterator[ShardPiece]:
        """Yield pieces of at most `rows` samples, none of which spans two shards."""
        row = 0
        for file, path in enumerate(self._paths):
            number = 0
            for at, count in self._blocks(path, rows):
                yield ShardPiece(path, file, at, count, number, row)
                number, row = number + count, row + count

    def probe(self, piece: ShardPiece) -> Found:
        """Check the members of each sample by decoding them; samples that cannot be used become bad rows."""
        data, where = self._mapped[piece.path], self.files.where(piece.path)
        good, keys, bad = list[list[int]](), list[str](), dict[int, BadRow]()
        for number, sample in enumerate(islice(samples_of(data, piece.at), piece.rows)):
            try:
                looked = self._look(data, sample)
            except SampleError as error:
                told = f"expected {error.expected}, got {error.got}" if error.expected else error.got
                bad[piece.row + number] = BadRow(where, piece.number + number, error.reason, told)
                continue
            good.append([piece.row + number, piece.file, piece.number + number, *looked])
            keys.append(sample.key)
        columns = np.array(good, np.int64).reshape(len(good), 1 + len(self._columns_made)).T
        numbers = dict(zip(self._columns_made, columns[1:], strict=True))
        return Found(rows=columns[0].tolist(), numbers=numbers, strings={"key": keys}, bad=bad)

    @functools.cached_property
    def _columns_made(self) -> list[str]:
        """Names of the numeric index columns."""
        places = [f"{name}_{number}" for number in range(len(self._forms)) for name in ("at", "bytes")]
        lengths = [f"length_{key}" for form in self._forms for key in form.lengths]
        return ["file", "number", "digest", *places, *lengths]

    def _look(self, data: mmap.mmap | bytes, sample: TarSample) -> list[int]:
        """Return the columns of a sample, from its digest on; raise a SampleError if it cannot be used."""
        if sample.reason:
            raise SampleError(reason=sample.reason, expected="", got=sample.detail, where="", remedy="")
        places, lengths = list[int](), list[int]()
        for form in self._forms:
            member = sample.members.get(form.suffix)
            if member is None:
                got = f"only {', '.join(sorted(sample.members))} of {sample.key!a}"
                raise _lacking(f"a member .{form.suffix}", got)
            places += (member.offset, member.size)
            if form.kind != "bytes":
                lengths += form.look(
                    data[member.offset : member.offset + member.size], sample.key, self.of_job.largest_indexed
                )
        return [_digest(data, places[::2]), *places, *lengths]

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        """Return the rate that all recordings under a key have, or 0 if they differ, for each audio key."""
        rates = {form.key: numbers[f"length_{form.key}_rate"] for form in self._forms if form.kind == "audio"}
        return {"rates": {key: int(found[0]) if (found == found[0]).all() else 0 for key, found in rates.items()}}

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if a local shard has another size, or a remote one another version."""
        super().open(indexed)
        self._mapped.allow_only(indexed.origin)
        self._keys = indexed.strings["key"]
        members = indexed.about["members"]
        self._forms = tuple(
            MemberForm(suffix, dtype, None if shape is None else tuple(shape))
            for suffix, (dtype, shape) in members.items()
        )
        self._rates = indexed.about["rates"]
        self._places = [(f"at_{number}", f"bytes_{number}") for number in range(len(self._forms))]

    def look_for_changes(self, time_s: float) -> None:
        """Map local shards, which compares each with the index, until all are done or time is up."""
        local = [path for path in self._paths if not is_url(path)]
        look_at_some(len(local), lambda number: self._mapped[local[number]], time_s)

    def _expect_files(self, paths: Iterable[str]) -> None:
        self._mapped.expect(paths)

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of each sample's members, joined; raise a ReadError if the shard has changed."""
        return map(self._read, samples)

    def _read(self, sample: int) -> bytes:
        """Return the bytes of a sample's members, joined; raise a ReadError if the shard has changed."""
        columns, sample = self._columns, self.checked(sample)
        path = self._paths[columns["file"][sample]]
        data = self._mapped[path]
        places = [(int(columns[at][sample]), int(columns[size][sample])) for at, size in self._places]
        # The content as a whole is compared only for local shards, so the headers are compared for every sample.
        if _digest(data, [at for at, _ in places]) != columns["digest"][sample]:
            raise changed("the headers that were indexed", "others", f"{self.name(sample)} in {self.place(sample)[0]}")
        raw = b"".join(data[at : at + size] for at, size in places)
        self._mapped.refuse_changed(path)  # after the copy: a write during it would go unnoticed before
        return raw

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the values of all members by key; raise a SampleError if one cannot be decoded."""
        values, start = dict[str, Any](), 0
        for form, (_, size) in zip(self._forms, self._places, strict=True):
            stop = start + int(self._columns[size][sample])
            values |= form.decode(raw[start:stop], self._keys[sample], self.of_job.largest_sample)
            start = stop
        return values

    def name(self, sample: int) -> str:
        """Return the shard as the job file names it, and the sample's key."""
        return f"{self._path(sample)}:{self._keys[sample]}"

    def identity(self, sample: int) -> str:
        """Return the shard, the key, and a digest of the headers, which hold sizes and times of change."""
        return f"{self.name(sample)}, headers {int(self._columns['digest'][sample]) % 2**64:016x}"

    def close(self) -> None:
        """Unmap the shards."""
        self._mapped.close()
        super().close()


def _known_form(suffix: str, raw: bytes) -> dict[str, MemberForm]:
    """Return the form by its suffix, or an empty dict if these bytes do not tell it."""
    try:
        return {suffix: form_of_member(suffix, raw)}
    except SampleError:
        return {}


def _fault_of_members(data: mmap.mmap | bytes, sample: TarSample) -> str:
    """Return what is wrong with the first member that cannot be decoded, or ""."""
    try:
        for suffix in sample.members:
            form_of_member(suffix, _bytes_of(data, sample, suffix))
    except SampleError as error:
        return f"{sample.key}.{suffix}: expected {error.expected}, got {error.got}"
    return ""


def _bytes_of(data: mmap.mmap | bytes, sample: TarSample, suffix: str) -> bytes:
    member = sample.members[suffix]
    return data[member.offset : member.offset + member.size]


def _digest(data: mmap.mmap | bytes, offsets: Sequence[int]) -> int:
    """Return a digest of the headers of the members that begin at these offsets."""
    headers = b"".join(data[offset - BLOCK : offset] for offset in offsets)
    return int.from_bytes(xxhash.xxh3_64_digest(headers), "big", signed=True)


def _lacking(expected: str, got: str) -> SampleError:
    return SampleError(reason="missing_member", expected=expected, got=got, where="", remedy="")
