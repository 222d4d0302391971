"""Probes one piece of a source: what the index has to know about its samples, with lengths after the transforms if some
of these declare nothing, and without samples that the transforms refuse.

Rules: each piece is probed by itself, so that processes can share the work and the output does not depend on how many
there are. A process gets names and settings and makes its own source. What a sample holds is the source's business, and
so is what makes a row bad; a sample that the transforms refuse is bad as well.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from loader_server.machine.processes import end_with_parent
from loader_server.sources.blame import undecoded
from loader_server.sources.files.patience import read_patiently
from loader_server.sources.largest import OVER_LARGEST, said_of_larger
from loader_server.sources.shortage import look_twice
from loader_server.sources.source import BadRow, Found, Indexed
from shared.errors import DataError, SampleError, StokerError
from shared.wire.layout import Field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loader_server.sources.source import Source
    from loader_server.sources.table import SourceSpec
    from loader_server.transforms.chain import Chain

_Measured: TypeAlias = "tuple[tuple[Field, ...], dict[str, int]]"

__all__ = ["ProbeOrder", "Probed", "Prober", "begin_probing", "probe_piece", "refuse_other_fields"]


@dataclass(frozen=True, slots=True)
class Probed:
    """What was found; if lengths had to be measured, the fields and lengths after the transforms, and the place of the
    first sample.
    """

    found: Found
    where: str = ""
    fields: tuple[Field, ...] = ()
    measured: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOrder:
    """What a process has to know to probe pieces; `chain` is given if samples are put through it: all, if it has to be
    measured, or those that it may refuse.
    """

    spec: SourceSpec
    origin: list[dict[str, Any]]
    about: dict[str, Any]
    chain: Chain | None


class Prober:
    """Probes pieces of a source."""

    def __init__(self, order: ProbeOrder, source: Source) -> None:
        self._order = order
        self._source = source

    def probe(self, piece: Any) -> Probed:  # noqa: ANN401 - the source knows what it gave
        """What one piece holds."""
        found, chain = self._without_larger(self._source.probe(piece)), self._order.chain
        if chain is None:
            return Probed(found)
        self._source.open(self._indexed(found))
        return self._measured(found, chain) if chain.measured else self._tried(found, chain)

    def _without_larger(self, found: Found) -> Found:
        """The piece without the rows that are larger than a sample may be, as far as their lengths tell."""
        largest, nbytes = self._order.spec.of_job.largest_indexed, self._source.decoded_bytes(found.numbers)
        if not largest or nbytes is None or nbytes.max(initial=0) <= largest:
            return found
        self._source.open(self._indexed(found))
        larger = np.flatnonzero(nbytes > largest).tolist()
        bad = {found.rows[place]: self._larger(place, int(nbytes[place]), largest) for place in larger}
        return _only(found, np.flatnonzero(nbytes <= largest).tolist(), {**found.bad, **bad})

    def _larger(self, place: int, nbytes: int, largest: int) -> BadRow:
        expected, got = said_of_larger(nbytes, largest)
        return BadRow(*self._source.place(place), OVER_LARGEST, f"expected {expected}, got {got}")

    def _tried(self, found: Found, chain: Chain) -> Probed:
        """The piece without the rows that a transform refuses; only those that it may refuse are tried."""
        kept, bad = list[int](), dict(found.bad)
        doubtful = chain.doubtful(self._source.lengths)
        for place, row in enumerate(found.rows):
            made = self._measure_or_bad(place, row, self._read([place])[0], chain) if doubtful[place] else None
            if isinstance(made, BadRow):
                bad[row] = made
            else:
                kept.append(place)
        return Probed(_only(found, kept, bad)) if len(bad) > len(found.bad) else Probed(found)

    def _measured(self, found: Found, chain: Chain) -> Probed:
        kept, fields, bad = list[int](), tuple[Field, ...](), dict(found.bad)
        lengths: dict[str, list[int]] = {}
        raw = self._read(range(len(found.rows)))
        for place, (row, one) in enumerate(zip(found.rows, raw, strict=True)):
            made = self._measure_or_bad(place, row, one, chain)
            if isinstance(made, BadRow):
                bad[row] = made
                continue
            fields = fields or made[0]
            if fields != made[0]:
                refuse_other_fields(fields, made[0], self._where(place))
            kept.append(place)
            for key, length in made[1].items():
                lengths.setdefault(key, []).append(length)
        return Probed(_only(found, kept, bad), self._where(kept[0]) if kept else "", fields, lengths)

    def _read(self, places: Sequence[int]) -> list[bytes]:
        return read_patiently(self._source.read, places, bool)

    def _measure_or_bad(self, place: int, row: int, raw: bytes, chain: Chain) -> _Measured | BadRow:
        largest = self._order.spec.of_job.largest_sample
        try:
            return look_twice(lambda: self._measure(place, row, raw, chain), largest, where=lambda: self._where(place))
        except SampleError as error:
            detail = f"expected {error.expected}, got {error.got}"
            return BadRow(*self._source.place(place), error.reason, detail, error.remedy)

    def _measure(self, place: int, row: int, raw: bytes, chain: Chain) -> _Measured:
        try:
            sample = self._source.decode(place, raw)
        except (StokerError, MemoryError):
            raise
        except Exception as error:
            raise undecoded(error, self._where(place)) from error
        return chain.measure(sample, row, self._source.name(place))

    def _where(self, place: int) -> str:
        where, line = self._source.place(place)
        return f"{self._source.name(place)} ({where}, line {line})"

    def _indexed(self, found: Found) -> Indexed:
        numbers = {name: np.asarray(column, np.int64) for name, column in found.numbers.items()}
        about = {**self._order.about, **(self._source.conclude(numbers) if len(found.rows) else {})}
        return Indexed(
            samples=len(found.rows), numbers=numbers, strings=found.strings, origin=self._order.origin, about=about
        )


def _only(found: Found, kept: Sequence[int], bad: Mapping[int, BadRow]) -> Found:
    """The good rows at these places, and all bad ones in order."""
    numbers = {name: np.asarray(column, np.int64)[list(kept)] for name, column in found.numbers.items()}
    strings = {name: [column[place] for place in kept] for name, column in found.strings.items()}
    rows = [found.rows[place] for place in kept]
    return Found(rows=rows, numbers=numbers, strings=strings, bad=dict(sorted(bad.items())))


#: What this process was told to probe. The prober is made with the first piece, so that errors reach the caller.
_TOLD: list[ProbeOrder] = []
_PROBERS: list[Prober] = []


def begin_probing(order: ProbeOrder, parent: int) -> None:
    """Tell a pool's process which source the pieces belong to; it ends with its parent, even if that is killed."""
    try:
        end_with_parent(parent, signal.SIGKILL)
    except SystemExit:  # it was killed while we started, and a pool would complain at length
        os._exit(0)
    _TOLD[:] = [order]
    _PROBERS.clear()


def probe_piece(piece: Any) -> Probed:  # noqa: ANN401 - the source knows what it gave
    """What one piece holds, in a process that was told of the source."""
    if not _PROBERS:
        _PROBERS.append(Prober(_TOLD[0], _TOLD[0].spec.make()))
    return _PROBERS[0].probe(piece)


def refuse_other_fields(first: tuple[Field, ...], now: tuple[Field, ...], where: str) -> None:
    """Refuse fields that differ from those of the samples before."""
    for one, other in zip(sorted(first, key=_key), sorted(now, key=_key), strict=False):
        if one != other:
            raise DataError(
                expected=f"{_shown(one)}, as the samples before",
                got=_shown(other),
                where=where,
                remedy="A dtype or shape may not change between samples: mend the transform.",
            )
    if len(first) != len(now):
        raise DataError(
            expected=f"the keys {', '.join(sorted(map(_key, first)))}, as the samples before",
            got=", ".join(sorted(map(_key, now))),
            where=where,
            remedy="Every sample must have the same keys: mend the transform.",
        )


def _key(field_: Field) -> str:
    return field_.key


def _shown(field_: Field) -> str:
    return f'"{field_.key}" as {field_.dtype} [{", ".join("any" if a is None else str(a) for a in field_.shape)}]'
