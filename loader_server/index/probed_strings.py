"""The strings that come with batches, of the samples of one piece: found while it is probed, and kept in the index.

They are taken from where they are at hand: the source's texts, its columns of strings, or else the decoded samples. A
sample without such a string, or with one that is too long, makes a bad row: nothing is cut, and nothing left empty.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from loader_server.index.string_columns import LONGEST_STRING, column_of_strings
from loader_server.sources.files.retried_reads import read_patiently
from loader_server.sources.sample_limits import look_twice
from loader_server.sources.source import BadRow, Found, decoded
from shared.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loader_server.sources.source import Source

__all__ = ["only", "with_strings"]

#: The most keys and columns that a bad row's detail names.
_SHOWN_KEYS = 12


@dataclass(frozen=True, slots=True)
class _NoString:
    """Why a sample has no string of a key: a reason in one word, and the detail."""

    reason: str
    detail: str


_Value: TypeAlias = "str | _NoString"


def with_strings(found: Found, source: Source, keys: Sequence[str], largest: int) -> Found:
    """Return a piece with the strings of these keys; `source` is open with this piece alone.

    A row is bad if its value is no string or is too long, or if its sample cannot be decoded where that is needed, also
    because memory runs out although there was enough for the `largest` sample. Raise a MachineError if there was less;
    a ReadError and other errors of the source pass through.
    """
    at_hand = {key: _at_hand(key, source) if found.rows else [] for key in keys}
    values: dict[str, list[_Value]] = {
        key: [_as_string(key, value) for value in column] for key, column in at_hand.items() if column is not None
    }
    if lacking := [key for key in keys if key not in values]:
        values |= _decoded(source, lacking, largest)
    bad, kept = dict(found.bad), list[int]()
    for place, row in enumerate(found.rows):
        faults = (value for key in keys if isinstance(value := values[key][place], _NoString))
        fault = next(faults, None)
        if fault is None:
            kept.append(place)
        else:
            bad[row] = BadRow(*source.place(place), fault.reason, fault.detail)
    strings = {column_of_strings(key): [values[key][place] for place in kept] for key in keys}
    rest = found if len(kept) == len(found.rows) else only(found, kept, bad)
    return replace(rest, strings={**rest.strings, **strings})  # type: ignore[dict-item] # those kept have strings


def only(found: Found, kept: Sequence[int], bad: Mapping[int, BadRow]) -> Found:
    """Return a piece of the good rows at these places, and of these bad rows in order."""
    numbers = {name: np.asarray(column, np.int64)[list(kept)] for name, column in found.numbers.items()}
    strings = {name: [column[place] for place in kept] for name, column in found.strings.items()}
    rows = [found.rows[place] for place in kept]
    return Found(rows=rows, numbers=numbers, strings=strings, bad=dict(sorted(bad.items())))


def _at_hand(key: str, source: Source) -> Sequence[Any] | None:
    """Return a key's strings that the source has without decoding samples, else None; errors of the source pass."""
    texts = source.texts(key)
    if texts is not None:
        return list(chain.from_iterable(texts))
    column = source.columns.get(key)
    return None if column is None else [column[place] for place in range(source.samples)]


def _decoded(source: Source, keys: Sequence[str], largest: int) -> dict[str, list[_Value]]:
    """Return each sample's strings of these keys, decoding one sample after another.

    Raise a MachineError if memory or descriptors ran out with less free than the `largest` sample may need. A ReadError
    and other errors of the source pass through.
    """
    values: dict[str, list[_Value]] = {key: [] for key in keys}
    for place, raw in enumerate(read_patiently(source.read, range(source.samples), bool)):
        sample: Mapping[str, Any] = {}
        fault = None
        try:
            sample = look_twice(partial(decoded, source, place, raw), largest, where=partial(source.name, place))
        except SampleError as error:
            fault = _NoString(error.reason, f"expected {error.expected}, got {error.got}")
        names = ", ".join(islice(dict.fromkeys((*sample, *source.columns)), _SHOWN_KEYS))
        for key in keys:
            missing = fault or _NoString("no_string", f'expected a string "{key}", got only {names}')
            # Of a piece of recordings, all decoded values together would be gigabytes: only strings are kept.
            values[key].append(_as_string(key, sample[key]) if key in sample else missing)
    return values


def _as_string(key: str, value: Any) -> _Value:
    """Return a value as a string, also one of numpy's or UTF-8 as bytes, or why it is none or too long."""
    if isinstance(value, np.ndarray | np.generic) and not value.shape:
        value = value.item()
    try:
        text = value.decode() if isinstance(value, bytes) else value
        if isinstance(text, str):
            nbytes = len(text.encode())
            if nbytes <= LONGEST_STRING:
                return text
            return _NoString("string_too_long", f'expected "{key}" of at most {LONGEST_STRING} bytes, got {nbytes}')
    except UnicodeError as error:
        return _NoString("no_string", f'expected "{key}" as UTF-8, got {error}')
    shown = f"an array of {value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
    return _NoString("no_string", f'expected a string "{key}", got {shown}')
