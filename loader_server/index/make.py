"""Making an index: survey the source, probe its pieces in order with as many processes as pay, write columns, commit.

Rules: the index that is there stays until the new one replaces it; one indexer for each folder; the output does not
depend on the number of processes, nor on how often the work was interrupted or killed: finished work is kept for the
next try, as long as the data and everything that shapes the index stay the same (`_made_from`). Memory does not grow
with the number of rows, good or bad. What the source returns is written as it is; no format is known here. A row that
cannot be used is written down with its line and left out, or refused when asked to be strict.
"""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from loader_server.index.commit import commit, forget_refused, locked, sweep
from loader_server.index.draft import Draft, new_draft, resumed_draft
from loader_server.index.folder import FORMAT, Index, Meta, columns_fingerprint, open_index
from loader_server.index.letters import LettersReport, letters_report
from loader_server.index.pool import probe_in_order
from loader_server.index.probe import ProbeOrder
from loader_server.index.refusals import (
    is_refused,
    process_died,
    refuse_bad,
    refuse_measuring,
    refuse_too_many,
)
from loader_server.index.request import IndexReport, IndexRequest, report_of
from loader_server.installed import version_of
from loader_server.own_code import own_code
from loader_server.sources.largest import LARGEST_SAMPLE
from loader_server.sources.source import Indexed, Source
from shared.errors import DataError, StokerError
from shared.hashing import fingerprint
from shared.settings.values import settings_that_count
from shared.system.system_errors import OUT_OF_ROOM, system_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from loader_server.sources.source import Inventory
    from loader_server.transforms.chain import Chain
    from shared.wire.layout import Field

__all__ = ["Index", "IndexReport", "IndexRequest", "make_index", "open_index", "unchanged_index"]

#: Fewer pieces than this are probed faster by one process than others start.
_PIECES_THAT_PAY = 8
_MEASURED_PIECES_THAT_PAY = 4
#: Lengths that are compared at a time.
_BLOCK = 2**20


def make_index(request: IndexRequest) -> IndexReport:
    """Make the index of a source in `request.folder`, replacing the one that is there."""
    source = request.source or request.spec.make()
    refuse_measuring(request, source)
    with _noticing_no_room(request.folder), contextlib.closing(source), locked(request.folder):
        made_from = _made_from(request, source)
        inventory = source.survey()
        with _draft(request, source, made_from) as draft:
            _write_all(request, source, inventory, draft)
            refuse_bad(request, inventory, draft)
            letters = _count_letters(request, source, lambda: _indexed(source, inventory, draft), draft.folder)
            meta = _meta(request, source, inventory, draft)
            draft.remove_journal()
            commit(request.folder, draft.folder, meta)
    return replace(report_of(request.folder, meta), letters=letters)


@contextlib.contextmanager
def _noticing_no_room(folder: Path) -> Iterator[None]:
    """Raise a MachineError that names the index's folder where its files cannot grow."""
    try:
        yield
    except OSError as error:
        if error.errno not in OUT_OF_ROOM:
            raise
        raise system_error(error, f"index {folder}") from error


def unchanged_index(request: IndexRequest) -> IndexReport | None:
    """The present index, if making it anew would give the same; None if it would not, or if nobody can tell."""
    index = None
    with contextlib.suppress(DataError):
        present = open_index(request.folder)
        source = request.source or request.spec.make()
        same = present.meta.made_from and present.meta.made_from == _made_from(request, source)
        if same and not is_refused(request, present.meta.bad, report_of(request.folder, present.meta).rows):
            index = present
    if index is None:
        return None
    with contextlib.closing(source):
        letters = _count_letters(request, source, lambda: index.indexed, index.folder / index.meta.folder)
    return replace(report_of(request.folder, index.meta), unchanged=True, letters=letters)


def _count_letters(
    request: IndexRequest, source: Source, indexed: Callable[[], Indexed], columns: Path
) -> LettersReport | None:
    """Count what the chain does to letters, and refuse data that lose too many; the source is opened only if it has
    texts that were not counted before.
    """

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


def _made_from(request: IndexRequest, source: Source) -> str:
    """A fingerprint of all that an index is made from; empty if the source cannot tell whether its data have changed.

    Our own code is identified by its version, a user's by its source.
    """
    stamp = source.stamp()
    code = own_code(source.modules)
    if not stamp:
        return ""
    words = (version_of("stoker"), *_words_of(request), *sorted(source.content_columns))
    limit = str(request.spec.of_job.largest_indexed)
    return fingerprint(str(FORMAT), *words, limit, code.sources, _recipe(request, source), stamp)


@contextlib.contextmanager
def _draft(request: IndexRequest, source: Source, made_from: str) -> Iterator[Draft]:
    """The draft that a killed indexer left, or a new one; it is removed if the data are refused, and stays for the next
    try if we are interrupted.
    """
    rows, kept = _piece_rows(request, source), None
    found = resumed_draft(request.folder, made_from, rows) if made_from else None
    draft = found or new_draft(request.folder, made_from, rows)
    try:
        sweep(request.folder, keep=draft.folder)
        forget_refused(request.folder)
        yield draft
    except StokerError:
        raise
    except BaseException:
        if made_from and draft.journal.pieces:
            draft.keep()
            kept = draft.folder
        raise
    finally:
        draft.close()
        sweep(request.folder, keep=kept)


