"""The rules that every source has to keep, as checks that anybody can run on their own source.

Rules: a check is a function whose docstring is its title; it says what it expected and what it got, with the sample's
number. One that fails does not keep others from being tried.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import random
import re
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.conformance.case import (
    ExaminedSource,
    NotTried,
    SourceCase,
    Violation,
    content_of,
    contents_elsewhere,
    read_all,
    require,
)
from loader_server.index.folder import open_index
from loader_server.sources.batch_columns import Ragged
from loader_server.sources.chunks.settings import rate_keys
from loader_server.sources.source import Chunk
from shared.errors import DataError, SettingsError, StokerError
from shared.settings.tables import read_table
from shared.wire.batch_layout import BucketShape, fields_of_batch, layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loader_server.sources.batch_columns import Column

__all__ = ["CHECKS", "CheckResult", "check_source"]

_THREADS = 4
_REASON = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of a check: `passed` is None if it could not be tried; `said` is the reason, or what went wrong."""

    name: str
    passed: bool | None
    said: str = ""

    def __str__(self) -> str:
        word = {True: "ok", False: "FAILED", None: "not tried"}[self.passed]
        return f"{word:>9}  {self.name}" + (f": {self.said}" if self.said else "")


def check_source(
    case: SourceCase, folder: Path, checks: Sequence[Callable[[ExaminedSource], None]] | None = None
) -> list[CheckResult]:
    """Return the results of these checks, or of all, with indexes in `folder`; each is tried whatever others find."""
    examined = ExaminedSource(case, folder)
    return [_result(check, examined) for check in checks or CHECKS]


def _result(check: Callable[[ExaminedSource], None], examined: ExaminedSource) -> CheckResult:
    name = " ".join((check.__doc__ or "").split()).rstrip(".")
    try:
        check(examined)
    except NotTried as why:
        return CheckResult(name=name, passed=None, said=str(why))
    except Violation as violation:
        return CheckResult(name=name, passed=False, said=str(violation))
    except Exception as error:  # the source is a user's: what it raises is the result
        return CheckResult(name=name, passed=False, said=f"{type(error).__name__}: {error}")
    return CheckResult(name=name, passed=True)


# --- the index ---


def _same_index(examined: ExaminedSource) -> None:
    """The index is the same with 1 process and with 3, and however large the pieces are."""
    first, place = examined.indexed(1, 0)
    for processes, rows in ((1, 1), (1, 3), (3, 2)):
        report, other = examined.indexed(processes, rows)
        how = f"with {processes} processes and pieces of {rows} rows"
        require(report.fingerprint == first.fingerprint, f"another fingerprint {how}")
        require((report.rows, report.bad) == (first.rows, first.bad), f"other rows, or other bad ones, {how}")
        require(_columns(place) == _columns(other), f"other columns {how}")


def _columns(index: Path) -> dict[str, bytes]:
    columns = index / open_index(index).meta.folder
    return {path.name: path.read_bytes() for path in sorted(columns.iterdir())}


def _rows_count(examined: ExaminedSource) -> None:
    """Every row is a sample or a bad row, and there are as many as the survey says."""
    report, _ = examined.indexed(1, 0)
    total = examined.case.spec.make().survey().total
    require(total == report.rows, f"the survey says {total} rows, the pieces have {report.rows}")


def _plain_facts(examined: ExaminedSource) -> None:
    """What the survey says may be written as JSON, and a process gets settings and pieces."""
    inventory = examined.case.spec.make().survey()
    for facts in (inventory.origin, inventory.about):
        require(json.loads(json.dumps(facts)) == facts, f"{facts!r} is not what JSON gives back")


def _lengths(examined: ExaminedSource) -> None:
    """Lengths in the index are those of the decoded samples."""
    lengths = examined.source.lengths
    for sample, values in examined.decoded.items():
        for key, column in lengths.items():
            require(key in values, f'sample {sample} has no "{key}", of which the index has a length')
            got = _length_of(values[key])
            require(got == column[sample], f'sample {sample}: "{key}" is {column[sample]} in the index, {got} decoded')


