"""Elements of a user's `tf.data` pipeline on the wire: each value flat, with its shape beside it where that varies.

An element is a dict of dense tensors of any rank. A batch's tensors have one axis at most that varies, so all axes up
to the last that varies are laid into one: `tokens` [32, any, 80] crosses as `tokens:values` [any, 80] with
`tokens:shape`, three numbers. A value whose shape is fixed crosses as it is. What crosses says what comes out: no other
description of the element is needed.

Rules: pure; knows no TensorFlow. Keys of elements have no colon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.hashing import fingerprint
from shared.wire.layout import Field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "ElementValue",
    "digest_of",
    "element_of",
    "fields_of_element",
    "flat_values",
    "values_of_element",
    "values_on_wire",
]

_VALUES, _SHAPE = ":values", ":shape"


@dataclass(frozen=True, slots=True)
class ElementValue:
    """One value of an element; its shape has None for each axis that varies."""

    key: str
    dtype: str
    shape: tuple[int | None, ...]

    @property
    def flattened(self) -> int:
        """How many axes are laid into one: all up to the last that varies."""
        return max((place + 1 for place, size in enumerate(self.shape) if size is None), default=0)

    @property
    def fixed(self) -> tuple[int, ...]:
        """The sizes of the axes behind these."""
        return tuple(size or 0 for size in self.shape[self.flattened :])


def fields_of_element(values: Iterable[ElementValue]) -> tuple[Field, ...]:
    """The fields in which these values cross."""
    return tuple(field for value in values for field in _fields(value))


def _fields(value: ElementValue) -> tuple[Field, ...]:
    if not value.flattened:
        return (Field(key=value.key + _VALUES, dtype=value.dtype, shape=value.shape),)
    flat = Field(key=value.key + _VALUES, dtype=value.dtype, shape=(None, *value.fixed))
    return flat, Field(key=value.key + _SHAPE, dtype="int64", shape=(len(value.shape),))


def values_of_element(fields: Iterable[Field]) -> tuple[ElementValue, ...]:
    """The values that cross in these fields; an axis before one that varies counts as varying, too."""
    known = {field.key: field for field in fields}
    return tuple(_value(field, known) for field in known.values() if field.key.endswith(_VALUES))


def _value(field: Field, known: Mapping[str, Field]) -> ElementValue:
    key = field.key.removesuffix(_VALUES)
    shape = field.shape
    if field.padded:
        (rank,) = known[key + _SHAPE].shape
        shape = (*(None for _ in range((rank or 0) - len(shape) + 1)), *shape[1:])
    return ElementValue(key, field.dtype, shape)


def flat_values(
    values: Iterable[ElementValue], element: Mapping[str, NDArray[np.generic]]
) -> dict[str, NDArray[np.generic]]:
    """The element in the form in which it crosses."""
    flat: dict[str, NDArray[np.generic]] = {}
    for value in values:
        array = element[value.key]
        if value.flattened:
            steps = math.prod(array.shape[: value.flattened])
            flat[value.key + _VALUES] = array.reshape(steps, *value.fixed)
            flat[value.key + _SHAPE] = np.array(array.shape, np.int64)
        else:
            flat[value.key + _VALUES] = array
    return flat


def element_of(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The element in a batch of the plain iterator; a place that its shard did not fill has no rows."""
    element = {}
    for key in values_on_wire(batch):
        values, shape = batch[key + _VALUES][0], batch.get(key + _SHAPE)
        if shape is not None:  # an empty batch has zeros there, whatever is fixed
            values = values.reshape(*shape[0][: len(shape[0]) - values.ndim + 1], *values.shape[1:])
        element[key] = values
    return element


def values_on_wire(keys: Iterable[str]) -> Sequence[str]:
    """The keys of an element that crosses under these keys."""
    return [key.removesuffix(_VALUES) for key in keys if key.endswith(_VALUES)]


def digest_of(flat: Mapping[str, NDArray[np.generic]]) -> int:
    """A number that tells one element from others: positive, and it fits into a column of an index."""
    parts = (part for key in sorted(flat) for part in (f"{key} {flat[key].shape}", flat[key].tobytes()))
    return int(fingerprint(*parts)[:15], 16) or 1
