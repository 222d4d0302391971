"""Probing the pieces of a source: what the index has to know about its samples.

Lengths are measured after the transforms if some of these declare nothing, and samples that the transforms refuse are
left out.

Rules: each piece is probed by itself, so that processes can share the work and the output does not depend on how many
there are. A process gets names and settings and makes its own source. What a sample holds is known only to the source,
and so is what makes a row bad; a sample that the transforms refuse is bad as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from loader_server.index.pool import run_in_order, usable_processes
from loader_server.index.probed_strings import only, with_strings
from loader_server.sources.blame import undecoded
from loader_server.sources.files.retried_reads import read_patiently
from loader_server.sources.sample_limits import OVER_LARGEST, look_twice, size_texts
from loader_server.sources.source import BadRow, Found, Indexed
from shared.errors import DataError, SampleError, StokerError
from shared.wire.batch_layout import Field

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    from loader_server.index.request import IndexRequest
    from loader_server.sources.registry import SourceSpec
    from loader_server.sources.source import Inventory, Source
    from loader_server.transforms.chain import Chain

_Measured: TypeAlias = "tuple[tuple[Field, ...], dict[str, int]]"

__all__ = ["Probed", "probe_in_order", "refuse_other_fields"]


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of probing one piece."""

    #: The good rows with their columns, and the bad ones, those that the transforms refuse included.
    found: Found
    #: If lengths were measured: the place of the first good sample, and fields and lengths after the transforms.
    where: str = ""
    fields: tuple[Field, ...] = ()
    measured: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProbeOrder:
    """The part of a request and its inventory that probing needs, small enough to send to another process."""

    # No source: its open files cannot be sent, so a process makes its own from the spec.

    spec: SourceSpec
    origin: list[dict[str, Any]]
    about: dict[str, Any]
    chain: Chain | None
    #: The index's folder.
    folder: Path


class _Prober:
    """A source with everything it needs to probe its pieces."""

    def __init__(self, order: _ProbeOrder, source: Source) -> None:
        self._order = order
        self._source = source

    def probe(self, piece: Any) -> Probed:
        """Return what one piece holds, after the size limit and the transforms, with the strings that batches get.

        Rows that are too large or refused are bad, and those that lack such a string. Raise a DataError if measured
        fields differ between samples, a ReadError if reading fails, a MachineError if memory ran out, a SettingsError
        if a transform's rule asks for a length that is missing, and other errors of chain and source, such as an
        OSError if the disk fails.
        """
        found, chain = self._without_larger(self._source.probe(piece)), self._order.chain
        if strings := self._order.spec.of_job.strings:
            self._source.open(self._indexed(found))
            found = with_strings(found, self._source, strings, self._order.spec.of_job.largest_sample)
        if chain is None:
            return Probed(found)
        self._source.open(self._indexed(found))
        return self._measured(found, chain) if chain.measured else self._tried(found, chain)

    def _without_larger(self, found: Found) -> Found:
        """Return the piece with rows turned bad that are too large once decoded, as far as their lengths tell.

        Return it as it is if there is no limit, or if the columns do not tell the size. Errors of the source pass
        through.
        """
        largest, nbytes = self._order.spec.of_job.largest_indexed, self._source.decoded_bytes(found.numbers)
        if not largest or nbytes is None or nbytes.max(initial=0) <= largest:
            return found
        # Opened with this piece alone, so that the source can name a row's place.
        self._source.open(self._indexed(found))
        bad = dict(found.bad)
        for place in np.flatnonzero(nbytes > largest).tolist():
            expected, got = size_texts(int(nbytes[place]), largest)
            detail = f"expected {expected}, got {got}"
            bad[found.rows[place]] = BadRow(*self._source.place(place), OVER_LARGEST, detail)
        return only(found, np.flatnonzero(nbytes <= largest).tolist(), bad)

    def _tried(self, found: Found, chain: Chain) -> Probed:
        """Return the piece with rows turned bad that a transform refuses; only those that it may refuse are decoded.

        Raise a ReadError if reading fails, a MachineError if memory or descriptors ran out, a SettingsError if a rule
        asks for a length that is missing, and other errors of the source, `Chain.doubtful` and `Chain.measure`.
        """
        kept, bad = list[int](), dict(found.bad)
        doubtful = chain.doubtful(self._source.lengths)
        for place, row in enumerate(found.rows):
            made = self._measure_or_bad(place, row, self._read([place])[0], chain) if doubtful[place] else None
            if isinstance(made, BadRow):
                bad[row] = made
            else:
                kept.append(place)
        return Probed(only(found, kept, bad)) if len(bad) > len(found.bad) else Probed(found)

    def _measured(self, found: Found, chain: Chain) -> Probed:
        """Return the piece with the lengths of all samples after the transforms; samples that are refused turn bad.

        Raise a DataError if fields differ between samples, a ReadError if reading fails, and a MachineError if memory
        or descriptors ran out. Other errors of the source and of `Chain.measure` pass through.
        """
        kept, fields, bad = list[int](), tuple[Field, ...](), dict(found.bad)
        lengths: dict[str, list[int]] = {}
        raw = self._read(range(len(found.rows)))
        for place, (row, sample) in enumerate(zip(found.rows, raw, strict=True)):
            made = self._measure_or_bad(place, row, sample, chain)
            if isinstance(made, BadRow):
                bad[row] = made
                continue
            # The first good sample of the piece sets the fields; `Draft` compares the pieces with each other.
            fields = fields or made[0]
            if fields != made[0]:
                refuse_other_fields(fields, made[0], self._where(place))
            kept.append(place)
            for key, length in made[1].items():
                lengths.setdefault(key, []).append(length)
        return Probed(only(found, kept, bad), self._where(kept[0]) if kept else "", fields, lengths)

    def _read(self, places: Sequence[int]) -> list[bytes]:
        return read_patiently(self._source.read, places, bool)

    def _measure_or_bad(self, place: int, row: int, raw: bytes, chain: Chain) -> _Measured | BadRow:
        """Return the fields and lengths of one sample, or the bad row that it makes.

        A failure of the machine is raised: a ReadError, or a MachineError if memory or descriptors ran out twice. Other
        errors of `_measure` than a SampleError are passed on.
        """
        largest = self._order.spec.of_job.largest_sample
        try:
            # If memory ran out, a second look with the free memory known tells the sample's fault from the machine's.
            return look_twice(lambda: self._measure(place, row, raw, chain), largest, where=lambda: self._where(place))
        except SampleError as error:
            detail = f"expected {error.expected}, got {error.got}"
            return BadRow(*self._source.place(place), error.reason, detail, error.remedy)

    def _measure(self, place: int, row: int, raw: bytes, chain: Chain) -> _Measured:
        """Return the fields and lengths of one sample; raise a SampleError if it cannot be used.

        Raise a ReadError if the machine failed; a MemoryError and other errors of `Chain.measure` are passed on.
        """
        try:
            sample = self._source.decode(place, raw)
        except (StokerError, MemoryError):
            raise
        except Exception as error:  # a decoder may raise anything for damaged bytes
            raise undecoded(error, self._where(place)) from error
        return chain.measure(sample, row, self._source.name(place))

    def _where(self, place: int) -> str:
        where, line = self._source.place(place)
        return f"{self._source.name(place)} ({where}, line {line})"

    def _indexed(self, found: Found) -> Indexed:
        numbers = {name: np.asarray(column, np.int64) for name, column in found.numbers.items()}
        about = {**self._order.about, **(self._source.conclude(numbers) if len(found.rows) else {})}
        return Indexed(
            samples=len(found.rows),
            numbers=numbers,
            strings=found.strings,
            origin=self._order.origin,
            about=about,
            place=self._order.folder,
        )