def _length_of(value: Any) -> int:
    """Return the steps of an array or the characters of a text; a number stands for itself."""
    return int(value) if np.ndim(value) == 0 and not isinstance(value, str | bytes) else len(value)


def _padded_have_lengths(examined: ExaminedSource) -> None:
    """Every padded field has its length in the index."""
    for one in examined.source.fields:
        require(not one.padded or one.key in examined.source.lengths, f'the index has no length of "{one.key}"')


def _bad_rows(examined: ExaminedSource) -> None:
    """Bad rows are named with their place and the reason."""
    report, _ = examined.indexed(1, 0)
    for row in report.bad:
        require(row.where and row.line >= 0 and row.detail, f"{row} lacks a place or a detail")
        require(_REASON.fullmatch(row.reason), f"the reason {row.reason!r} is no word in small letters")
    expected = examined.case.bad
    if expected is None and not report.bad:
        raise NotTried("these data have no bad row")
    require(expected in (None, report.bad_counts), f"expected the bad rows {expected}, got {report.bad_counts}")


def _unknown_setting(examined: ExaminedSource) -> None:
    """An unknown setting is refused, and the nearest named."""
    kind = type(examined.case.spec.settings)
    names = [one.name for one in fields(kind) if len(one.name) > 3]
    if not names:
        raise NotTried("it has no setting with a name that could be mistyped")
    wrong = names[0][:-1]
    try:
        read_table(kind, {wrong: 1}, "a check")
    except SettingsError as error:
        require(names[0] in str(error), f'"{wrong}" is refused, but "{names[0]}" not named: {error}')
    else:
        raise Violation(f'"{wrong}" is accepted as a setting')


# --- samples ---


def _fields(examined: ExaminedSource) -> None:
    """Every decoded sample has the dtypes and shapes that the fields say."""
    for sample, values in examined.decoded.items():
        for one in examined.source.fields:
            value = values.get(one.key)
            require(isinstance(value, np.ndarray | np.generic), f'sample {sample} has no array "{one.key}"')
            got = np.asarray(value)
            fits = len(one.shape) == got.ndim and all(
                axis in (None, n) for axis, n in zip(one.shape, got.shape, strict=True)
            )
            said = (
                f'sample {sample}: "{one.key}" is {got.dtype} {list(got.shape)}, the field says {one.dtype} {one.shape}'
            )
            require(fits and got.dtype == one.dtype, said)


def _any_order(examined: ExaminedSource) -> None:
    """Samples may be read in any order."""
    mixed = random.Random(0).sample(examined.numbers, len(examined.numbers))  # noqa: S311 - any order will do
    for sample, raw in zip(mixed, read_all(examined.source, mixed), strict=True):
        require(raw == examined.raw[sample], f"sample {sample} has other bytes when it is read after others")


def _many_at_once(examined: ExaminedSource) -> None:
    """Reading many samples at once gives what reading one at a time gives, and no sample may be none."""
    require(read_all(examined.source, []) == [], "read([]) gives something")
    # Some samples twice, as a mixture may repeat them.
    twice = [*examined.numbers, *examined.numbers[:3]]
    for sample, raw in zip(twice, read_all(examined.source, twice), strict=True):
        require(raw == examined.raw[sample], f"sample {sample} has other bytes when it is read with others")


def _from_threads(examined: ExaminedSource) -> None:
    """Several threads may read at the same time."""
    wrong: list[str] = []
    # All threads begin at once, or the first might be done before the last starts.
    start = threading.Barrier(_THREADS)

    def read(seed: int) -> None:
        mixed = random.Random(seed).sample(examined.numbers, len(examined.numbers))  # noqa: S311 - any order will do
        start.wait()
        try:
            raw = read_all(examined.source, mixed)
            wrong.extend(f"sample {n} has other bytes" for n, one in zip(mixed, raw, strict=True) if one != alone[n])
        except Exception as error:  # the source is a user's: what it raises is the result
            wrong.append(f"{type(error).__name__}: {error}")

    alone = examined.raw
    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    require(not wrong, f"of {_THREADS} threads: {wrong[:1]}")


