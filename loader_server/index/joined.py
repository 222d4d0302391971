"""The indexed sources of one stream, seen as one: a mixture's members come one after another, samples by offset.

Rules: each member has its own index; a single member is passed through as it is. Members may be of different kinds:
transforms get the raw values that all members have; if they need another, the error names the member that lacks it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from loader_server.index.probe import refuse_other_fields
from loader_server.sources.batch_columns import gather_rows, interleaved
from loader_server.sources.files.presence import find_missing
from loader_server.sources.files.retried_reads import read_patiently
from loader_server.sources.pictures import DecodesPictures
from loader_server.sources.source import Source
from shared.errors import SampleError, SettingsError
from shared.hashing import fingerprint
from shared.logs import Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.index.folder import Index
    from loader_server.sources.batch_columns import Columns
    from loader_server.sources.files.presence import MissingFiles
    from loader_server.sources.row_filter import RowFilter
    from loader_server.transforms.chain import Chain
    from shared.wire.batch_layout import Field

__all__ = ["JoinedSource", "OpenedSource", "SourceSet"]

_T = TypeVar("_T", np.int64, np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSource:
    """A source that is open, and its index; `where` is the place in the job file that names it."""

    where: str
    source: Source
    index: Index

    def lengths(self, chain: Chain, start: int, stop: int) -> Mapping[str, NDArray[np.int64]]:
        """Return the lengths after a chain, by key, of the samples from `start` to before `stop`.

        Raise a DataError if they have to be measured and the index has those of another chain, and else the errors of
        `Chain.lengths`, such as a SettingsError if a length is missing, or a rule gives no whole numbers.
        """
        if chain.measured:
            return {key: column[start:stop] for key, column in self.index.measured_lengths(chain).items()}
        made = chain.lengths(self._raw_lengths(start, stop))
        return {key: np.broadcast_to(column, stop - start) for key, column in made.items()}

    def _raw_lengths(self, start: int, stop: int) -> dict[str, NDArray[np.int64]]:
        return {key: column[start:stop] for key, column in self.source.lengths.items()}

    def passing(self, rule: RowFilter, chain: Chain, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which samples from `start` to before `stop` pass a filter.

        Raise the errors of `RowFilter.passes`, such as a SettingsError for types that do not fit, and of `lengths`.
        """
        lengths = {**self._raw_lengths(start, stop), **self.lengths(chain, start, stop)}
        # Strings are decoded one by one, so only those that the filter names.
        strings = {name: self.source.columns[name] for name in rule.names if name not in lengths}
        columns = {
            name: np.array([column[at] for at in range(start, stop)], object) for name, column in strings.items()
        }
        return rule.passes({**lengths, **columns}, stop - start)

    def first_sample(self) -> dict[str, Any]:
        """Return the first sample, or an empty dict if it cannot be decoded; raise a ReadError if it cannot be read.

        Other errors of the source's `read` pass through.
        """
        (raw,) = read_patiently(self.source.read, [0], bool)
        try:
            return self.source.decode(0, raw)
        except Exception as error:  # building its batch will mask and count it; here only keys are compared
            Log("stream").debug("the first sample cannot be decoded", where=self.where, error=repr(error))
            return {}


