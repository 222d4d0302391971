"""A request to make an index, what follows from it, and the reports on the index.

Rules: a caller makes one request, which is passed unchanged to everything that takes part. What a transform does to the
letters of samples is counted with the index and kept beside its columns. That file is no column, so the fingerprint
does not depend on it; it names the alphabet, and counts for another one are made anew. Either everything that reaches
the transform is counted, or nothing: after a user's own transform, or if texts can only be had by decoding samples, the
report says why there are no counts.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from loader_server.index.column_files import BAD_ROWS, first_bad_rows
from loader_server.sources.sample_limits import LARGEST_SAMPLE
from loader_server.transforms.characters import LetterCounter, LetterCounts, counting_step
from shared.bad_limit import NO_LIMIT, BadLimit
from shared.errors import DataError
from shared.settings.parsers import settings_that_count
from shared.stores.own_files import replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from loader_server.index.folder import Meta
    from loader_server.sources.registry import SourceSpec
    from loader_server.sources.source import BadRow, Source
    from loader_server.transforms.audio.low_rates import LowRate
    from loader_server.transforms.chain import Chain
    from loader_server.transforms.characters import Alphabet, Characters

__all__ = ["NOT_AT_HAND", "IndexReport", "IndexRequest", "LettersReport", "kept_counts", "letters_report", "report_of"]

#: Bad rows that a report holds.
_REPORTED_BAD_ROWS = 1000
#: Up to so many pieces, one process is done before others have started.
_PIECES_THAT_PAY = 8
_MEASURED_PIECES_THAT_PAY = 4

_LETTERS = "letters.json"

NOT_AT_HAND = "the texts of this source are at hand only when its samples are read"


def _show_nothing(done: int, total: int) -> None:
    """Do nothing: this is the progress of an indexing that shows none."""


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
        """Return the chain if samples go through it while indexing: all of them, or those that it may refuse.

        Return None if no transform has to be measured or may refuse, or if no sample is read while indexing.
        """
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
        """Return what of the request enters fingerprints: the source's name and settings, a size limit, and strings.

        A size limit of the default or 0, and later settings at their default, are left out: older indexes stay valid.
        """
        largest = self.largest_sample
        # The default is left out, so that indexes made before there was a limit keep their fingerprint.
        limit = () if largest in (LARGEST_SAMPLE, 0) else (f"largest_sample {largest}",)
        strings = (f"strings {sorted(self.spec.of_job.strings)}",) if self.spec.of_job.strings else ()
        return self.spec.name, str(sorted(settings_that_count(self.spec.settings).items())), *limit, *strings

    @property
    def rows_a_piece(self) -> int:
        """Return the number of rows of a piece: as requested, or the source's choice, smaller to measure lengths."""
        source = self.source
        own = min(source.piece_rows, source.measured_rows) if self.measured_chain else source.piece_rows
        return self.piece_rows or own

    def processes_for(self, pieces: float) -> int:
        """Return how many processes are worth starting for this many pieces: as requested, or one for each core.

        Return 1 for at most 8 pieces, or 4 if lengths are measured, unless the size of pieces was requested.
        """
        pays = _MEASURED_PIECES_THAT_PAY if self.measured_chain else _PIECES_THAT_PAY
        return (self.processes or os.cpu_count() or 1) if self.piece_rows or pieces > pays else 1

    def refuses(self, bad: Mapping[str, int], rows: int) -> bool:
        """Return whether data with these bad rows, counted by reason, of `rows` rows are refused.

        They are if they exceed `max_bad`, or if indexing is strict and there is any.
        """
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
class LettersReport:
    """The effect of a transform on the letters of an index's samples: its counts, or why there are none."""

    step: Characters
    counts: LetterCounts | None = None
    not_counted: str = ""
    #: Whether the counts were made just now, and are not kept yet.
    is_new: bool = False

    def keep(self, columns: Path) -> None:
        """Write new counts beside an index's columns; if that fails, they are made anew when needed.

        Do nothing if there are no counts, or if they were kept before.
        """
        if self.counts is None or not self.is_new:
            return
        kept: dict[str, Any] = {"alphabet": self.step.alphabet.characters, **asdict(self.counts)}
        # An index may be read-only, or on a full disk: the counts are only a cache.
        with contextlib.suppress(OSError), replacing(columns / _LETTERS) as file:
            file.write(json.dumps(kept).encode())

    def refuse_dropping(self, where: str) -> None:
        """Raise a DataError if the transform drops too many letters by the counts; without counts, do nothing."""
        if self.counts is not None:
            self.step.refuse_dropping(self.counts, where)


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
    """Return the report on the index of a folder, with its first `_REPORTED_BAD_ROWS` bad rows; no letters or rates.

    Raise an OSError if the list of bad rows cannot be read, and a ValueError or TypeError if it is damaged.
    """
    columns = folder / meta.folder
    return IndexReport(
        folder=folder,
        fingerprint=meta.fingerprint,
        samples=meta.samples,
        bad=first_bad_rows(columns, _REPORTED_BAD_ROWS),
        bad_counts=meta.bad,
        bad_path=columns / BAD_ROWS if meta.bad else None,
    )


def letters_report(chain: Chain, columns: Path, opened: Callable[[], Source] | None) -> LettersReport | None:
    """Return the effect of a chain on the letters of an index's samples; None if the chain drops none.

    Letters that were not counted for this alphabet before are counted now, in the source that `opened` gives. The
    report says why there are no counts if a user's transform comes first, or if `opened` is None or the source has no
    texts at hand. Errors of the source pass through.
    """
    found = counting_step(chain)
    if found is None:
        return None
    step, own = found
    if own:
        return LettersReport(step=step, not_counted=f"{own} comes before it and may change the texts")
    kept = kept_counts(columns, step.alphabet)
    if kept is not None:
        return LettersReport(step=step, counts=kept)
    blocks = opened().uncut.texts(step.key) if opened is not None else None
    if blocks is None:
        return LettersReport(step=step, not_counted=NOT_AT_HAND)
    counter = LetterCounter(step.alphabet)
    for block in blocks:
        counter.add(block)
    return LettersReport(step=step, counts=counter.counts(), is_new=True)


def kept_counts(columns: Path, alphabet: Alphabet) -> LetterCounts | None:
    """Return the counts kept beside an index's columns; None if there are none that can be read for this alphabet."""
    try:
        kept = json.loads((columns / _LETTERS).read_text("utf-8"))
        if kept.pop("alphabet") != alphabet.characters:
            return None
        commonest = tuple((str(letter), int(count)) for letter, count in kept.pop("commonest"))
        return LetterCounts(commonest=commonest, **kept)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