def probe_in_order(
    request: IndexRequest, inventory: Inventory, pieces: Iterator[Any], processes: int
) -> Generator[Probed, None, None]:
    """Yield what each piece holds, in order, from one process or several.

    One process probes with the request's own source, unless that must be probed apart. Other errors of the source, of
    the chain and of `pieces` pass through.

    Raises:
        BrokenProcessPool: A process died.
        DataError: Fields differ between samples of a piece, or (ReadError) a sample cannot be read.
        MachineError: Memory or descriptors ran out.
        SettingsError: A transform's rule asks for a length that is missing.

    """
    order = _ProbeOrder(
        spec=request.spec,
        origin=inventory.origin,
        about=inventory.about,
        chain=request.tried_chain,
        folder=request.folder,
    )
    # One that must be probed apart leaves things in a process that must not be there when it forks.
    if not request.source.apart and usable_processes(processes) == 1:
        yield from map(_Prober(order, request.source).probe, pieces)
        return
    yield from run_in_order(partial(_probe_of, order), pieces, processes)


def _probe_of(order: _ProbeOrder) -> Callable[[Any], Probed]:
    source = order.spec.make()
    source.files.index_folder = order.folder
    return _Prober(order, source).probe


def refuse_other_fields(first: tuple[Field, ...], now: tuple[Field, ...], where: str) -> None:
    """Raise a DataError if keys, dtypes or shapes differ from those of the samples before; their order may."""
    key = attrgetter("key")
    for before, other in zip(sorted(first, key=key), sorted(now, key=key), strict=False):
        if before != other:
            raise DataError(
                expected=f"{_shown(before)}, as the samples before",
                got=_shown(other),
                where=where,
                remedy="A dtype or shape may not change between samples: mend the transform"
                + _wide_remedy(before, other),
            )
    if len(first) != len(now):
        raise DataError(
            expected=f"the keys {', '.join(sorted(map(key, first)))}, as the samples before",
            got=", ".join(sorted(map(key, now))),
            where=where,
            remedy="Every sample must have the same keys: mend the transform.",
        )


def _wide_remedy(first: Field, now: Field) -> str:
    """Return the advice for fields that differ in their second axis alone, and for others a full stop."""
    wide = _widened(first)
    if wide is None or wide != _widened(now):
        return "."
    axes = ", ".join(str(axis) for axis in wide.shape)
    declared = f'@transform({{"{wide.key}": ("{wide.dtype}", {axes})}}, measured=True)'
    return f', or if rows and columns may differ, declare {declared}, or write any_size = ["{wide.key}"] at the source.'


def _widened(field_: Field) -> Field | None:
    """Return the field with two padded axes; None if it has fewer axes."""
    if len(field_.shape) < 2:
        return None
    return Field(key=field_.key, dtype=field_.dtype, shape=(None, None, *field_.shape[2:]))


def _shown(field_: Field) -> str:
    return f'"{field_.key}" as {field_.dtype} [{", ".join("any" if a is None else str(a) for a in field_.shape)}]'