def _trying(request: IndexRequest, source: Source) -> Chain | None:
    """The chain, if samples are to be put through it while indexing: all of them, or those that it may refuse."""
    return request.chain if request.chain is not None and source.measurable and request.chain.index_recipe else None


def _recipe(request: IndexRequest, source: Source) -> str:
    chain = _trying(request, source)
    return chain.index_recipe if chain is not None else ""


# --- looking at all rows ---


def _piece_rows(request: IndexRequest, source: Source) -> int:
    own = min(source.piece_rows, source.measured_rows) if request.measuring else source.piece_rows
    return request.piece_rows or own


def _processes(request: IndexRequest, pieces: float) -> int:
    """How many processes are worth starting for this many pieces."""
    pays = _MEASURED_PIECES_THAT_PAY if request.measuring else _PIECES_THAT_PAY
    return (request.processes or os.cpu_count() or 1) if request.piece_rows or pieces > pays else 1


def _write_all(request: IndexRequest, source: Source, inventory: Inventory, draft: Draft) -> None:
    """Write all pieces from where the draft ends, making them durable now and then."""
    order = ProbeOrder(
        spec=request.spec, origin=inventory.origin, about=inventory.about, chain=_trying(request, source)
    )
    rows = draft.journal.piece_rows
    pieces = islice(inventory.pieces(rows), draft.journal.pieces, None)
    processes = _processes(request, (inventory.total - draft.journal.rows) / rows)
    kept_s = time.monotonic()
    request.progress(_done(draft, inventory), inventory.total)
    try:
        with contextlib.closing(probe_in_order(order, source, pieces, processes)) as found:
            for part in found:
                draft.write(part)
                refuse_too_many(request, inventory, draft)
                if draft.journal.made_from and time.monotonic() - kept_s >= request.keep_s:
                    draft.keep()
                    kept_s = time.monotonic()
                request.progress(_done(draft, inventory), inventory.total)
    except BrokenProcessPool:
        raise process_died(request, draft.journal.rows) from None


def _done(draft: Draft, inventory: Inventory) -> int:
    return draft.journal.pieces if inventory.rows_unknown else draft.journal.rows


# --- what the index says of itself ---


def _meta(request: IndexRequest, source: Source, inventory: Inventory, draft: Draft) -> Meta:
    draft.close()
    chain = request.measuring
    indexed = _indexed(source, inventory, draft)
    journal = draft.journal
    return Meta(
        format=FORMAT,
        source=request.spec.name,
        settings=settings_that_count(request.spec.settings),
        origin=inventory.origin,
        folder=draft.folder.name,
        samples=journal.samples,
        numbers=list(journal.numbers),
        strings=list(journal.ends),
        measured=journal.measured,
        fields=[asdict(field_) for field_ in (_with_time(source, draft, indexed, chain) if chain else ())],
        recipe=_recipe(request, source),
        bad=dict(journal.bad),
        fingerprint=columns_fingerprint(
            draft.folder, _said(source, request, inventory, draft), source.local_columns | source.content_columns
        ),
        about=dict(indexed.about),
        made_from=journal.made_from,
        largest_sample=request.spec.of_job.largest_indexed,
    )


def _words_of(request: IndexRequest) -> tuple[str, ...]:
    largest = request.spec.of_job.largest_indexed
    limit = () if largest in (LARGEST_SAMPLE, 0) else (f"largest_sample {largest}",)
    return request.spec.name, str(sorted(settings_that_count(request.spec.settings).items())), *limit


def _said(source: Source, request: IndexRequest, inventory: Inventory, draft: Draft) -> str:
    """What the fingerprint depends on besides the columns, in the form of format 1."""
    words = [str(FORMAT), *_words_of(request)]
    words += [str(tuple(fact) if isinstance(fact, list) else fact) for fact in inventory.about.values()]
    return " ".join([*words, str(draft.journal.measured)] if source.measurable else words)


def _indexed(source: Source, inventory: Inventory, draft: Draft) -> Indexed:
    """What the index knows, once all is written."""
    draft.close()
    return Indexed(
        samples=draft.journal.samples,
        numbers=draft.numbers(),
        strings=draft.strings(),
        origin=inventory.origin,
        about={**inventory.about, **source.conclude(draft.numbers())},
        place=draft.folder.parent,
    )


def _with_time(source: Source, draft: Draft, indexed: Indexed, chain: Chain) -> tuple[Field, ...]:
    """Measured fields; those with the lengths that the declared transforms alone would give get steps a second."""
    source.open(indexed)
    time_of = {field_.key: field_.per_second for field_ in chain.fields}
    same = _as_declared(source, draft, chain)
    return tuple(replace(one, per_second=time_of[one.key] if one.key in same else None) for one in draft.journal.fields)


def _as_declared(source: Source, draft: Draft, chain: Chain) -> set[str]:
    """The keys whose measured lengths are the ones that the declared transforms alone would give."""
    measured = {key: draft.measured(key) for key in draft.journal.measured}
    same, raw = set(measured), source.lengths
    for start in range(0, draft.journal.samples, _BLOCK):
        block = slice(start, start + _BLOCK)
        assumed = chain.lengths({key: lengths[block] for key, lengths in raw.items()})
        same &= {key for key in same if key in assumed and np.array_equal(assumed[key], measured[key][block])}
    return same
