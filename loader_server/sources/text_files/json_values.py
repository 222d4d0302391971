"""The values of JSON lines: which kinds there are, and how a value becomes part of a sample.

Rules: pure. A kind is `text`, a dtype, or a dtype with `[any]` for a list of any length. No value is coerced: a number
with a fraction is not an integer, a text is not a number, and a value that does not fit its dtype is refused. Indexing
and decoding agree because both use this module.
"""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from loader_server.sources.batch_columns import Column, Columns, ragged
from shared.wire.batch_layout import Field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray


__all__ = [
    "KINDS",
    "UnusableValueError",
    "columns_of_kinds",
    "fields_of",
    "has_length",
    "kinds_in",
    "object_of",
    "objects_of",
    "values_of_kinds",
]

_TYPES: dict[str, frozenset[type]] = {
    "bool": frozenset((bool,)),
    "int32": frozenset((int,)),
    "int64": frozenset((int,)),
    "float32": frozenset((int, float)),
    "float64": frozenset((int, float)),
}
_LIST = " [any]"

#: The kinds that a key may be declared as.
KINDS = ("text", *_TYPES, *(f"{dtype}{_LIST}" for dtype in _TYPES))

#: The kind of a value if the settings name none: JSON's integers are exact to 64 bits, and models compute with 32-bit
#: floats.
_ASSUMED = {str: "text", bool: "bool", int: "int64", float: "float32"}

_Value: TypeAlias = "str | np.generic | NDArray[Any]"


class UnusableValueError(Exception):
    """Line that cannot be used: the reason in one word, and in full."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(detail)


def _refuse_constant(name: str) -> NoReturn:
    """Raise a ValueError: Python's parser would accept NaN and Infinity, which JSON does not have."""
    raise ValueError(f"{name} is no JSON")


_DECODE = json.JSONDecoder(parse_constant=_refuse_constant).decode