def _decoding_again(examined: ExaminedSource) -> None:
    """Decoding again gives the same, also after a transform has changed the values in place."""
    for sample, raw in examined.raw.items():
        for value in examined.source.decode(sample, raw).values():
            if isinstance(value, np.ndarray) and value.ndim:
                require(value.flags.writeable, f"sample {sample} has an array that no transform can change")
                # As a transform may do: a source that hands out its own arrays gives other values the next time.
                value[...] = 0
        again = content_of(examined.source.decode(sample, raw))
        require(again == examined.contents[sample], f"sample {sample} differs the second time")


def _decoding_all(examined: ExaminedSource) -> None:
    """Decoding many samples at once gives what decoding one at a time gives."""
    numbers = [*examined.numbers, *examined.numbers[:3]]
    columns = examined.source.decode_all(numbers, [examined.raw[sample] for sample in numbers])
    if columns is None:
        raise NotTried("this source decodes one sample at a time")
    for key, column in columns.items():
        values = _values_in(column)
        require(len(values) == len(numbers), f'{len(values)} values of "{key}" for {len(numbers)} samples')
        for sample, value in zip(numbers, values, strict=True):
            same = content_of({key: value}) == content_of({key: examined.decoded[sample][key]})
            require(same, f'sample {sample}: another "{key}" is decoded with others than alone')
    require(columns.keys() == examined.decoded[numbers[0]].keys(), f"it gives {', '.join(columns)}")


def _values_in(column: Column) -> list[Any]:
    """Return the value of each sample in a column."""
    if isinstance(column, Ragged):
        return np.split(column.values, np.cumsum(column.lengths)[:-1])
    return list(column)


def _gathering(examined: ExaminedSource) -> None:
    """Writing whole batches at once gives the bytes that decoding each sample gives."""
    source = examined.source
    if not source.gathers:
        raise NotTried("this source does not write whole batches")
    padded = [one.key for one in source.fields if one.padded]
    longest = {key: max(len(values[key]) for values in examined.decoded.values()) + 1 for key in padded}
    rows = len(examined.numbers)
    layout = layout_of(fields_of_batch(source.fields), BucketShape(rows=rows, lengths=longest))
    # Not zeros, so that bytes which `gather` leaves unwritten are noticed.
    out = layout.arrays(np.full(layout.nbytes, 0xA5, np.uint8))
    source.gather(np.array(examined.numbers), out)
    for row, (sample, values) in enumerate(examined.decoded.items()):
        for one in source.fields:
            expected = np.zeros_like(out[one.key][row])
            length = len(values[one.key]) if one.padded else 0
            expected[slice(length) if one.padded else ...] = values[one.key]
            require(expected.tobytes() == out[one.key][row].tobytes(), f'sample {sample}: other bytes of "{one.key}"')
            said = f'sample {sample}: {length} steps of "{one.key}" decoded, another number gathered'
            require(not one.padded or out[f"{one.key}_length"][row] == length, said)


