"""A source under examination: its data, its index, and what is known about its samples.

Rules: what several checks need is computed once, by the first that asks; a source is used only through its public
interface.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.index.folder import Index, open_index
from loader_server.index.make import IndexReport, IndexRequest, make_index
from shared.hashing import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from loader_server.sources.registry import SourceSpec
    from loader_server.sources.source import Inventory, Source

__all__ = [
    "ExaminedSource",
    "NotTried",
    "SourceCase",
    "Violation",
    "content_of",
    "contents_elsewhere",
    "read_all",
    "require",
]

#: The most samples that are examined.
_MOST_SAMPLES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCase:
    """A source with data to examine.

    `change` turns the data into another data set, `bad` has the expected number of bad rows by reason (None: unknown).
    """

    spec: SourceSpec
    change: Callable[[], object] | None = None
    bad: dict[str, int] | None = None


class Violation(Exception):  # it becomes the result of a check
    """A check's finding: what was expected and what came."""


class NotTried(Exception):
    """The reason why a check could not be tried."""


def require(holds: object, finding: str) -> None:
    """Raise a Violation with this finding unless the condition holds."""
    if not holds:
        raise Violation(finding)


@dataclass(slots=False)
class ExaminedSource:
    """The source, its index, and what is known about its samples, computed by the first check that asks."""

    case: SourceCase
    folder: Path
    #: The indexes made so far, by their folder: making one takes seconds, and most checks need only the first.
    made: dict[Path, IndexReport] = field(default_factory=dict)

    def indexed(self, processes: int, piece_rows: int) -> tuple[IndexReport, Path]:
        """Make an index with this many processes and rows in a piece, once; return the report on it and its folder.

        With 0 rows the pieces are the source's own. Raise what making it raises, such as a DataError for data that are
        refused.
        """
        place, spec = self.folder / f"index-{processes}-{piece_rows}", self.case.spec
        if place not in self.made:
            request = IndexRequest(
                folder=place, spec=spec, source=spec.make(), processes=processes, piece_rows=piece_rows
            )
            self.made[place] = make_index(request)
        return self.made[place], place

    def indexed_with_strings(self, keys: tuple[str, ...]) -> Index:
        """Return an index with the strings of these keys, made anew; raise what making or opening it raises."""
        spec = replace(self.case.spec, of_job=replace(self.case.spec.of_job, strings=keys))
        folder = self.folder / "index-strings"
        make_index(IndexRequest(folder=folder, spec=spec, source=spec.make(), processes=1))
        return open_index(folder)

    @cached_property
    def index(self) -> Index:
        """Return the index that one process makes, open; raise what making or opening it raises."""
        return open_index(self.indexed(1, 0)[1])

    def surveyed(self) -> Inventory:
        """Return the inventory of another instance, as for the index that one process makes; raise what `survey` does.

        Raise what making that index raises as well.
        """
        source = self.case.spec.make()
        source.files.index_folder = self.indexed(1, 0)[1]
        return source.survey()

    def open(self) -> Source:
        """Return another instance of the source, open; raise what making the index or opening the source raises."""
        source = self.case.spec.make()
        source.open(self.index.indexed)
        return source

    @cached_property
    def source(self) -> Source:
        """Return the instance that most checks use, open; raise what `open` raises."""
        return self.open()

    @cached_property
    def numbers(self) -> list[int]:
        """Return the numbers of the examined samples, ascending: all, or `_MOST_SAMPLES` that are evenly spaced.

        Empty if the source has none. Raise what opening the source raises.
        """
        # Spaced, so that all files and pieces of the data have their turn.
        total = self.source.samples
        return sorted({place * total // _MOST_SAMPLES for place in range(_MOST_SAMPLES)}) if total else []

    @cached_property
    def raw(self) -> dict[int, bytes]:
        """Return the bytes of each examined sample, read one by one.

        Raise a Violation if the source gives another number of answers than one, and what opening or reading raises.
        """
        return {sample: read_all(self.source, [sample])[0] for sample in self.numbers}

    @cached_property
    def decoded(self) -> dict[int, dict[str, Any]]:
        """Return the values of each examined sample, decoded once; raise what `raw` and decoding raise."""
        return {sample: self.source.decode(sample, raw) for sample, raw in self.raw.items()}

    @cached_property
    def contents(self) -> dict[int, str]:
        """Return the fingerprint of the values of each examined sample; raise what `decoded` raises."""
        return {sample: content_of(values) for sample, values in self.decoded.items()}


def read_all(source: Source, samples: Sequence[int]) -> list[bytes]:
    """Return the bytes of these samples; raise a Violation unless there are as many answers as samples.

    What the source raises is passed on.
    """
    raw = list(source.read(samples))
    finding = f"expected {len(samples)} answers of read({list(samples)[:5]} …), got {len(raw)}"
    require(len(raw) == len(samples), finding)
    return raw


def content_of(values: dict[str, Any]) -> str:
    """Return a fingerprint of everything that a sample holds: keys in any order, dtypes, shapes and values."""
    parts: list[str | bytes] = []
    for key, value in sorted(values.items()):
        if isinstance(value, np.ndarray | np.generic):
            parts += [key, f"{value.dtype} {value.shape}", value.tobytes()]
        else:
            parts += [key, "", repr(value)]
    return fingerprint(*parts)


def contents_elsewhere(spec: SourceSpec, index: Path, samples: list[int]) -> list[str]:
    """Return the fingerprints of these samples, read by a source made anew; it runs in a separate process.

    Raise a DataError if the index cannot be opened, a Violation unless there are as many answers as samples, and what
    the source raises.
    """
    source = spec.make()
    source.open(open_index(index).indexed)
    return [content_of(source.decode(*sample)) for sample in zip(samples, read_all(source, samples), strict=True)]
