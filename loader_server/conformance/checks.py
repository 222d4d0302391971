"""The rules that every source has to keep, as checks that anybody can run on their own source.

Rules: a check is a function whose docstring begins with its title; it says what it expected and what it got, with the
sample's number. One that fails does not keep others from being tried.
"""

from __future__ import annotations

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.conformance.case import (
    ExaminedSource,
    NotTried,
    SourceCase,
    Violation,
    content_of,
    read_all,
    require,
)
from loader_server.conformance.index_checks import INDEX_CHECKS
from loader_server.conformance.life_checks import LIFE_CHECKS
from loader_server.index.string_columns import column_of_strings
from loader_server.sources.batch_columns import Ragged
from loader_server.sources.chunks.cutting import rate_keys
from loader_server.sources.source import Chunk
from shared.errors import StokerError
from shared.wire.batch_layout import BucketShape, fields_of_batch, layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from loader_server.sources.batch_columns import Column
    from shared.wire.batch_layout import Field

__all__ = ["CHECKS", "CheckResult", "check_source"]

_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of a check: `passed` is None if it could not be tried; `detail` is the reason, or what went wrong."""

    name: str
    passed: bool | None
    detail: str = ""

    def __str__(self) -> str:
        word = {True: "ok", False: "FAILED", None: "not tried"}[self.passed]
        return f"{word:>9}  {self.name}" + (f": {self.detail}" if self.detail else "")


def check_source(
    case: SourceCase, folder: Path, checks: Sequence[Callable[[ExaminedSource], None]] | None = None
) -> list[CheckResult]:
    """Return the results of these checks, or of all if there are none, each tried whatever others find.

    Indexes are made in `folder`. Any exception of a check becomes its result.
    """
    examined = ExaminedSource(case, folder)
    return [_result(check, examined) for check in checks or CHECKS]


def _result(check: Callable[[ExaminedSource], None], examined: ExaminedSource) -> CheckResult:
    name = " ".join((check.__doc__ or "").partition("\n\n")[0].split()).rstrip(".")
    try:
        check(examined)
    except NotTried as why:
        return CheckResult(name=name, passed=None, detail=str(why))
    except Violation as violation:
        return CheckResult(name=name, passed=False, detail=str(violation))
    except Exception as error:  # the source is a user's: what it raises is the result
        return CheckResult(name=name, passed=False, detail=f"{type(error).__name__}: {error}")
    return CheckResult(name=name, passed=True)


# --- samples ---


def _fields(examined: ExaminedSource) -> None:
    """Every decoded sample has the dtypes and shapes that the fields say.

    Raise a Violation for the first value that is missing or differs. Errors of the source pass through.
    """
    for field, (sample, values) in itertools.product(examined.source.fields, examined.decoded.items()):
        value = values.get(field.key)
        if not isinstance(value, np.ndarray | np.generic):
            raise Violation(f'sample {sample} has no array "{field.key}"')
        # An open axis (None) takes the sample's own length.
        shape = tuple(own if axis is None else axis for axis, own in zip(field.shape, value.shape, strict=False))
        got = f"{value.dtype} {list(value.shape)}"
        finding = f'sample {sample}: "{field.key}" is {got}, the field says {field.dtype} {field.shape}'
        require(len(field.shape) == value.ndim and shape == value.shape and value.dtype == field.dtype, finding)


def _any_order(examined: ExaminedSource) -> None:
    """Samples may be read in any order.

    Raise a Violation for a sample that has other bytes in a mixed order. Errors of the source pass through.
    """
    _require_same_bytes(examined, _mixed(examined.numbers, 0), "after others")


def _mixed(numbers: Sequence[int], seed: int) -> list[int]:
    return random.Random(seed).sample(numbers, len(numbers))  # noqa: S311 - any order will do


def _require_same_bytes(examined: ExaminedSource, samples: Sequence[int], how: str) -> None:
    """Raise a Violation if a sample has other bytes when it is read in this way than when it is read alone.

    Raise it also unless there are as many answers as samples; what the source raises is passed on.
    """
    for sample, raw in zip(samples, read_all(examined.source, samples), strict=True):
        require(raw == examined.raw[sample], f"sample {sample} has other bytes when it is read {how}")


def _many_at_once(examined: ExaminedSource) -> None:
    """Reading many samples at once gives what reading one at a time gives, and no sample may be none.

    Raise a Violation for other bytes, also when some are read twice. Errors of the source pass through.
    """
    require(read_all(examined.source, []) == [], "read([]) gives something")
    # Some samples twice, as a mixture may repeat them.
    _require_same_bytes(examined, [*examined.numbers, *examined.numbers[:3]], "with others")


def _from_threads(examined: ExaminedSource) -> None:
    """Several threads may read at the same time.

    Raise a Violation if one of four, each in an order of its own, gets other bytes. Errors of the source pass through.
    """
    _ = examined.raw  # read alone, before the threads
    # All threads begin at once, or the first might be done before the last starts.
    start = threading.Barrier(_THREADS)

    def read(seed: int) -> None:
        start.wait()
        _require_same_bytes(examined, _mixed(examined.numbers, seed), f"by {_THREADS} threads")

    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(read, seed) for seed in range(_THREADS)]:
            done.result()


def _decoding_again(examined: ExaminedSource) -> None:
    """Decoding again gives the same, also after a transform has changed the values in place.

    Raise a Violation for an array that cannot be written to, and for a sample that decodes to other values after its
    arrays were cleared. Errors of the source pass through.
    """
    for sample, raw in examined.raw.items():
        for value in examined.source.decode(sample, raw).values():
            if isinstance(value, np.ndarray) and value.ndim:
                require(value.flags.writeable, f"sample {sample} has an array that no transform can change")
                # As a transform may do: a source that hands out its own arrays gives other values the next time.
                value[...] = 0
        content = content_of(examined.source.decode(sample, raw))
        require(content == examined.contents[sample], f"sample {sample} differs the second time")


def _decoding_all(examined: ExaminedSource) -> None:
    """Decoding many samples at once gives what decoding one at a time gives.

    Raise a Violation if `decode_all` gives other keys, another number of values, or another value than decoding one
    sample; raise NotTried if it returns None. Errors of the source pass through.
    """
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
    """Writing whole batches at once gives the bytes that decoding each sample gives.

    Raise a Violation for the first difference, NotTried if the source does not gather. Errors of the source pass
    through.
    """
    source = examined.source
    if not source.gathers:
        raise NotTried("this source does not write whole batches")
    axes = [(key, field.key, axis) for field in source.fields for axis, key in enumerate(field.length_keys)]
    # One step more than the longest sample, so that every row has padding that has to be cleared.
    longest = {
        name: max(values[key].shape[axis] for values in examined.decoded.values()) + 1 for name, key, axis in axes
    }
    layout = layout_of(fields_of_batch(source.fields), BucketShape(rows=len(examined.numbers), lengths=longest))
    # Not zeros, so that bytes which `gather` leaves unwritten are noticed.
    out = layout.arrays(np.full(layout.nbytes, 0xA5, np.uint8))
    source.gather(np.array(examined.numbers), out)
    for row, (sample, values) in enumerate(examined.decoded.items()):
        for field in source.fields:
            _require_gathered(field, sample, values[field.key], {key: array[row] for key, array in out.items()})


def _require_gathered(field: Field, sample: int, value: Any, row: Mapping[str, Any]) -> None:
    """Raise a Violation unless a row of a gathered batch holds this value, and zeros behind and beside it."""
    expected, axes = np.zeros_like(row[field.key]), field.length_keys
    expected[tuple(map(slice, value.shape[: len(axes)])) if axes else ...] = value
    require(expected.tobytes() == row[field.key].tobytes(), f'sample {sample}: other bytes of "{field.key}"')
    for name, steps, own in zip(axes, value.shape, (f"{field.key}_length", f"{field.key}_width"), strict=False):
        require(row[own] == steps, f'sample {sample}: {steps} steps of "{name}" decoded, another number gathered')


def _chunks(examined: ExaminedSource) -> None:
    """Reading stretches of samples gives what cutting whole samples gives.

    Cut the first ten samples in two along each measured key that is neither a rate nor a width. Raise a Violation for
    the first stretch that differs; raise NotTried if no key is left. Errors of the source pass through.
    """
    source, left = examined.source, set(rate_keys(examined.source.lengths))
    left |= {key for field in source.fields for key in field.length_keys[1:]}
    lengths = {key: column for key, column in source.lengths.items() if key not in left}
    if not lengths:
        raise NotTried("nothing of its samples has a length")
    for key, column in lengths.items():
        ends = [(sample, int(column[sample])) for sample in examined.numbers[:10]]
        chunks = [Chunk(sample, *cut, (key,)) for sample, end in ends for cut in ((0, end // 3), (end // 3, end))]
        for chunk, raw in zip(chunks, list(source.read_chunks(chunks)), strict=True):
            whole = source.decode(chunk.sample, examined.raw[chunk.sample])
            expected = whole | {key: whole[key][chunk.start : chunk.stop]}
            same = content_of(source.decode_chunk(chunk, raw)) == content_of(expected)
            require(same, f'sample {chunk.sample}: other values in "{key}" from {chunk.start} to {chunk.stop}')


def _names(examined: ExaminedSource) -> None:
    """Every sample has a name and a place for people.

    Raise a Violation if a name is empty or no string, or a place no string and number. Errors of the source pass
    through.
    """
    for sample in examined.numbers:
        name, place = examined.source.name(sample), examined.source.place(sample)
        require(isinstance(name, str) and name, f"sample {sample} is called {name!r}")
        require([type(part) for part in place] == [str, int], f"sample {sample} is at {place!r}")


def _identities(examined: ExaminedSource) -> None:
    """Identities are texts, the same each time, and shared by equal samples only.

    Raise a Violation if an identity is empty or no string, differs in a source opened again, or is shared by samples of
    other contents. Errors of the source pass through.
    """
    known: dict[str, int] = {}
    again = examined.open()
    for sample in examined.numbers:
        identity = examined.source.identity(sample)
        require(isinstance(identity, str) and identity, f"sample {sample} is known as {identity!r}")
        require(identity == again.identity(sample), f"sample {sample} has another identity after opening again")
        other = known.setdefault(identity, sample)
        equal = examined.contents[other] == examined.contents[sample]
        require(equal, f"samples {other} and {sample} differ, but share an identity")
    again.close()


def _parts(examined: ExaminedSource) -> None:
    """Parts begin with sample 0 and rise.

    Raise a Violation also if the last begins behind the last sample. Errors of the source pass through.
    """
    parts = examined.source.parts
    rising = all(part < later for part, later in itertools.pairwise(parts))
    require(parts[0] == 0 and rising and parts[-1] < examined.source.samples, f"got {parts}")


def _out_of_range(examined: ExaminedSource) -> None:
    """Numbers that no sample has are refused.

    IndexError and StokerError count as refused. Raise a Violation if -1, the number of samples or a larger number can
    be read and decoded, or named; any other error passes through.
    """
    source, total = examined.source, examined.source.samples
    uses = {"read and decoded": lambda n: source.decode(n, read_all(source, [n])[0]), "named": source.name}
    # -1 is the last one of a list: a source that passes the number on would serve it.
    for number, (use, call) in itertools.product((-1, total, total + 7), uses.items()):
        try:
            call(number)
        except (IndexError, StokerError):
            continue
        raise Violation(f"number {number} of {total} samples was {use}")


def _strings(examined: ExaminedSource) -> None:
    """Strings that batches ask for are those of the samples and of the source's columns.

    Raise a Violation for the first that differs, or if there are fewer samples with them; raise NotTried if there are
    no strings. Errors of indexing and of the source pass through.
    """
    held = [{key for key, value in values.items() if isinstance(value, str)} for values in examined.decoded.values()]
    of_samples, columns = set.intersection(*held) if held else set[str](), examined.source.columns
    keys = tuple(sorted({*of_samples, *columns}))
    if not keys:
        raise NotTried("it has no strings")
    index = examined.indexed_with_strings(keys)
    require(index.samples == examined.index.samples, f"of {examined.index.samples} samples {index.samples} are left")
    for key in keys:
        got = index.indexed.strings[column_of_strings(key)]
        for sample, values in examined.decoded.items():
            expected = values[key] if key in of_samples else columns[key][sample]
            require(got[sample] == expected, f'"{key}" of sample {sample} is {got[sample]!r}, not {expected!r}')


#: In this order: the last one changes the data.
CHECKS: tuple[Callable[[ExaminedSource], None], ...] = (
    *INDEX_CHECKS,
    *(_fields, _any_order, _many_at_once, _from_threads, _decoding_again, _decoding_all, _gathering, _chunks),
    *(_names, _identities, _parts, _strings, _out_of_range, *LIFE_CHECKS),
)
