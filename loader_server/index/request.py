"""A request to make an index, what follows from it, and the report on the index.

Rules: a caller makes one request, which is passed unchanged to everything that takes part; nothing is opened or written
here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loader_server.index.bad_rows import BAD_ROWS, first_bad_rows
from loader_server.sources.largest import LARGEST_SAMPLE
from shared.bad_limit import NO_LIMIT, BadLimit
from shared.errors import DataError
from shared.settings.parsers import settings_that_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from loader_server.index.folder import Meta
    from loader_server.index.letters import LettersReport
    from loader_server.sources.source import BadRow, Source
    from loader_server.sources.table import SourceSpec
    from loader_server.transforms.audio.low_rates import LowRate
    from loader_server.transforms.chain import Chain

__all__ = ["IndexReport", "IndexRequest", "report_of"]

#: Bad rows that a report holds.
_REPORTED_BAD_ROWS = 1000
#: Up to so many pieces, one process is done before others have started.
_PIECES_THAT_PAY = 8
_MEASURED_PIECES_THAT_PAY = 4


def _show_nothing(done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRequest:
    """A request for the index of one source in one folder."""

    folder: Path
    spec: SourceSpec
    #: The source that `spec` makes, which is closed once the index is made.
    source: Source
    #: The stream's transforms, used if their outputs have to be measured or they may refuse samples.
    chain: Chain | None = None
    #: The number of processes; 0: one for each core, if there are enough rows.
    processes: int = 0
    #: Rows of a piece; 0: the source's own choice.
    piece_rows: int = 0
    #: Whether a single bad row makes us refuse the data.
    strict: bool = False
    #: The limit on bad rows, beyond which the data are refused.
    max_bad: BadLimit = NO_LIMIT
    #: How often finished work is made durable, so that it survives a kill -9.
    keep_s: float = 5.0
    #: Called with the number of finished rows and of all rows.
    progress: Callable[[int, int], None] = field(default=_show_nothing)

    @property
    def measured_chain(self) -> Chain | None:
        """Return the chain if its outputs have to be measured, otherwise None."""
        return self.chain if self.chain is not None and self.chain.measured else None

    @property
    def tried_chain(self) -> Chain | None:
        """Return the chain if samples go through it while indexing: all of them, or those that it may refuse."""
        chain = self.chain
        return chain if chain is not None and self.source.measurable and chain.index_recipe else None

    @property
    def recipe(self) -> str:
        """Return the recipe of the transforms that samples go through while indexing, or ""."""
        return self.tried_chain.index_recipe if self.tried_chain is not None else ""

    @property
    def largest_sample(self) -> int:
        """Return the most bytes that a decoded sample may have; 0: no limit."""
        return self.spec.of_job.largest_indexed

    @property
    def words(self) -> tuple[str, ...]:
        """Return the source's name, its settings and the size limit, in the form of format 1's fingerprints."""
        largest = self.largest_sample
        # The default is left out, so that indexes made before there was a limit keep their fingerprint.
        limit = () if largest in (LARGEST_SAMPLE, 0) else (f"largest_sample {largest}",)
        return self.spec.name, str(sorted(settings_that_count(self.spec.settings).items())), *limit

    @property
    def rows_a_piece(self) -> int:
        """Return the number of rows of a piece: as requested, or the source's own choice."""
        source = self.source
        own = min(source.piece_rows, source.measured_rows) if self.measured_chain else source.piece_rows
        return self.piece_rows or own

    def processes_for(self, pieces: float) -> int:
        """Return how many processes are worth starting for this many pieces."""
        pays = _MEASURED_PIECES_THAT_PAY if self.measured_chain else _PIECES_THAT_PAY
        return (self.processes or os.cpu_count() or 1) if self.piece_rows or pieces > pays else 1

    def refuses(self, bad: Mapping[str, int], rows: int) -> bool:
        """Return whether data with these bad rows, counted by reason, are refused."""
        count = sum(bad.values())
        return bool(count and self.strict) or self.max_bad.is_exceeded(count, rows)

    def refuse_measuring(self) -> None:
        """Raise a DataError if lengths have to be measured and no sample can be read while indexing."""
        if self.measured_chain is not None and not self.source.measurable:
            raise DataError(
                expected="transforms that declare their outputs",
                got="one that has to be measured",
                where=f'source = "{self.spec.name}"',
                remedy="Declare it with @transform(…): no sample of this source is looked at while indexing.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """The report on an index: what it holds, and which rows were left out."""

    folder: Path
    fingerprint: str
    samples: int
    #: The first bad rows, at most 1 000.
    bad: tuple[BadRow, ...]
    #: All bad rows, counted by reason.
    bad_counts: Mapping[str, int]
    #: The file that lists all bad rows, if there are any.
    bad_path: Path | None
    #: Whether the present index was kept, because a new one would be the same.
    unchanged: bool = False
    #: The chain's effect on letters.
    letters: LettersReport | None = None
    #: Recordings that the chain resamples upwards.
    low_rates: tuple[LowRate, ...] = ()

    @property
    def rows(self) -> int:
        """Return the number of all rows, good and bad."""
        return self.samples + sum(self.bad_counts.values())


def report_of(folder: Path, meta: Meta) -> IndexReport:
    """Return the report on the index of a folder."""
    columns = folder / meta.folder
    return IndexReport(
        folder=folder,
        fingerprint=meta.fingerprint,
        samples=meta.samples,
        bad=first_bad_rows(columns, _REPORTED_BAD_ROWS),
        bad_counts=meta.bad,
        bad_path=columns / BAD_ROWS if meta.bad else None,
    )
