"""The webdataset source: tar shards, in which consecutive members of one key are a sample.

Rules: shards are mapped into memory, their headers are followed once, and samples are read from their places in any
order. A sample whose headers are no longer the indexed ones is refused, and so is a shard of another size or with other
bytes. The members to read are those that the job file names, or else those of the first samples; a sample that lacks
one is a bad row.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from loader_server.sources.any_size import any_size_setting, refuse_resized, refuse_unknown_keys
from loader_server.sources.files.file_facts import changed
from loader_server.sources.files.presence import look_at_some
from loader_server.sources.files.same_files import digest_of_number, signed_digest
from loader_server.sources.image_files import colours_setting, image_versions, resize_setting
from loader_server.sources.records.file_records import FileRecordsSource, RecordPiece, found_rows
from loader_server.sources.records.mapped_files import MappedFiles
from loader_server.sources.records.member_formats import MemberForm, MemberForms
from loader_server.sources.records.tar_file import BLOCK, TarSample, refuse_no_tar, samples_of
from loader_server.sources.remote.urls import is_url
from loader_server.sources.source import BadRow, Found, Indexed, Inventory
from shared.errors import DataError, SampleError
from shared.settings.parsers import setting, texts

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.sources.source import Indexed
    from shared.wire.batch_layout import Field

__all__ = ["WebDatasetSettings", "WebDatasetSource"]

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
    images: tuple[str, ...] = setting(
        texts,
        'the members that are decoded as images, by suffix: ["jpg", "png"]; left out: they stay bytes',
        default=(),
        later=True,
    )
    resize: tuple[int, ...] = resize_setting()
    any_size: bool | tuple[str, ...] = any_size_setting()
    colours: str = colours_setting()


class WebDatasetSource(FileRecordsSource):
    """Source of the samples in tar shards.

    Index columns: each sample's shard (counted from 0), its number there, a digest of its headers, where each member
    begins and its size, lengths, and the key.
    """

    Settings = WebDatasetSettings
    suffixes = (".tar",)
    number_column = "number"
    Opens = MappedFiles
    piece_rows = 1024
    settings: WebDatasetSettings
    _opened: MappedFiles
    #: The common rate of each audio key; known once there is an index.
    _rates: Mapping[str, int] = {}

    @functools.cached_property
    def _member_forms(self) -> MemberForms:
        """Return what knows how members are decoded; raise a SettingsError without Pillow if there are images."""
        settings = self.settings
        return MemberForms(
            settings.images,
            colours=settings.colours,
            resize=settings.resize,
            any_size=settings.any_size,
            largest=self.of_job.largest_sample,
        )

    @functools.cached_property
    def _forms(self) -> tuple[MemberForm, ...]:
        """Return the form of each member that is read, sorted by suffix: of the first usable sample that tells it.

        Only the first 64 usable samples of all shards are looked at. Raise a DataError if a file is no tar file, absent
        or named twice, if no member can be read at all, or one that the job file names cannot; raise a ReadError if a
        shard cannot be fetched, an OSError if it cannot be opened, and a SettingsError as `_refuse_any_size` does.
        SettingsError of `_paths` and `_member_forms` and MachineError of `_first_samples` pass through.
        """
        # A list, so that every shard's beginning is looked at: a shard of another kind is refused before any sample is
        # indexed.
        first = [self._first_samples(path) for path in self._paths]
        forms: dict[str, MemberForm] = {}
        for data, sample in islice(chain.from_iterable(first), _FIRST_SAMPLES):
            wanted = set(self.settings.members or sample.members)
            for suffix in wanted & sample.members.keys() - forms.keys():
                # Bytes that do not tell the form make a bad row later; the next sample may tell it.
                with contextlib.suppress(SampleError):
                    forms[suffix] = self._member_forms.form_of(suffix, _bytes_of(data, sample, suffix))
        self._refuse_lacking(forms)
        self._refuse_any_size(forms.values())
        return tuple(forms[suffix] for suffix in sorted(forms))

    def _refuse_any_size(self, forms: Iterable[MemberForm]) -> None:
        """Raise a SettingsError if `any_size` names no array with axes and no image, or images that are resized."""
        settings, where, known = self.settings, self.of_job.table, list(forms)
        refuse_unknown_keys(settings.any_size, [form.key for form in known if form.shape], where)
        refuse_resized(settings.any_size, settings.resize, [form.key for form in known if form.images], where)

    def _first_samples(self, path: str) -> Iterator[tuple[mmap.mmap | bytes, TarSample]]:
        """Return an iterator over a shard's usable samples, each with the shard's bytes.

        Raise a DataError if it is no tar file, a ReadError if it cannot be fetched, or an OSError if it cannot be
        opened. SettingsError and MachineError of `MappedFiles` pass through.
        """
        data = self._opened[path]
        refuse_no_tar(data, self.files.where(path))
        return ((data, sample) for sample in samples_of(data) if not sample.reason)

    def _refuse_lacking(self, forms: Mapping[str, MemberForm]) -> None:
        """Raise a DataError if no member can be read, or one that the job file names is missing, in `images` too.

        Errors of `_first_fault` pass through.
        """
        lacking = [suffix for suffix in self.settings.members if suffix not in forms]
        found = {part for suffix, form in forms.items() if form.images for part in (suffix, suffix.rpartition(".")[2])}
        lacking += [suffix for suffix in self.settings.images if suffix not in found]
        if forms and not lacking:
            return
        raise DataError(
            expected=f"members that end in .{lacking[0]}" if lacking else "members such as 000017.flac",
            got=f"none among the first {_FIRST_SAMPLES} samples{self._first_fault()}",
            where=", ".join(self.settings.paths),
            remedy='Name other shards, or the members that there are: members = ["flac", "txt"].',
        )

    def _first_fault(self) -> str:
        """Return what is wrong with the first unusable sample near a shard's beginning, in parentheses, or "".

        Errors of opening a shard anew pass through, such as a ReadError if it has changed or cannot be fetched.
        """
        for path in self._paths:
            for sample in islice(samples_of(self._opened[path]), _FIRST_SAMPLES):
                detail = sample.detail or _fault_of_members(self._member_forms, self._opened[path], sample)
                if detail:
                    return f" ({self.files.where(path)}: {detail})"
        return ""

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the fields of audio, numbers, arrays and images; texts, JSON and bytes have none.

        Before there is an index, errors of looking at the first samples (`_forms`) pass through, such as a DataError if
        a shard is no tar file or a member to read cannot be found.
        """
        fields = (form.field(self._rates.get(form.key, 0)) for form in self._forms)
        return tuple(field for field in fields if field is not None)

    # --- while an index is made ---

    def survey(self) -> Inventory:
        """Follow the headers of all shards and count samples; note a digest of each local shard.

        Raise a DataError if a shard is no tar file, absent or named twice, or if a member to read cannot be found; a
        ReadError if a shard has changed or cannot be fetched; and an OSError if a shard cannot be read. SettingsError
        and MachineError of `_forms` pass through.
        """
        forms = {form.suffix: [form.dtype, None if form.shape is None else list(form.shape)] for form in self._forms}
        total = sum(rows for path in self._paths for _, rows in self._blocks(path, self.piece_rows))
        # Unlike records, members have no checksums: only the digest of a whole shard tells that others have written
        # other data behind the same headers.
        return Inventory(
            total=total,
            pieces=self._pieces,
            origin=self._opened.noted(self._origin),
            about={"members": forms},
        )

    def _blocks(self, path: str, rows: int) -> Iterator[tuple[int, int]]:
        """Yield where each block of samples begins and how many it has; a damaged rest of the shard counts as a sample.

        Raise a ReadError if the shard's size has changed or it cannot be fetched, and an OSError if it cannot be
        opened. SettingsError and MachineError of `MappedFiles` pass through.
        """
        samples = samples_of(self._opened[path])
        while block := list(islice(samples, rows)):
            yield block[0].at, len(block)

    def probe(self, piece: RecordPiece) -> Found:
        """Check the members of each sample by decoding them (audio and images by headers); unusable ones are bad rows.

        A sample that lacks a member is unusable. Raise a ReadError if the shard's size has changed or it cannot be
        fetched, and an OSError if it cannot be opened. Other errors of `_look` and `MappedFiles` pass through.
        """
        data, where = self._opened[piece.path], self.files.where(piece.path)
        good, keys, bad = list[list[int]](), list[str](), dict[int, BadRow]()
        for place, sample in enumerate(islice(samples_of(data, piece.start), piece.rows)):
            row, number = piece.row + place, piece.number + place
            try:
                good.append([row, piece.file, number, *self._look(data, sample)])
                keys.append(sample.key)
            except SampleError as error:
                detail = f"expected {error.expected}, got {error.got}" if error.expected else error.got
                bad[row] = BadRow(where, number, error.reason, detail)
        return found_rows(self._columns_made, good, bad, {"key": keys})

    @functools.cached_property
    def _columns_made(self) -> list[str]:
        """Return the names of the numeric index columns, in their order.

        Errors of `_forms` pass through, if it was not made before.
        """
        places = [f"{name}_{number}" for number in range(len(self._forms)) for name in ("at", "bytes")]
        lengths = [f"length_{key}" for form in self._forms for key in form.lengths]
        return ["file", "number", "digest", *places, *lengths]

    def _look(self, data: mmap.mmap | bytes, sample: TarSample) -> list[int]:
        """Return the columns of a sample, from its digest on; raise a SampleError if it cannot be used.

        Errors of `_forms`, if it was not made before, and others of `MemberForm.look` pass through.
        """
        if sample.reason:
            raise SampleError(reason=sample.reason, expected="", got=sample.detail, where="", remedy="")
        places, lengths = list[int](), list[int]()
        for form in self._forms:
            member = sample.members.get(form.suffix)
            if member is None:
                raise SampleError(
                    reason="missing_member",
                    expected=f"a member .{form.suffix}",
                    got=f"only {', '.join(sorted(sample.members))} of {sample.key!a}",
                    where="",
                    remedy="",
                )
            places += (member.offset, member.size)
            if form.kind != "bytes":
                lengths += form.look(_bytes_of(data, sample, form.suffix), sample.key, self.of_job.largest_indexed)
        return [_digest(data, places[::2]), *places, *lengths]

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        """Return the rate that all recordings under a key have, or 0 if they differ, for each audio key, as `rates`.

        There has to be a sample. Errors of `_forms` pass through, if it was not made before.
        """
        rates = {form.key: numbers[f"length_{form.key}_rate"] for form in self._forms if form.kind == "audio"}
        return {"rates": {key: int(column[0]) if (column == column[0]).all() else 0 for key, column in rates.items()}}

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if a local shard has another size, or a remote one another version.

        Raise it as well if a shard is gone, and besides what the base class raises, such as a ReadError if a store
        cannot be asked.
        """
        super().open(indexed)
        self._opened.allow_only(indexed.origin)
        self._keys = indexed.strings["key"]
        # JSON has no tuples: `survey` wrote the shapes as lists.
        self._forms = tuple(
            self._member_forms.known(suffix, dtype, shape)
            for suffix, (dtype, shape) in indexed.about["members"].items()
        )
        self._rates = indexed.about["rates"]
        self._places = [(f"at_{number}", f"bytes_{number}") for number in range(len(self._forms))]

    def look_for_changes(self, time_s: float) -> None:
        """Map local shards, which compares each with the index, until all are done or time is up.

        Raise a ReadError if one has changed, and an OSError if it cannot be opened or read.
        """
        local = [path for path in self._paths if not is_url(path)]
        look_at_some(len(local), lambda number: self._opened[local[number]], time_s)

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of each sample's members, joined; raise a ReadError if the shard has changed.

        Raise it too if the shard cannot be fetched; raise an IndexError if a sample's number is out of range, and an
        OSError if a local shard cannot be opened or read. SettingsError and MachineError of `_read` pass through.
        """
        return map(self._read, samples)

    def _read(self, sample: int) -> bytes:
        columns, sample = self._columns, self.checked(sample)
        path = self._paths[columns["file"][sample]]
        data = self._opened[path]
        places = [(int(columns[at][sample]), int(columns[size][sample])) for at, size in self._places]
        # The content as a whole is compared only for local shards, so the headers are compared for every sample.
        if _digest(data, [at for at, _ in places]) != columns["digest"][sample]:
            raise changed("the headers that were indexed", "others", f"{self.name(sample)} in {self.place(sample)[0]}")
        raw = b"".join(data[at : at + size] for at, size in places)
        self._opened.refuse_changed(path)  # after the copy: a write during it would go unnoticed before
        return raw

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the values of all members by key; raise a SampleError if one cannot be decoded.

        Raise it too for audio that is too large, other than plain WAV. Other errors of `MemberForm.decode`, such as a
        SettingsError for MP3, pass through.
        """
        return self.decode_picture(sample, raw, "")

    def decode_picture(self, sample: int, raw: bytes, key: str) -> dict[str, Any]:
        """Return what `decode` does, but a Picture under the key, if it holds an image; raise what `decode` raises."""
        values, start = dict[str, Any](), 0
        for form, (_, size) in zip(self._forms, self._places, strict=True):
            stop = start + int(self._columns[size][sample])
            values |= form.decode(raw[start:stop], self._keys[sample], self.of_job.largest_sample, key)
            start = stop
        return values

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the libraries that decode images, by name; none if there are no images.

        Raise importlib's PackageNotFoundError if Pillow was not installed as a package, or a SettingsError if it is
        missing.
        """
        return image_versions() if self.settings.images else {}

    def name(self, sample: int) -> str:
        """Return the shard as the job file names it, and the sample's key.

        Raise an IndexError if the sample's number is out of range.
        """
        return f"{self._path(sample)}:{self._keys[sample]}"

    def identity(self, sample: int) -> str:
        """Return the shard, the key, and a digest of the headers, which hold sizes and times of change.

        Raise an IndexError if the sample's number is out of range.
        """
        return f"{self.name(sample)}, headers {digest_of_number(int(self._columns['digest'][sample]))}"


def _fault_of_members(forms: MemberForms, data: mmap.mmap | bytes, sample: TarSample) -> str:
    """Return what is wrong with the first array or image among the members that is none or cannot be used, or "".

    Other members are not looked at; other errors of `MemberForms.form_of` pass.
    """
    try:
        for suffix in sample.members:
            forms.form_of(suffix, _bytes_of(data, sample, suffix))
    except SampleError as error:
        return f"{sample.key}.{suffix}: expected {error.expected}, got {error.got}"
    return ""


def _bytes_of(data: mmap.mmap | bytes, sample: TarSample, suffix: str) -> bytes:
    member = sample.members[suffix]
    return data[member.offset : member.offset + member.size]


def _digest(data: mmap.mmap | bytes, offsets: Sequence[int]) -> int:
    """Return a digest of the headers of the members that begin at these offsets."""
    # A member's header, with its size and time of change, is the block right before its bytes.
    return signed_digest(b"".join(data[offset - BLOCK : offset] for offset in offsets))
