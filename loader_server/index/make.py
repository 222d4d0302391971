"""Making an index: survey the source, probe its pieces in order with as many processes as pay, write columns, commit.

Rules: the present index stays until the new one replaces it; one indexer for each folder; the output does not depend on
the number of processes, nor on how often the work was interrupted or killed: finished work is kept for the next try, as
long as the data and everything that shapes the index stay the same (`_made_from`). Memory does not grow with the number
of rows, good or bad. What the source returns is written as it is; no format is known here. A row that cannot be used is
written down with its line and left out, or refused if indexing is strict.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from loader_server.index.column_files import shown_bad_rows
from loader_server.index.draft import Draft, locked, open_draft
from loader_server.index.folder import FORMAT, Index, Meta, columns_fingerprint, open_index
from loader_server.index.probe import probe_in_order
from loader_server.index.request import IndexReport, IndexRequest, LettersReport, letters_report, report_of
from loader_server.installed import version_of
from loader_server.own_code import own_code
from loader_server.sources.source import Indexed, Source
from shared.bad_limit import counted_reasons
from shared.errors import DataError
from shared.hashing import fingerprint
from shared.settings.parsers import settings_that_count
from shared.system.system_errors import OUT_OF_ROOM, system_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from loader_server.sources.source import Inventory
    from loader_server.transforms.chain import Chain
    from shared.wire.batch_layout import Field

__all__ = ["Index", "IndexReport", "IndexRequest", "make_index", "open_index", "unchanged_index"]

#: Lengths that are compared at a time.
_BLOCK = 2**20


def make_index(request: IndexRequest) -> IndexReport:
    """Make the index of a source, replacing the present one, and return the report on it.

    Raise a DataError if the data are refused, lengths have to be measured and no sample can be read, a process died, or
    another indexer is at work in the folder; raise a MachineError if the disk is full or the machine failed, and a
    SettingsError if a transform lacks a length. Other errors of the source, the chain, `own_code` and the disk pass.
    """
    request.refuse_measuring()
    with _noticing_no_room(request.folder), contextlib.closing(request.source), locked(request.folder):
        made_from = _made_from(request)
        request.source.files.index_folder = request.folder
        inventory = request.source.survey()
        with open_draft(request.folder, made_from, request.rows_a_piece) as draft:
            indexer = _Indexer(request, inventory, draft)
            indexer.write_all()
            # Before the commit: data that lose too many letters are refused, and the present index stays.
            letters = _count_letters(request, indexer.indexed, draft.folder)
            meta = indexer.meta()
            draft.commit(meta)
    return replace(report_of(request.folder, meta), letters=letters)


@contextlib.contextmanager
def _noticing_no_room(folder: Path) -> Iterator[None]:
    """Raise a MachineError that names the index's folder in place of an OSError for lack of room; pass others on."""
    try:
        yield
    except OSError as error:
        if error.errno not in OUT_OF_ROOM:
            raise
        raise system_error(error, f"index {folder}") from error


def unchanged_index(request: IndexRequest) -> IndexReport | None:
    """Return the report on the present index if a new one would be the same; None if not, or if that is unknown.

    Return None also if there is no whole index, or if the data would be refused for their bad rows now. Raise a
    DataError if the data lose too many letters; other errors of the source, `own_code` and reading the report pass.
    """
    try:
        index = open_index(request.folder)
        is_same = index.meta.made_from and index.meta.made_from == _made_from(request)
    except DataError:  # no index, a damaged one, or data that are gone: making a new one will say so
        return None
    report = report_of(request.folder, index.meta)
    # A stricter limit on bad rows may refuse what an earlier one let pass.
    if not is_same or request.refuses(index.meta.bad, report.rows):
        return None
    with contextlib.closing(request.source):
        letters = _count_letters(request, lambda: index.indexed, index.folder / index.meta.folder)
    return replace(report, unchanged=True, letters=letters)


def _count_letters(request: IndexRequest, indexed: Callable[[], Indexed], columns: Path) -> LettersReport | None:
    """Return what the chain does to letters, or None if it drops none; raise a DataError if the data lose too many.

    The source is opened only if it has texts not counted before; its errors pass. New counts are kept in `columns`.
    """
    source = request.source

    def opened() -> Source:
        source.open(indexed())
        return source

    if request.chain is None:
        return None
    report = letters_report(request.chain, columns, None if type(source).texts is Source.texts else opened)
    if report is not None:
        report.keep(columns)
        report.refuse_dropping(request.spec.where)
    return report


