"""Making an index: survey the source, probe its pieces in order with as many processes as pay, write columns, commit.

Rules: all or nothing, also at Ctrl-C; one indexer a folder; the output does not depend on the number of processes.
What the source gives is written as it is; no format is known here. A row that cannot be used is reported with its line
and left out, or refused when asked to be strict.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections import Counter, deque
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.index.columns import ColumnWriter, StringsWriter, mapped, open_strings
from loader_server.sources.index.commit import COLUMNS, commit, locked, sweep
from loader_server.sources.index.folder import FORMAT, Index, Meta, columns_fingerprint, open_index
from loader_server.sources.index.probe import Probed, ProbeOrder, Prober, begin_probing, probed, refuse_other_fields
from loader_server.sources.source import Indexed
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from loader_server.sources.source import BadRow, Inventory, Source
    from loader_server.sources.table import SourceSpec
    from loader_server.transforms.chain import Chain
    from shared.wire.layout import Field

__all__ = ["Index", "IndexReport", "IndexRequest", "make_index", "open_index"]

#: Fewer pieces than this are probed faster by one process than others start.
_PIECES_THAT_PAY = 8
#: A measured row costs as much as a thousand others.
_MEASURED_PIECE_ROWS = 16
_MEASURED_PIECES_THAT_PAY = 4
#: Pieces that wait for each process, so that none is idle and memory stays bounded.
_PIECES_AHEAD = 4
_SHOWN_BAD_ROWS = 10


def _unseen(done: int, total: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRequest:
    """What to index, and into which folder: `processes` 0 means one a core, `piece_rows` 0 as many as suit the source.

    `source` is there if one was made already, `chain` is needed only where it is measured; `progress` is called with
    rows done and rows in all.
    """

    folder: Path
    spec: SourceSpec
    source: Source | None = None
    chain: Chain | None = None
    processes: int = 0
    piece_rows: int = 0
    strict: bool = False
    progress: Callable[[int, int], None] = field(default=_unseen)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """What came of it."""

    folder: Path
    fingerprint: str
    samples: int
    rows: int
    bad: tuple[BadRow, ...]

    @property
    def bad_counts(self) -> dict[str, int]:
        """Bad rows by reason."""
        return _counts(self.bad)


def make_index(request: IndexRequest) -> IndexReport:
    """Make the index of a source in `request.folder`, replacing the one that is there."""
    source = request.source or request.spec.make()
    _refuse_measuring(request, source)
    with contextlib.closing(source), locked(request.folder):
        try:
            inventory = source.survey()
            made = Path(tempfile.mkdtemp(prefix=COLUMNS, dir=request.folder))
            writing = _Writing(made)
            try:
                _write_all(request, source, inventory, writing)
            finally:
                writing.close()
            _refuse_bad(request, inventory, writing)
            meta = _meta(request, source, inventory, writing)
            commit(request.folder, made, meta)
        finally:
            sweep(request.folder)
    return IndexReport(
        folder=request.folder,
        fingerprint=meta.fingerprint,
        samples=meta.samples,
        rows=inventory.total,
        bad=tuple(writing.bad),
    )


def _refuse_measuring(request: IndexRequest, source: Source) -> None:
    if _measuring(request) is not None and not source.measurable:
        raise DataError(
            expected="transforms that declare their outputs",
            got="one that has to be measured",
            where=f'source = "{request.spec.name}"',
            remedy="Declare it with @transform(…): no sample of this source is looked at while indexing.",
        )


# --- probing, in one process or several, in order ---


def _found(request: IndexRequest, source: Source, inventory: Inventory) -> Generator[Probed, None, None]:
    chain = _measuring(request)
    order = ProbeOrder(spec=request.spec, origin=inventory.origin, about=inventory.about, chain=chain)
    rows = request.piece_rows or (min(source.piece_rows, _MEASURED_PIECE_ROWS) if chain else source.piece_rows)
    pays = _MEASURED_PIECES_THAT_PAY if chain else _PIECES_THAT_PAY
    processes = request.processes or os.cpu_count() or 1
    if processes == 1 or (not request.piece_rows and inventory.total <= rows * pays):
        yield from map(Prober(order, source).probe, inventory.pieces(rows))
        return
    pool = ProcessPoolExecutor(processes, get_context("spawn"), begin_probing, (order,))
    try:
        yield from _in_order(pool, request, inventory.pieces(rows), processes * _PIECES_AHEAD)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_order(pool: ProcessPoolExecutor, request: IndexRequest, pieces: Iterator[Any], ahead: int) -> Iterator[Probed]:
    waiting: deque[Future[Probed]] = deque()
    done = 0
    for piece in pieces:
        with _interrupts_held():
            waiting.append(pool.submit(probed, piece))
        if len(waiting) > ahead:
            part = _result(request, waiting.popleft(), done)
            done += _rows_of(part)
            yield part
    while waiting:
        part = _result(request, waiting.popleft(), done)
        done += _rows_of(part)
        yield part


def _rows_of(part: Probed) -> int:
    return len(part.found.rows) + len(part.found.bad)


def _result(request: IndexRequest, future: Future[Probed], done: int) -> Probed:
    try:
        return future.result()
    except BrokenProcessPool:
        raise DataError(
            expected="every file to be readable or refused",
            got="one that ended the process which read it, or too little memory",
            where=f'source = "{request.spec.name}" below {request.spec.base}, row {done + 1} of all or soon after',
            remedy="Find and remove that file: index with processes = 1 and part of the rows.",
        ) from None


def _measuring(request: IndexRequest) -> Chain | None:
    return request.chain if request.chain is not None and request.chain.measured else None


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes that start meanwhile never see Ctrl-C, which reaches the whole group: this one alone decides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- writing ---


class _Writing:
    """The columns while they are written."""

    def __init__(self, made: Path) -> None:
        self.made = made
        self.samples = 0
        self.fields: tuple[Field, ...] = ()
        self.bad: list[BadRow] = []
        self.numbers: dict[str, ColumnWriter] = {}
        self.strings: dict[str, StringsWriter] = {}
        self.measured: dict[str, ColumnWriter] = {}

    def write(self, part: Probed) -> None:
        """Append what was found in one piece."""
        found = part.found
        self.bad.extend(found.bad.values())
        if not len(found.rows):
            return
        if not self.samples:
            self._begin(part)
        refuse_other_fields(self.fields, part.fields, part.where)
        for name, column in self.numbers.items():
            column.append(found.numbers[name])
        for name, strings in self.strings.items():
            strings.append(found.strings[name])
        for key, lengths in self.measured.items():
            lengths.append(part.measured[key])
        self.samples += len(found.rows)

    def _begin(self, part: Probed) -> None:
        """Every part has the columns of the first."""
        self.fields = part.fields
        padded = [field_.key for field_ in self.fields if field_.padded]
        self.numbers = {name: ColumnWriter(self.made / f"{name}.npy", "int64") for name in part.found.numbers}
        self.strings = {name: StringsWriter(self.made, name) for name in part.found.strings}
        self.measured = {key: ColumnWriter(self.made / f"measured_{n}.npy", "int64") for n, key in enumerate(padded)}

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """The source's own, once they are written."""
        return {name: mapped(self.made / f"{name}.npy").view(np.int64) for name in self.numbers}

    def indexed(self, inventory: Inventory, about: Mapping[str, Any]) -> Indexed:
        """What the source gets back later."""
        strings = {name: open_strings(self.made, name) for name in self.strings}
        return Indexed(
            samples=self.samples,
            numbers=self.columns(),
            strings=strings,
            origin=inventory.origin,
            about=about,
            place=self.made.parent,
        )

    def close(self) -> None:
        """Finish all files."""
        writers: tuple[ColumnWriter | StringsWriter, ...]
        writers = (*self.numbers.values(), *self.strings.values(), *self.measured.values())
        for writer in writers:
            writer.close()


