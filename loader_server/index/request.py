"""A request to make an index, and the report on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loader_server.index.bad_rows import BAD_ROWS, first_bad_rows
from shared.bad_limit import NO_LIMIT, BadLimit

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


def _unseen(done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRequest:
    """What to index, and into which folder: `processes` 0 means one for each core, `piece_rows` 0 as many as suit the
    source; with more bad rows than `max_bad`, or with one if it is `strict`, the data are refused.

    `source` is there if one was made already, `chain` is needed only where it is measured; `progress` is called with
    rows done and rows in all; finished work is made durable every `keep_s` seconds, for resuming after a kill -9.
    """

    folder: Path
    spec: SourceSpec
    source: Source | None = None
    chain: Chain | None = None
    processes: int = 0
    piece_rows: int = 0
    strict: bool = False
    max_bad: BadLimit = NO_LIMIT
    keep_s: float = 5.0
    progress: Callable[[int, int], None] = field(default=_unseen)

    @property
    def measuring(self) -> Chain | None:
        """The chain, if its outputs have to be measured."""
        return self.chain if self.chain is not None and self.chain.measured else None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """The result: `bad` are the first bad rows (at most 1 000), `bad_counts` all of them by reason, `bad_path` the
    file that has all, if there are any. `unchanged`: nothing had to be done.
    `letters`: what the chain does to them, `low_rates`: what it resamples upwards.
    """

    folder: Path
    fingerprint: str
    samples: int
    bad: tuple[BadRow, ...]
    bad_counts: Mapping[str, int]
    bad_path: Path | None
    unchanged: bool = False
    letters: LettersReport | None = None
    low_rates: tuple[LowRate, ...] = ()

    @property
    def rows(self) -> int:
        """All rows, good and bad."""
        return self.samples + sum(self.bad_counts.values())


def report_of(folder: Path, meta: Meta) -> IndexReport:
    """The report on the index of a folder."""
    columns = folder / meta.folder
    return IndexReport(
        folder=folder,
        fingerprint=meta.fingerprint,
        samples=meta.samples,
        bad=first_bad_rows(columns, _REPORTED_BAD_ROWS),
        bad_counts=meta.bad,
        bad_path=columns / BAD_ROWS if meta.bad else None,
    )
