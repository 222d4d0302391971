"""Making an index: survey the source, probe its rows in order with as many processes as pay, write columns, commit.

Rules: all or nothing, also at Ctrl-C; one indexer a folder; what comes out does not hang on the number of processes.
A row that cannot be used is reported with its line and left out, or refused when asked to be strict.
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

from loader_server.sources.index.columns import ColumnWriter, StringsWriter, mapped
from loader_server.sources.index.commit import COLUMNS, commit, locked, sweep
from loader_server.sources.index.computed import computed_columns
from loader_server.sources.index.folder import FORMAT, Index, Meta, columns_fingerprint, open_index
from loader_server.sources.index.probe import Chunk, Probed, probed, refuse_other_fields
from loader_server.sources.source import SOURCES
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from loader_server.sources.rows import BadRow
    from loader_server.sources.source import Survey
    from loader_server.transforms.chain import Chain
    from shared.wire.layout import Field

__all__ = ["Index", "IndexReport", "IndexRequest", "make_index", "open_index"]

#: Fewer rows than this are probed faster by one process than others start.
_ROWS_THAT_PAY = 2000
_CHUNK_ROWS = 256
#: A measured row costs as much as a thousand headers.
_MEASURED_CHUNK_ROWS = 16
#: Chunks that wait for each process, so that none is idle and memory stays bounded.
_CHUNKS_AHEAD = 4
_SHOWN_BAD_ROWS = 10


def _unseen(done: int, total: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRequest:
    """What to index: `base` is the folder that relative paths of the settings start from, `processes` 0 means one a
    core.

    `chain` is needed only where it is measured; `progress` is called with rows done and rows in all.
    """

    folder: Path
    settings: Any
    base: Path
    source: str = "manifest"
    chain: Chain | None = None
    processes: int = 0
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
    kind = SOURCES[request.source]
    with locked(request.folder):
        try:
            survey = kind.survey(request.settings, request.base) if kind.survey is not None else None
            made = Path(tempfile.mkdtemp(prefix=COLUMNS, dir=request.folder))
            meta, bad = _surveyed(request, survey, made) if survey is not None else (_computed(request, made), [])
            commit(request.folder, made, meta)
        finally:
            sweep(request.folder)
    return IndexReport(
        folder=request.folder,
        fingerprint=meta.fingerprint,
        samples=meta.samples,
        rows=survey.total if survey is not None else meta.samples,
        bad=tuple(bad),
    )


def _surveyed(request: IndexRequest, survey: Survey, made: Path) -> tuple[Meta, list[BadRow]]:
    """Write what probing every row finds."""
    writing = _Writing(survey, made)
    try:
        _write_all(request, survey, writing)
    finally:
        writing.close()
    _refuse_bad(request, survey, writing)
    return _meta(request, survey, made, writing), writing.bad


def _computed(request: IndexRequest, made: Path) -> Meta:
    """Write what the source knows without looking."""
    if _measuring(request) is not None:
        raise DataError(
            expected="transforms that declare their outputs",
            got="one that has to be measured",
            where=f'source = "{request.source}"',
            remedy="Declare it with @transform(…): no sample of this source is looked at while indexing.",
        )
    return computed_columns(request.source, request.settings, made, request.progress)


# --- probing, in one process or several, in order ---


def _found(request: IndexRequest, survey: Survey) -> Generator[Probed, None, None]:
    chain = _measuring(request)
    processes = request.processes or os.cpu_count() or 1
    chunks = survey.chunks(_MEASURED_CHUNK_ROWS if chain else _CHUNK_ROWS)
    if processes == 1 or survey.total <= (_MEASURED_CHUNK_ROWS * 4 if chain else _ROWS_THAT_PAY):
        yield from (probed(chunk, chain) for chunk in chunks)
        return
    pool = ProcessPoolExecutor(processes, get_context("spawn"))
    try:
        yield from _in_order(pool, chunks, chain, processes * _CHUNKS_AHEAD)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_order(pool: ProcessPoolExecutor, chunks: Iterator[Chunk], chain: Chain | None, ahead: int) -> Iterator[Probed]:
    waiting: deque[tuple[Chunk, Future[Probed]]] = deque()
    for chunk in chunks:
        with _interrupts_held():
            waiting.append((chunk, pool.submit(probed, chunk, chain)))
        if len(waiting) > ahead:
            yield _result(*waiting.popleft())
    while waiting:
        yield _result(*waiting.popleft())


def _result(chunk: Chunk, future: Future[Probed]) -> Probed:
    try:
        return future.result()
    except BrokenProcessPool:
        raise DataError(
            expected="every file to be readable or refused",
            got="one that ended the process which read it, or too little memory",
            where=f"{', '.join(chunk.manifests)}, row {chunk.start + 1} of all or soon after",
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

    def __init__(self, survey: Survey, made: Path) -> None:
        self.samples = 0
        self.rates: set[int] = set()
        self.fields: tuple[Field, ...] = ()
        self.bad: list[BadRow] = []
        self._made = made
        self._others = survey.others
        names = ("manifest", "line", "bytes", "mtime_ns", "frames", "rate")
        text = ("characters",) if survey.has_text else ()
        self.numbers = {name: ColumnWriter(made / f"{name}.npy", "int64") for name in (*names, *text)}
        strings = ("path", *(("text",) if survey.has_text else ()), *(f"column_{n}" for n in range(len(survey.others))))
        self.strings = {name: StringsWriter(made, name) for name in strings}
        self.measured: dict[str, ColumnWriter] = {}

    def write(self, part: Probed) -> None:
        """Append what was found in one chunk."""
        self.bad.extend(part.bad)
        if not part.good:
            return
        self._write_measured(part)
        numbers = {
            **part.numbers,
            "manifest": [row.manifest for row in part.good],
            "line": [row.line for row in part.good],
            "characters": [len(row.text) for row in part.good],
        }
        for name, writer in self.numbers.items():
            writer.append(numbers[name])
        self.strings["path"].append(row.path for row in part.good)
        if "text" in self.strings:
            self.strings["text"].append(row.text for row in part.good)
        for place in range(len(self._others)):
            self.strings[f"column_{place}"].append(row.others[place] for row in part.good)
        self.samples += len(part.good)
        self.rates.update(part.numbers["rate"])

    def _write_measured(self, part: Probed) -> None:
        if not self.fields:
            self.fields = tuple(part.fields)
            padded = [field_.key for field_ in self.fields if field_.padded]
            self.measured = {
                key: ColumnWriter(self._made / f"measured_{n}.npy", "int64") for n, key in enumerate(padded)
            }
        refuse_other_fields(self.fields, tuple(part.fields), part.good[0].path)
        for key, writer in self.measured.items():
            writer.append(part.measured[key])

    def close(self) -> None:
        """Finish all files."""
        writers: tuple[ColumnWriter | StringsWriter, ...]
        writers = (*self.numbers.values(), *self.strings.values(), *self.measured.values())
        for writer in writers:
            writer.close()


def _write_all(request: IndexRequest, survey: Survey, writing: _Writing) -> None:
    done = 0
    request.progress(done, survey.total)
    with contextlib.closing(_found(request, survey)) as found:
        for part in found:
            writing.write(part)
            done += part.rows
            request.progress(done, survey.total)


def _refuse_bad(request: IndexRequest, survey: Survey, writing: _Writing) -> None:
    if writing.samples and not (request.strict and writing.bad):
        return
    counts = ", ".join(f"{count} {reason}" for reason, count in _counts(writing.bad).items()) or "no rows at all"
    shown = "; ".join(
        f"{row.manifest}, line {row.line}: {row.reason}: {row.detail}" for row in writing.bad[:_SHOWN_BAD_ROWS]
    )
    raise DataError(
        expected="only good rows, as --strict asks" if writing.samples else "at least one good row",
        got=f"{len(writing.bad)} bad of {survey.total} ({counts})",
        where=", ".join(str(facts["path"]) for facts in survey.origin),
        remedy=f"The first: {shown}. Mend them{', or leave --strict out' if writing.samples else ''}.",
    )


def _counts(bad: Iterable[BadRow]) -> dict[str, int]:
    return dict(sorted(Counter(row.reason for row in bad).items()))


def _meta(request: IndexRequest, survey: Survey, made: Path, writing: _Writing) -> Meta:
    chain = _measuring(request)
    measured = list(writing.measured)
    settings = asdict(request.settings)
    return Meta(
        format=FORMAT,
        source=request.source,
        settings=settings,
        origin=survey.origin,
        folder=made.name,
        samples=writing.samples,
        numbers=list(writing.numbers),
        strings=list(writing.strings),
        others=list(survey.others),
        measured=measured,
        fields=[asdict(field_) for field_ in _with_time(writing, chain, made)],
        recipe=chain.recipe if chain else "",
        rate=writing.rates.pop() if len(writing.rates) == 1 else 0,
        bad=_counts(writing.bad),
        fingerprint=columns_fingerprint(
            made, f"{FORMAT} {request.source} {sorted(settings.items())} {survey.others} {measured}"
        ),
    )


def _with_time(writing: _Writing, chain: Chain | None, made: Path) -> tuple[Field, ...]:
    """Measured fields; one whose lengths are what the declared transforms alone would give has their steps a second."""
    if chain is None:
        return writing.fields
    columns = {name: mapped(made / f"{name}.npy").view(np.int64) for name in writing.numbers}
    raw = {
        "audio": columns["frames"],
        "audio_rate": columns["rate"],
        "text": columns.get("characters", columns["frames"]),
    }
    assumed = chain.lengths(raw)
    time = {field_.key: field_.per_second for field_ in chain.fields}
    fields = []
    for field_ in writing.fields:
        place = list(writing.measured).index(field_.key) if field_.padded else -1
        same = field_.key in assumed and np.array_equal(assumed[field_.key], mapped(made / f"measured_{place}.npy"))
        fields.append(replace(field_, per_second=time[field_.key] if same else None))
    return tuple(fields)