class SourceSet:
    """All samples of a stream, from one source or several; `cut` describes how recordings are cut, if they are.

    Making it raises DataError if members have a field of the same key with another dtype or shape.
    """

    def __init__(self, opened: Sequence[OpenedSource], cut: str = "") -> None:
        #: The sources, in order.
        self.opened = tuple(opened)
        self._cut = cut
        #: The first sample of each source, and the number of all samples.
        self._starts = tuple(accumulate((member.source.samples for member in opened), initial=0))
        self.samples = self._starts[-1]
        self.source: Source = opened[0].source if len(opened) == 1 else JoinedSource(self.opened)

    def raw_lengths(self, sample: int) -> dict[str, int]:
        """Return the lengths that the index has for one raw sample, by key."""
        place = bisect_right(self._starts, sample) - 1
        columns, own = self.opened[place].source.lengths, sample - self._starts[place]
        return {key: int(column[own]) for key, column in columns.items()}

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the indexes, and of how recordings are cut."""
        indexes = _joint(member.index.fingerprint for member in self.opened)
        return fingerprint(indexes, self._cut) if self._cut else indexes

    @property
    def made(self) -> str:
        """Return a value that changes whenever one of the indexes is made anew."""
        return _joint(member.index.meta.folder for member in self.opened)

    @property
    def made_from(self) -> str:
        """Return a value that is equal only if the indexes were made from the same data.

        An index that does not know what it was made from counts as different each time it is made, as in `made`.
        """
        return _joint(member.index.meta.made_from or member.index.meta.folder for member in self.opened)

    @property
    def bad(self) -> dict[str, int]:
        """Return the number of rows left out, by reason."""
        counts: Counter[str] = Counter()
        for member in self.opened:
            counts.update(member.index.meta.bad)
        return dict(counts)

    def find_missing(self, time_s: float) -> MissingFiles | None:
        """Return what is missing on this machine from the source that lacks the largest part of its files.

        Return None if no source lacks any. Each source is looked at for at most `time_s`.
        """
        missing = [find_missing(member.source.indexed_files(), time_s) for member in self.opened]
        return max((files for files in missing if files is not None), key=attrgetter("share"), default=None)

    @property
    def segments(self) -> NDArray[np.int64]:
        """Return where each segment starts, followed by the number of samples; none spans two members."""
        shifted = (member.source.segments + start for member, start in zip(self.opened, self._starts, strict=False))
        return np.unique(np.concatenate(list(shifted)))

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the first sample of each part that may be weighed: of each member, or of a single member's files."""
        return self._starts[:-1] if len(self.opened) > 1 else self.source.parts

    @property
    def part_names(self) -> tuple[str, ...]:
        """Return the name of each of these parts: the file that its first sample is in.

        What the source raises passes through.
        """
        return tuple(self.source.place(first)[0] for first in self.parts)

    def bound(self, chain: Chain) -> Chain:
        """Return the chain with its fields: as declared, or as found while indexing.

        Raise a SettingsError or DataError if the chain does not suit a member or its index.
        """
        if chain.measured:
            return chain.bound(_common([(member.where, member.index.bound(chain).fields) for member in self.opened]))
        self._refuse_missing(chain)
        for member in self.opened if chain.index_recipe else ():
            if member.source.measurable:
                member.index.refuse_other_trial(chain)
        return chain

    def _refuse_missing(self, chain: Chain) -> None:
        """Raise a SettingsError if a member of a mixture lacks a value that the transforms compute lengths from.

        Other errors of `lengths` pass through.
        """
        for member in self.opened if len(self.opened) > 1 else ():
            try:
                member.lengths(chain, 0, 1)
            except SettingsError as error:
                # The chain cannot know of which member it was asked.
                raise SettingsError(**{**error.words(), "where": member.where}) from error

    def refuse_lacking(self, key: str, chain: Chain) -> None:
        """Raise a SettingsError if a source lacks the bucketed key, which others have and the chain does not make."""
        lacking = [member for member in self.opened if not _has_key(member.source.fields, key)]
        # If all lack it, the stream does not have the key, which the planner reports.
        if lacking and len(lacking) < len(self.opened) and not _has_key(chain.fields, key):
            raise _lacks(key, lacking[0], (field.key for field in lacking[0].source.fields))

    def try_each(self, chain: Chain) -> None:
        """Transform the first sample of each member of a mixture, to find members that lack a value.

        Raise a SettingsError that names a member if a transform needs a value that others have and it lacks, and a
        ReadError if a first sample cannot be read, or a transform cannot read what it needs. A sample that cannot be
        used for another reason is passed over, and a single source is not tried. Other errors of `first_sample` and of
        `Chain.apply` pass through.
        """
        samples = [member.first_sample() for member in self.opened] if len(self.opened) > 1 else []
        for member, sample in zip(self.opened, samples, strict=False):
            try:
                chain.apply(dict(sample), seed=0, epoch=0, number=0)
            except SampleError as error:
                # Anything else is a bad sample, or a value that no member has: building reports it with the sample.
                key = error.__cause__.args[0] if isinstance(error.__cause__, KeyError) else None
                if sample and key not in sample and any(key in other for other in samples):
                    raise _lacks(str(key), member, sample) from error

    def lengths(self, chain: Chain, key: str, start: int, stop: int) -> NDArray[np.int64]:
        """Return the key's lengths, after a bound chain, of the samples from `start` to before `stop`.

        Raise a DataError if they have to be measured and an index has those of another chain, and else the errors of
        `Chain.lengths`, such as a SettingsError if a length is missing, or a rule gives no whole numbers.
        """
        pieces = [member.lengths(chain, *own)[key] for member, own in self._between(start, stop)]
        return _together(pieces, np.int64)

    def begins(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which samples from `start` to before `stop` begin a recording."""
        return _together([member.source.begins(*own) for member, own in self._between(start, stop)], np.bool_)

    def passing(self, rule: RowFilter, chain: Chain, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which of these samples pass a filter, by lengths after the chain, raw lengths, and string columns.

        Raise the errors of `RowFilter.passes`, such as a SettingsError for types that do not fit, and of `lengths`.
        """
        return _together([member.passing(rule, chain, *own) for member, own in self._between(start, stop)], np.bool_)

    def refuse_unknown(self, rule: RowFilter, chain: Chain) -> None:
        """Raise a SettingsError if a source lacks something that the filter uses, and the errors of `lengths`."""
        for member in self.opened:
            values = {**member.source.columns, **member.source.lengths, **member.lengths(chain, 0, 1)}
            rule.refuse_unknown(values, member.where)

    def _between(self, start: int, stop: int) -> Iterator[tuple[OpenedSource, tuple[int, int]]]:
        """Yield each member with samples from `start` to before `stop`, maybe none, and the range in its numbers."""
        for member, first, end in zip(self.opened, self._starts, self._starts[1:], strict=False):
            if start < end and stop > first:
                yield member, (max(start - first, 0), min(stop, end) - first)

    def close(self) -> None:
        """Close the open files of all sources; errors of a source pass through."""
        self.source.close()


def _has_key(fields: Iterable[Field], key: str) -> bool:
    return any(field.key == key for field in fields)


def _lacks(key: str, member: OpenedSource, has: Iterable[str]) -> SettingsError:
    return SettingsError(
        expected=f'a source that has "{key}", as others have',
        got=", ".join(f'"{other}"' for other in has) or "no such value",
        where=member.where,
        remedy="All sources of a mixture need what the transforms use: leave one out, or transform it to have it.",
    )


def _joint(fingerprints: Iterable[str]) -> str:
    """Return one fingerprint for several; a single one as it is, so that a mixture of one is the source itself."""
    several = tuple(fingerprints)
    return several[0] if len(several) == 1 else fingerprint(*several)


def _timeless(field: Field) -> Field:
    return replace(field, per_second=None)


def _together(pieces: Sequence[NDArray[_T]], kind: type[_T]) -> NDArray[_T]:
    if len(pieces) == 1:  # the usual case, without a copy
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.zeros(0, kind)


class JoinedSource(Source):
    """Several sources as one, one after another.

    Making it raises DataError if members have a field of the same key with another dtype or shape.
    """

    def __init__(self, opened: Sequence[OpenedSource]) -> None:
        super().__init__(None, opened[0].source.base)
        self._sources = tuple(member.source for member in opened)
        #: The first sample of each member, and the number of all samples.
        self._starts = tuple(accumulate((source.samples for source in self._sources), initial=0))
        self._fields = _common([(member.where, member.source.fields) for member in opened])

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the fields that all members have; steps per second are kept only if all agree."""
        return self._fields

    @property
    def samples(self) -> int:
        """Return the number of samples of all members."""
        return self._starts[-1]

    def _at(self, sample: int) -> tuple[Source, int]:
        """Return the member that has a sample, and the sample's number there; raise an IndexError if out of range."""
        place = bisect_right(self._starts, self.checked(sample)) - 1
        return self._sources[place], sample - self._starts[place]

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield the samples' bytes in this order; each member is called once, for all samples wanted from it.

        Raise an IndexError if a number is out of range, and what the members' `read` raises: OSError or ReadError.
        """
        placed = [self._at(sample) for sample in samples]
        wanted: dict[Source, list[int]] = {}
        for source, sample in placed:
            wanted.setdefault(source, []).append(sample)
        # A member yields in the order in which it was asked, so taking one answer at a time from the right member gives
        # the order of `samples`, and nothing is read before its turn.
        answers: dict[Source, Iterator[bytes]] = {}
        for source, _ in placed:
            if source not in answers:
                answers[source] = iter(source.read(wanted[source]))
            yield next(answers[source])

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Tell each member which of its samples will be read soon; errors of a member's `expect` pass through."""
        for place, _, own in self._by_member(samples):
            self._sources[place].expect(own)

    def looks_ahead(self) -> bool:
        """Return whether any member wants `expect` to be called now.

        ReadError and MachineError of `looks_ahead` pass through.
        """
        return any(source.looks_ahead() for source in self._sources)

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Decode a sample as its member does.

        Raise an IndexError if it is out of range, and what the member raises: a SampleError if it cannot be decoded.
        """
        return self.decode_picture(sample, raw, "")

    def decode_picture(self, sample: int, raw: bytes, key: str) -> dict[str, Any]:
        """Return what `decode` returns, but a Picture under the key, if the member can; raise what `decode` raises."""
        source, own = self._at(sample)
        if key and isinstance(source, DecodesPictures):
            return source.decode_picture(own, raw, key)
        return source.decode(own, raw)

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns | None:
        """Decode member by member and put each value in its place, for the keys that all members have.

        Return None if a member cannot decode many at once. Raise a ValueError if columns of a key differ in kind or
        inner shape, and whatever a member raises.
        """
        made: list[Columns] = []
        places: list[NDArray[np.int64]] = []
        for place, rows, own in self._by_member(np.array(samples, np.int64)):
            columns = self._sources[place].decode_all(own.tolist(), [raw[row] for row in rows.tolist()])
            if columns is None:  # the builder then decodes all of the batch sample by sample
                return None
            made.append(columns)
            places.append(rows)
        common = set.intersection(*map(set, made)) if made else set[str]()
        return {key: interleaved([columns[key] for columns in made], places) for key in common}

    @property
    def gathers(self) -> bool:
        """Return whether all members write whole batches at once."""
        return all(source.gathers for source in self._sources)

    @property
    def reads_ahead(self) -> bool:  # type: ignore[override]
        """Return whether any member reads ahead."""
        return any(source.reads_ahead for source in self._sources)

    def unread(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples that the members have to read before gathering: numbers of all, member after member.

        Return none if no member has to; errors of a member's `unread` pass through.
        """
        unread = [self._sources[at].unread(own) + self._starts[at] for at, _, own in self._by_member(samples)]
        return np.concatenate(unread) if unread else samples

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Gather member by member into separate arrays, and from there into their rows; their errors pass through."""
        for place, rows, own in self._by_member(samples):
            gather_rows(self._sources[place], own, rows, out)

    def _by_member(self, samples: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each member with samples among these, their places in `samples`, and their numbers in the member."""
        member = np.searchsorted(self._starts, samples, side="right") - 1
        for place in np.unique(member).tolist():
            rows = np.flatnonzero(member == place)
            yield place, rows, samples[rows] - self._starts[place]

    def name(self, sample: int) -> str:
        """Return the member's name for the sample; raise an IndexError if out of range, and what the member raises."""
        source, own = self._at(sample)
        return source.name(own)

    def place(self, sample: int) -> tuple[str, int]:
        """Return the member's file and line for it; raise an IndexError if out of range, and what the member raises."""
        source, own = self._at(sample)
        return source.place(own)

    def identity(self, sample: int) -> str:
        """Return the member's identity of it; raise an IndexError if out of range, and what the member raises."""
        source, own = self._at(sample)
        return source.identity(own)

    @property
    def modules(self) -> tuple[str, ...]:
        """Return the names of the modules that all members are made of, each once; errors of a member pass through."""
        return tuple(dict.fromkeys(module for source in self._sources for module in source.modules))

    @property
    def versions(self) -> dict[str, str]:
        """Return the library versions of all members, by the library's name; errors of a member pass through."""
        return {name: version for source in self._sources for name, version in source.versions.items()}

    def close(self) -> None:
        """Close the open files of all members in turn; an error of a member passes through, later ones stay open."""
        for source in self._sources:
            source.close()


def _common(fields: Sequence[tuple[str, tuple[Field, ...]]]) -> tuple[Field, ...]:
    """Return the fields that all members have, with steps per second only if all agree.

    Raise a DataError that names the member if a field has another dtype or shape there.
    """
    (_, first), *others = fields
    common = []
    for field in first:
        same = [(where, other) for where, members in others for other in members if other.key == field.key]
        if len(same) < len(others):
            continue
        for where, other in same:
            refuse_other_fields((_timeless(field),), (_timeless(other),), where)
        common.append(field if all(other == field for _, other in same) else _timeless(field))
    return tuple(common)