def _chunks(examined: ExaminedSource) -> None:
    """Reading stretches of samples gives what cutting whole samples gives."""
    source, samples = examined.source, examined.numbers[:10]
    lengths = {key: of for key, of in source.lengths.items() if key not in rate_keys(source.lengths)}
    if not lengths:
        raise NotTried("nothing of its samples has a length")
    for key, of in lengths.items():
        ends = [(sample, int(of[sample])) for sample in samples]
        cuts = ((sample, *cut) for sample, end in ends for cut in ((0, end // 3), (end // 3, end)))
        chunks = [Chunk(*cut, (key,)) for cut in cuts]
        for chunk, raw in zip(chunks, list(source.read_chunks(chunks)), strict=True):
            whole = examined.source.decode(chunk.sample, examined.raw[chunk.sample])
            expected = whole | {key: whole[key][chunk.start : chunk.stop]}
            same = content_of(source.decode_chunk(chunk, raw)) == content_of(expected)
            require(same, f'sample {chunk.sample}: other values in "{key}" from {chunk.start} to {chunk.stop}')


def _names(examined: ExaminedSource) -> None:
    """Every sample has a name and a place for people."""
    for sample in examined.numbers:
        name, place = examined.source.name(sample), examined.source.place(sample)
        require(isinstance(name, str) and name, f"sample {sample} is called {name!r}")
        require([type(part) for part in place] == [str, int], f"sample {sample} is at {place!r}")


def _identities(examined: ExaminedSource) -> None:
    """Identities are texts, the same each time, and shared by equal samples only."""
    known: dict[str, int] = {}
    again = examined.open()
    for sample in examined.numbers:
        identity = examined.source.identity(sample)
        require(isinstance(identity, str) and identity, f"sample {sample} is known as {identity!r}")
        require(identity == again.identity(sample), f"sample {sample} has another identity after opening again")
        other = known.setdefault(identity, sample)
        same = examined.contents[other] == examined.contents[sample]
        require(same, f"samples {other} and {sample} differ, but share an identity")
    again.close()


def _parts(examined: ExaminedSource) -> None:
    """Parts begin with sample 0 and rise."""
    parts = examined.source.parts
    rising = all(one < other for one, other in itertools.pairwise(parts))
    require(parts[0] == 0 and rising and parts[-1] < examined.source.samples, f"got {parts}")


def _out_of_range(examined: ExaminedSource) -> None:
    """Numbers that no sample has are refused."""
    source, total = examined.source, examined.source.samples
    asked = {"read and decoded": lambda n: source.decode(n, read_all(source, [n])[0]), "named": source.name}
    for number, (what, ask) in itertools.product((-1, total, total + 7), asked.items()):
        try:
            ask(number)
        except (IndexError, StokerError):
            continue
        raise Violation(f"number {number} of {total} samples was {what}")


# --- its life ---


def _opening_again(examined: ExaminedSource) -> None:
    """Opening again gives the same samples."""
    again = examined.open()
    require(again.fields == examined.source.fields, "other fields")
    for sample, raw in zip(examined.numbers, read_all(again, examined.numbers), strict=True):
        require(raw == examined.raw[sample], f"sample {sample} has other bytes")
        require(content_of(again.decode(sample, raw)) == examined.contents[sample], f"sample {sample} is another one")
        require(again.name(sample) == examined.source.name(sample), f"sample {sample} has another name")
    again.close()


def _elsewhere(examined: ExaminedSource) -> None:
    """A new process that gets name and settings makes the same of every sample."""
    _, index = examined.indexed(1, 0)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        got = pool.submit(contents_elsewhere, examined.case.spec, index, examined.numbers).result()
    for sample, content in zip(examined.numbers, got, strict=True):
        require(content == examined.contents[sample], f"sample {sample} differs there")


def _nothing_open(examined: ExaminedSource) -> None:
    """Nothing is left open."""
    gc.collect()
    # Counted after a collection: garbage of earlier checks must not close files in between.
    before = _open_files()
    source = examined.open()
    for sample, raw in zip(examined.numbers, read_all(source, examined.numbers), strict=True):
        source.decode(sample, raw)
    source.close()
    del source
    gc.collect()
    left = _open_files() - before
    require(not left, f"after close() these are still open: {sorted(left)[:5]}")


def _open_files() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(f"{descriptor.name} {descriptor.readlink()}")
    return found


def _changed_data(examined: ExaminedSource) -> None:
    """Data that changed since they were indexed are refused."""
    if examined.case.change is None:
        raise NotTried("no way to change these data was given")
    _ = examined.contents
    before = examined.case.spec.make().stamp()
    require(before == examined.case.spec.make().stamp(), "the same data have two stamps")
    examined.case.change()
    require(not before or before != examined.case.spec.make().stamp(), "the changed data have the stamp of the old")
    try:
        source = examined.open()
        read_all(source, examined.numbers)
    except (DataError, OSError):
        return
    raise Violation("the changed data were opened and read")


#: In this order: the last one changes the data.
CHECKS: tuple[Callable[[ExaminedSource], None], ...] = (
    *(_same_index, _rows_count, _plain_facts, _lengths, _padded_have_lengths, _bad_rows, _unknown_setting),
    *(_fields, _any_order, _many_at_once, _from_threads, _decoding_again, _decoding_all, _gathering, _chunks),
    *(_names, _identities, _parts),
    *(_out_of_range, _opening_again, _elsewhere, _nothing_open, _changed_data),
)