def _made_from(request: IndexRequest) -> str:
    """Return a fingerprint of everything that an index is made from; "" if changes of the data would go unnoticed.

    Our own code is identified by its version, a user's by its source. Errors of the source, such as a DataError for
    data that are gone, and of `own_code` are passed on.
    """
    source = request.source
    stamp = source.stamp()
    code = own_code(source.modules)
    if not stamp:
        return ""
    words = (
        version_of("stoker"),
        *request.words,
        *sorted(source.content_columns),
        str(request.largest_sample),
    )
    return fingerprint(str(FORMAT), *words, code.sources, request.recipe, stamp)


@dataclass(frozen=True, slots=True)
class _Indexer:
    """The making of one index: the request, the inventory, and the draft."""

    request: IndexRequest
    inventory: Inventory
    draft: Draft

    # --- looking at all rows ---

    def write_all(self) -> None:
        """Write all pieces from where the draft ends, and make them durable every `keep_s`.

        Raise a DataError if too many rows are bad, none is good, indexing is strict and a row is bad, fields differ
        between samples, or a process died. Errors of probing and of the disk are passed on. Nothing is made durable on
        the way if changes of the data would go unnoticed.
        """
        request, draft, total = self.request, self.draft, self.inventory.total
        rows = draft.journal.piece_rows
        # Pieces that an earlier try finished are skipped. They are the same ones: the draft was resumed only because
        # the data's stamp and the size of pieces are equal.
        pieces = islice(self.inventory.pieces(rows), draft.journal.pieces, None)
        processes = request.processes_for((total - draft.journal.rows) / rows)
        kept_s = time.monotonic()
        request.progress(self._done, total)
        try:
            with contextlib.closing(probe_in_order(request, self.inventory, pieces, processes)) as found:
                for part in found:
                    draft.write(part)
                    # After each piece: data with far too many bad rows are refused without reading all of them.
                    self._refuse_too_many()
                    # Each time costs a sync of every column, so not after each piece.
                    if draft.journal.made_from and time.monotonic() - kept_s >= request.keep_s:
                        draft.keep()
                        kept_s = time.monotonic()
                    request.progress(self._done, total)
        except BrokenProcessPool:
            raise self._process_died() from None
        self._refuse_bad()

    @property
    def _done(self) -> int:
        """Return how much is done, in the unit of the inventory's total: rows, or pieces if rows are unknown."""
        return self.draft.journal.pieces if self.inventory.rows_unknown else self.draft.journal.rows

    # --- why no index is made ---

    def _refuse_too_many(self) -> None:
        """Raise a DataError if more rows are bad by now than `max_bad` allows of all, or what `_too_bad` raises."""
        limit = self.request.max_bad
        if limit.is_exceeded(sum(self.draft.journal.bad.values()), self.inventory.total):
            raise self._too_bad(
                f"at most {limit} of the rows to be bad (max_bad)", "mend them, or raise max_bad in [job]"
            )

    def _refuse_bad(self) -> None:
        """Raise a DataError if no row is good, or indexing is strict and one is bad; or what `_too_bad` raises."""
        if not self.draft.journal.samples:
            raise self._too_bad("at least one good row", "mend them")
        if self.request.strict and self.draft.journal.bad:
            raise self._too_bad("only good rows, as --strict asks", "mend them, or leave --strict out")

    def _too_bad(self, expected: str, remedy: str) -> DataError:
        """Return the error for refused data, with counts by reason, the first bad rows, and the file that lists all.

        Raise an OSError if the list of bad rows cannot be written, read or moved. Other errors of `shown_bad_rows` pass
        through.
        """
        draft, inventory = self.draft, self.inventory
        draft.close()  # which writes out the bad rows that are shown below
        bad, rows = draft.journal.bad, draft.journal.rows
        of_all = "" if inventory.rows_unknown else f" of {inventory.total}"  # else it is the total of pieces
        among = f"{rows}" if self._done == inventory.total else f"the first {rows} rows{of_all}"
        counts = counted_reasons(bad) if bad else "no rows at all"
        shown = shown_bad_rows(draft.folder)  # before the file is moved
        listed = f"All are in {draft.keep_bad_rows()}: {remedy}" if bad else "Name other data"
        return DataError(
            expected=expected,
            got=f"{sum(bad.values())} bad of {among} ({counts})",
            where=", ".join(str(facts.get("path")) for facts in inventory.origin) or self._source,
            remedy=f"The first: {shown}. {listed}." if bad else f"{listed}.",
        )

    def _process_died(self) -> DataError:
        """Return the error for a process that died while it probed rows."""
        # Pieces come back in order, so the row is the first one that has not; several processes read beyond it.
        row = self.draft.journal.rows + 1
        return DataError(
            expected="every file to be readable or refused",
            got="one that ended the process which read it, or too little memory",
            where=f"{self._source} below {self.request.spec.base}, row {row} of all or soon after",
            remedy="Find and remove that file: index with processes = 1 and part of the rows.",
        )

    @property
    def _source(self) -> str:
        return f'source = "{self.request.spec.name}"'

    # --- what the index says of itself, once all is written ---

    def indexed(self) -> Indexed:
        """Return what the index knows, for opening the source; this closes the draft's files.

        Raise an OSError if the disk is full, or fails; errors of the source pass through.
        """
        draft, inventory = self.draft, self.inventory
        draft.close()
        return Indexed(
            samples=draft.journal.samples,
            numbers=draft.numbers(),
            strings=draft.strings(),
            origin=inventory.origin,
            about={**inventory.about, **self.request.source.conclude(draft.numbers())},
            place=self.request.folder,
        )

    def meta(self) -> Meta:
        """Return the content of `meta.json` for the finished draft, whose files this closes.

        Raise a SettingsError if a transform lacks a length that it needs, and an OSError if the disk is full, or
        fails; errors of the source and other errors of `Chain.lengths` pass through.
        """
        request, source, journal = self.request, self.request.source, self.draft.journal
        indexed, chain = self.indexed(), self.request.measured_chain
        return Meta(
            format=FORMAT,
            source=request.spec.name,
            settings=settings_that_count(request.spec.settings),
            origin=self.inventory.origin,
            folder=self.draft.folder.name,
            samples=journal.samples,
            numbers=list(journal.numbers),
            strings=list(journal.ends),
            measured=journal.measured,
            fields=[asdict(field_) for field_ in (self._with_time(indexed, chain) if chain else ())],
            recipe=request.recipe,
            bad=dict(journal.bad),
            fingerprint=columns_fingerprint(
                self.draft.folder, self._words(), source.local_columns | source.content_columns
            ),
            about=dict(indexed.about),
            made_from=journal.made_from,
            largest_sample=request.largest_sample,
        )

    def _words(self) -> str:
        """Return what the fingerprint depends on besides the columns, in the form of format 1.

        That is the format, the request's words, the source's facts and, if its samples can be measured, measured keys.
        """
        words = [str(FORMAT), *self.request.words]
        words += [str(tuple(fact) if isinstance(fact, list) else fact) for fact in self.inventory.about.values()]
        return " ".join([*words, str(self.draft.journal.measured)] if self.request.source.measurable else words)

    def _with_time(self, indexed: Indexed, chain: Chain) -> tuple[Field, ...]:
        """Return the measured fields; those as long as the declared transforms would make them get steps per second.

        Raise a SettingsError if a transform lacks a length that it needs. Errors of the source's `open` and other
        errors of `_as_declared` pass through.
        """
        self.request.source.open(indexed)
        time_of = {field_.key: field_.per_second for field_ in chain.fields}
        same = self._as_declared(chain)
        return tuple(
            replace(field_, per_second=time_of[field_.key] if field_.key in same else None)
            for field_ in self.draft.journal.fields
        )

    def _as_declared(self, chain: Chain) -> set[str]:
        """Return the keys whose measured lengths are those that the declared transforms alone would give.

        Errors of `Chain.lengths`, such as a SettingsError for a missing length, and of `Draft.measured` pass through.
        """
        measured = {key: self.draft.measured(key) for key in self.draft.journal.measured}
        same, raw = set(measured), self.request.source.lengths
        for start in range(0, self.draft.journal.samples, _BLOCK):
            block = slice(start, start + _BLOCK)
            assumed = chain.lengths({key: lengths[block] for key, lengths in raw.items()})
            same &= {key for key in same if key in assumed and np.array_equal(assumed[key], measured[key][block])}
        return same
