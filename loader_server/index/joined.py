"""The indexed sources of one stream, seen as one: a mixture's members come one after another, samples by offset.

Rules: each member has its own index; a single member is passed through as it is. Members may be of different kinds:
transforms get the raw values that all members have; if they need another, the error names the member that lacks it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from loader_server.index.probe import refuse_other_fields
from loader_server.sources.batch_columns import interleaved
from loader_server.sources.files.patience import read_patiently
from loader_server.sources.files.presence import find_missing
from loader_server.sources.source import Source, gather_rows
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


class SourceSet:
    """All samples of a stream, from one source or several; `cut` describes how recordings are cut, if they are."""

    def __init__(self, opened: Sequence[OpenedSource], cut: str = "") -> None:
        self._opened = tuple(opened)
        self._cut = cut
        self._starts = tuple(accumulate((one.source.samples for one in opened), initial=0))
        self.source: Source = opened[0].source if len(opened) == 1 else JoinedSource(self._opened)

    @property
    def samples(self) -> int:
        """Return the number of samples of all sources."""
        return self._starts[-1]

    @property
    def opened(self) -> tuple[OpenedSource, ...]:
        """Return the sources, in order."""
        return self._opened

    def raw_lengths(self, sample: int) -> dict[str, int]:
        """Return the lengths that the index has for one raw sample."""
        place = bisect_right(self._starts, sample) - 1
        columns, own = self._opened[place].source.lengths, sample - self._starts[place]
        return {key: int(column[own]) for key, column in columns.items()}

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the indexes, and of how recordings are cut."""
        indexes = _joint(one.index.fingerprint for one in self._opened)
        return fingerprint(indexes, self._cut) if self._cut else indexes

    @property
    def made(self) -> str:
        """Return a value that changes whenever one of the indexes is made anew."""
        return _joint(one.index.meta.folder for one in self._opened)

    @property
    def made_from(self) -> str:
        """Return a value that is equal only if the indexes were made from the same data.

        An index that does not know what it was made from counts as different each time it is made, as in `made`.
        """
        return _joint(one.index.meta.made_from or one.index.meta.folder for one in self._opened)

    @property
    def bad(self) -> dict[str, int]:
        """Return the number of rows left out, by reason."""
        counts: Counter[str] = Counter()
        for one in self._opened:
            counts.update(one.index.meta.bad)
        return dict(counts)

    def find_missing(self, time_s: float) -> MissingFiles | None:
        """Return what is missing on this machine from the source that lacks the largest part of its files.

        Return None if no source lacks any. Each source is looked at for at most `time_s`.
        """
        found = [find_missing(one.source.indexed_files(), time_s) for one in self._opened]
        return max((one for one in found if one is not None), key=lambda one: one.share, default=None)

    @property
    def segments(self) -> NDArray[np.int64]:
        """Return where each segment starts, followed by the number of samples; none spans two members."""
        shifted = (one.source.segments + start for one, start in zip(self._opened, self._starts, strict=False))
        return np.unique(np.concatenate(list(shifted)))

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the first sample of each part that may be weighed: of each member, or of a single member's files."""
        return self._starts[:-1] if len(self._opened) > 1 else self.source.parts

    def bound(self, chain: Chain) -> Chain:
        """Return the chain with its fields: as declared, or as found while indexing.

        Raise a SettingsError or DataError if the chain does not suit a member or its index.
        """
        if not chain.measured:
            self._refuse_missing(chain)
            self._refuse_other_trials(chain)
            return chain
        return chain.bound(_common([(one.where, one.index.bound(chain).fields) for one in self._opened]))

    def _refuse_other_trials(self, chain: Chain) -> None:
        for one in self._opened if chain.index_recipe else ():
            if one.source.measurable:
                one.index.refuse_other_trial(chain)

    def _refuse_missing(self, chain: Chain) -> None:
        """Raise a SettingsError if a member of a mixture lacks a value that the transforms compute lengths from."""
        for one in self._opened if len(self._opened) > 1 else ():
            try:
                _lengths(one, chain, 0, 1)
            except SettingsError as error:
                raise SettingsError(
                    expected=error.expected, got=error.got, where=one.where, remedy=error.remedy
                ) from error

    def refuse_lacking(self, key: str, chain: Chain) -> None:
        """Raise a SettingsError if a source lacks the bucketed key, which others have and the chain does not make."""
        having = [one for one in self._opened if any(field.key == key for field in one.source.fields)]
        if not having or any(field.key == key for field in chain.fields):
            return
        for one in self._opened:
            if one not in having:
                raise _lacks(key, one, (field.key for field in one.source.fields))

    def try_each(self, chain: Chain) -> None:
        """Transform the first sample of each member of a mixture, to find members that lack a value.

        Raise a SettingsError that names a member if a transform needs a value that others have and it lacks.
        """
        samples = [_first_sample(one) for one in self._opened] if len(self._opened) > 1 else []
        for one, sample in zip(self._opened, samples, strict=False):
            try:
                chain.apply(dict(sample), seed=0, epoch=0, number=0)
            except SampleError as error:
                key = error.__cause__.args[0] if isinstance(error.__cause__, KeyError) else None
                if sample and key not in sample and any(key in other for other in samples):
                    raise _lacks(str(key), one, sample) from error

    def lengths(self, chain: Chain, key: str, start: int, stop: int) -> NDArray[np.int64]:
        """Return the lengths, after a bound chain, of the samples from `start` to before `stop`."""
        return _together([_lengths(one, chain, *own)[key] for one, own in self._between(start, stop)], np.int64)

    def begins(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which samples from `start` to before `stop` begin a recording."""
        return _together([one.source.begins(*own) for one, own in self._between(start, stop)], np.bool_)

    def passing(self, rule: RowFilter, chain: Chain, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which of these samples pass a filter, by lengths after the chain, raw lengths, and string columns."""
        return _together([_passing(rule, one, chain, own) for one, own in self._between(start, stop)], np.bool_)

    def refuse_unknown(self, rule: RowFilter, chain: Chain) -> None:
        """Raise a SettingsError if a source lacks something that the filter uses."""
        for one in self._opened:
            rule.refuse_unknown({**one.source.columns, **one.source.lengths, **_lengths(one, chain, 0, 1)}, one.where)

    def _between(self, start: int, stop: int) -> Iterator[tuple[OpenedSource, tuple[int, int]]]:
        """Yield each member with samples from `start` to before `stop`, and the range in its own numbers."""
        for one, first, end in zip(self._opened, self._starts, self._starts[1:], strict=False):
            if start < end and stop > first:
                yield one, (max(start - first, 0), min(stop, end) - first)

    def close(self) -> None:
        """Close the sources' open files."""
        self.source.close()


def _first_sample(one: OpenedSource) -> dict[str, Any]:
    """Return the first sample, or an empty dict if it cannot be decoded."""
    (raw,) = read_patiently(one.source.read, [0], bool)
    try:
        return one.source.decode(0, raw)
    except Exception as error:  # building its batch will mask and count it; here only keys are compared
        Log("stream").debug("the first sample cannot be decoded", where=one.where, error=repr(error))
        return {}


def _lacks(key: str, one: OpenedSource, has: Iterable[str]) -> SettingsError:
    return SettingsError(
        expected=f'a source that has "{key}", as others have',
        got=", ".join(f'"{other}"' for other in has) or "no such value",
        where=one.where,
        remedy="All sources of a mixture need what the transforms use: leave one out, or transform it to have it.",
    )


def _joint(texts: Iterable[str]) -> str:
    several = tuple(texts)
    return several[0] if len(several) == 1 else fingerprint(*several)


def _timeless(field: Field) -> Field:
    return replace(field, per_second=None)


def _lengths(one: OpenedSource, chain: Chain, start: int, stop: int) -> Mapping[str, NDArray[np.int64]]:
    if chain.measured:
        return {key: column[start:stop] for key, column in one.index.measured_lengths(chain).items()}
    return chain.lengths({key: column[start:stop] for key, column in one.source.lengths.items()})


def _together(pieces: Sequence[NDArray[_T]], kind: type[_T]) -> NDArray[_T]:
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.zeros(0, kind)


def _passing(rule: RowFilter, one: OpenedSource, chain: Chain, own: tuple[int, int]) -> NDArray[np.bool_]:
    start, stop = own
    lengths = {**{key: column[start:stop] for key, column in one.source.lengths.items()}, **_lengths(one, chain, *own)}
    strings = {name: one.source.columns[name] for name in rule.names if name not in lengths}
    columns = {name: np.array([column[at] for at in range(start, stop)], object) for name, column in strings.items()}
    return rule.passes({**lengths, **columns}, stop - start)


class JoinedSource(Source):
    """Several sources as one, one after another."""

    def __init__(self, opened: Sequence[OpenedSource]) -> None:
        super().__init__(None, opened[0].source.base)
        self._sources = tuple(one.source for one in opened)
        self._starts = tuple(accumulate((one.source.samples for one in opened), initial=0))
        self._fields = _common([(one.where, one.source.fields) for one in opened])

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
        """Yield the samples' bytes; each member is called once, for all samples wanted from it."""
        placed = [self._at(sample) for sample in samples]
        asked: dict[Source, list[int]] = {}
        for source, sample in placed:
            asked.setdefault(source, []).append(sample)
        # A member yields in the order in which it was asked, so taking one answer at a time from the right member gives
        # the order of `samples`, and nothing is read before its turn.
        raw: dict[Source, Iterator[bytes]] = {}
        for source, _ in placed:
            if source not in raw:
                raw[source] = iter(source.read(asked[source]))
            yield next(raw[source])

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Tell each member which of its samples will be read soon."""
        of = np.searchsorted(self._starts, samples, side="right") - 1
        for place in np.unique(of).tolist():
            self._sources[place].expect(samples[of == place] - self._starts[place])

    def looks_ahead(self) -> bool:
        """Return whether any member looks ahead."""
        return any(one.looks_ahead() for one in self._sources)

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Decode a sample as its member does."""
        source, own = self._at(sample)
        return source.decode(own, raw)

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns | None:
        """Decode member by member and put each value in its place, for the keys that all members have.

        Return None if a member cannot decode many at once.
        """
        made: list[Columns] = []
        places: list[NDArray[np.int64]] = []
        for place, rows, own in self._by_member(np.array(samples, np.int64)):
            columns = self._sources[place].decode_all(own.tolist(), [raw[row] for row in rows.tolist()])
            if columns is None:
                return None
            made.append(columns)
            places.append(rows)
        common = set.intersection(*map(set, made)) if made else set[str]()
        return {key: interleaved([columns[key] for columns in made], places) for key in common}

    @property
    def gathers(self) -> bool:
        """Return whether all members gather."""
        return all(one.gathers for one in self._sources)

    @property
    def reads_ahead(self) -> bool:  # type: ignore[override]
        """Return whether any member reads ahead."""
        return any(one.reads_ahead for one in self._sources)

    def unread(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples that each member has to read before gathering."""
        asked = self._by_member(samples)
        found = [self._sources[place].unread(own) + self._starts[place] for place, _, own in asked]
        return np.concatenate(found) if found else samples

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Gather member by member into separate arrays, and from there into their rows."""
        for place, rows, own in self._by_member(samples):
            gather_rows(self._sources[place], own, rows, out)

    def _by_member(self, samples: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each member with samples among these, their places in `samples`, and their numbers in the member."""
        of = np.searchsorted(self._starts, samples, side="right") - 1
        for place in np.unique(of).tolist():
            rows = np.flatnonzero(of == place)
            yield place, rows, samples[rows] - self._starts[place]

    def name(self, sample: int) -> str:
        """Return the member's name for the sample."""
        source, own = self._at(sample)
        return source.name(own)

    def place(self, sample: int) -> tuple[str, int]:
        """Return the member's file and line for the sample."""
        source, own = self._at(sample)
        return source.place(own)

    def identity(self, sample: int) -> str:
        """Return the member's identity of the sample."""
        source, own = self._at(sample)
        return source.identity(own)

    @property
    def modules(self) -> tuple[str, ...]:
        """Return the modules of all members."""
        return tuple(dict.fromkeys(module for source in self._sources for module in source.modules))

    @property
    def versions(self) -> dict[str, str]:
        """Return the library versions of all members."""
        return {name: version for source in self._sources for name, version in source.versions.items()}

    def close(self) -> None:
        """Close the open files of all members."""
        for source in self._sources:
            source.close()


def _common(fields: Sequence[tuple[str, tuple[Field, ...]]]) -> tuple[Field, ...]:
    """Return the fields that all members have, with steps per second only if all agree.

    Raise a DataError that names the member if a field has another dtype or shape there.
    """
    (_, first), *others = fields
    found = []
    for field in first:
        same = [(where, one) for where, other in others for one in other if one.key == field.key]
        if len(same) < len(others):
            continue
        for where, one in same:
            refuse_other_fields((_timeless(field),), (_timeless(one),), where)
        found.append(field if all(one == field for _, one in same) else _timeless(field))
    return tuple(found)