def _write_all(request: IndexRequest, source: Source, inventory: Inventory, writing: _Writing) -> None:
    done = 0
    request.progress(done, inventory.total)
    with contextlib.closing(_found(request, source, inventory)) as found:
        for part in found:
            writing.write(part)
            done += _rows_of(part)
            request.progress(done, inventory.total)


def _refuse_bad(request: IndexRequest, inventory: Inventory, writing: _Writing) -> None:
    if writing.samples and not (request.strict and writing.bad):
        return
    counts = ", ".join(f"{count} {reason}" for reason, count in _counts(writing.bad).items()) or "no rows at all"
    shown = "; ".join(
        f"{row.where}, line {row.line}: {row.reason}: {row.detail}" for row in writing.bad[:_SHOWN_BAD_ROWS]
    )
    raise DataError(
        expected="only good rows, as --strict asks" if writing.samples else "at least one good row",
        got=f"{len(writing.bad)} bad of {inventory.total} ({counts})",
        where=", ".join(str(facts.get("path")) for facts in inventory.origin) or f'source = "{request.spec.name}"',
        remedy=f"The first: {shown}. Mend them{', or leave --strict out' if writing.samples else ''}.",
    )


def _counts(bad: Iterable[BadRow]) -> dict[str, int]:
    return dict(sorted(Counter(row.reason for row in bad).items()))


def _meta(request: IndexRequest, source: Source, inventory: Inventory, writing: _Writing) -> Meta:
    chain = _measuring(request)
    about = {**inventory.about, **source.conclude(writing.columns())}
    return Meta(
        format=FORMAT,
        source=request.spec.name,
        settings=asdict(request.spec.settings),
        origin=inventory.origin,
        folder=writing.made.name,
        samples=writing.samples,
        numbers=list(writing.numbers),
        strings=list(writing.strings),
        measured=list(writing.measured),
        fields=[asdict(field_) for field_ in (_with_time(source, writing, inventory, about, chain) if chain else ())],
        recipe=chain.recipe if chain else "",
        bad=_counts(writing.bad),
        fingerprint=columns_fingerprint(writing.made, _said(source, request, inventory, writing), source.local_columns),
        about=about,
    )


def _said(source: Source, request: IndexRequest, inventory: Inventory, writing: _Writing) -> str:
    """What the fingerprint hangs on besides the columns, in the words of format 1."""
    words = [str(FORMAT), request.spec.name, str(sorted(asdict(request.spec.settings).items()))]
    words += [str(tuple(fact) if isinstance(fact, list) else fact) for fact in inventory.about.values()]
    return " ".join([*words, str(list(writing.measured))] if source.measurable else words)


def _with_time(
    source: Source, writing: _Writing, inventory: Inventory, about: Mapping[str, Any], chain: Chain
) -> tuple[Field, ...]:
    """Measured fields; one whose lengths are what the declared transforms alone would give has their steps a second."""
    source.open(writing.indexed(inventory, about))
    assumed = chain.lengths(source.lengths)
    time = {field_.key: field_.per_second for field_ in chain.fields}
    fields = []
    for field_ in writing.fields:
        place = list(writing.measured).index(field_.key) if field_.padded else -1
        measured = writing.made / f"measured_{place}.npy"
        same = field_.key in assumed and np.array_equal(assumed[field_.key], mapped(measured))
        fields.append(replace(field_, per_second=time[field_.key] if same else None))
    return tuple(fields)