def object_of(line: bytes) -> dict[str, Any]:
    """Return the object on a line; raise UnusableValueError if the line holds no JSON object in UTF-8."""
    try:
        value = _DECODE(line.decode())
    except UnicodeDecodeError as error:
        raise UnusableValueError(
            "not_utf8", f"expected UTF-8, got the byte 0x{line[error.start]:02x} after {error.start} others"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UnusableValueError("malformed", f"expected JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnusableValueError("malformed", f"expected an object, got {type(value).__name__}")
    return value


def objects_of(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """Parse lines that are known to hold one object each, all at once as a JSON array.

    Raise a ValueError if the lines are no JSON in UTF-8, or the number of values is not that of the lines, and a
    RecursionError if they are nested too deep. Whether the values are objects is not looked at.
    """
    # One call of the parser for a batch takes 5.6 µs a sample, one for each line 12.7.
    objects: list[dict[str, Any]] = _DECODE((b"[" + b",".join(lines) + b"]").decode())
    if len(objects) != len(lines):
        raise ValueError(f"{len(objects)} objects in {len(lines)} lines")
    return objects


def kinds_in(objects: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the kind of each key in these objects, sorted by key; keys without a usable kind are left out.

    The first kind seen counts, but a key of integers becomes one of floats as soon as a number with a fraction appears.
    The result is empty if no key has a usable kind.
    """
    kinds: dict[str, str] = {}
    for key, value in chain.from_iterable(row.items() for row in objects):
        kind = _kind_of(value)
        # Written 3, a number may still be one of a key with fractions.
        if kind is not None and (key not in kinds or kind == kinds[key].replace("int64", "float32")):
            kinds[key] = kind
    return dict(sorted(kinds.items()))


def _kind_of(value: object) -> str | None:
    """Return the kind of a value, or None if it has none.

    Null, objects and empty lists have none, nor have lists of anything but numbers or booleans of one kind. A list of
    integers and fractions counts as one of fractions.
    """
    # By the exact type: for isinstance, True would be an integer.
    if not isinstance(value, list):
        return _ASSUMED.get(type(value))
    kinds = set(map(_ASSUMED.get, map(type, value)))
    if kinds == {"int64", "float32"}:
        return f"float32{_LIST}"
    only = kinds.pop() if len(kinds) == 1 else None
    return f"{only}{_LIST}" if only in _TYPES else None


def has_length(kind: str) -> bool:
    """Return whether values of this kind are texts or lists, which differ in length, rather than single numbers."""
    return kind == "text" or kind.endswith(_LIST)


def fields_of(kinds: Mapping[str, str]) -> tuple[Field, ...]:
    """Return the fields of all keys that are not text: lists padded, numbers without axes; () if there are none."""
    return tuple(
        Field(key=key, dtype=kind.removesuffix(_LIST), shape=(None,) if kind.endswith(_LIST) else ())
        for key, kind in kinds.items()
        if kind != "text"
    )


def values_of_kinds(row: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, _Value]:
    """Return a sample's values of these keys; raise UnusableValueError if one is missing, null or of another kind.

    Raise it too if a number does not fit its dtype, or a text has half a surrogate pair. Other keys are left out.
    """
    return {key: _value(key, row, kind) for key, kind in kinds.items()}


def columns_of_kinds(objects: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> Columns:
    """Return one column for each key, from objects that indexing has found usable.

    Others are not noticed reliably: raise a KeyError for a missing key, and for a value that does not fit an
    OverflowError, TypeError or ValueError, or convert it.
    """
    return {key: _column([row[key] for row in objects], kind) for key, kind in kinds.items()}


def _column(values: list[Any], kind: str) -> Column:
    """Return one key's values as a list of texts, an array of numbers, or ragged rows.

    Raise an OverflowError for an integer that the dtype cannot hold. Kinds are not checked: a value of another kind
    stays as it is, is converted, or raises a TypeError or ValueError.
    """
    if kind == "text":
        return values
    dtype = np.dtype(kind.removesuffix(_LIST))
    return ragged(values, dtype) if kind.endswith(_LIST) else np.fromiter(values, dtype, len(values))


def _value(key: str, row: Mapping[str, Any], kind: str) -> _Value:
    """Return one value as text, number or array; raise UnusableValueError if it is missing, null or of another kind.

    Raise it too if a number does not fit its dtype, or a text has half a surrogate pair.
    """
    value = row.get(key)
    if value is None:
        reason, got = ("null", "null") if key in row else ("missing_key", "no such key")
        raise UnusableValueError(reason, f'expected "{key}", got {got}')
    if kind == "text":
        return _text(key, value)
    dtype, is_list = kind.removesuffix(_LIST), kind.endswith(_LIST)
    # Exact types again: True is refused as a number.
    types = set(map(type, value)) if is_list and isinstance(value, list) else {type(value)}
    if is_list != isinstance(value, list) or not types <= _TYPES[dtype]:
        raise _wrong(key, kind, value)
    return _numbers(key, dtype, value)


def _numbers(key: str, dtype: str, value: Any) -> np.generic | NDArray[Any]:
    """Return numbers in their dtype; raise UnusableValueError if one does not fit or is not finite there."""
    # numpy raises for an integer that does not fit, but makes an infinity of such a float. Not by `suppress`: with it,
    # looking at JSON lines of three numbers each took an eighth longer.
    try:
        numbers = np.array(value, dtype)
        if numbers.dtype.kind != "f" or np.isfinite(numbers).all():
            return numbers if numbers.ndim else numbers[()]
    except OverflowError:
        pass
    raise UnusableValueError("out_of_range", f'expected "{key}" to fit into {dtype}, got {_shown(value)}')


def _text(key: str, value: object) -> str:
    """Return a text; raise UnusableValueError if it is none, or has half a surrogate pair.

    JSON can escape half a pair, and Python accepts it, but UTF-8 cannot encode it.
    """
    if not isinstance(value, str):
        raise _wrong(key, "text", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UnusableValueError("not_utf8", f'expected "{key}" in Unicode, got half of a surrogate pair') from None
    return value


def _wrong(key: str, kind: str, value: object) -> UnusableValueError:
    return UnusableValueError("wrong_type", f'expected "{key}" as {kind}, got {_shown(value)}')


def _shown(value: object) -> str:
    """Return a value as JSON, cut to 60 characters for messages."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:57]}..."
