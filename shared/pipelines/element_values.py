"""Elements of a user's `tf.data` pipeline on the wire: each value flat, with its shape beside it if that varies.

An element is a dict of dense tensors of any rank. A batch's tensors have at most one axis that varies, so all axes up
to the last that varies are flattened into one: `tokens` [32, any, 80] crosses as `tokens:values` [any, 80] with
`tokens:shape`, three numbers. A value of fixed shape crosses as it is. The fields on the wire describe the element
completely.

A data set that a trainer sends is the values of an element and a TensorFlow graph, as bytes; equal bytes are the same
data.

Rules: pure; knows no TensorFlow, and no Python objects cross; a reader survives any bytes. Keys of elements have no
colon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

from shared.errors import DataError
from shared.hashing import fingerprint
from shared.wire.batch_layout import DTYPES, Field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

__all__ = [
    "MOST_BYTES",
    "ElementValue",
    "SentGraph",
    "digest_of",
    "digest_of_graph",
    "element_of",
    "fields_of_element",
    "flat_values",
    "values_of_element",
]

#: Largest graph, with the lookup tables inside it; larger tables have to be read from files.
MOST_BYTES = 64 * 2**20

_VALUES, _SHAPE = ":values", ":shape"


@dataclass(frozen=True, slots=True)
class ElementValue:
    """One value of an element; its shape has None for each axis that varies."""

    key: str
    dtype: str
    shape: tuple[int | None, ...]

    @property
    def flattened(self) -> int:
        """Return the number of axes that are flattened into one: all up to the last that varies."""
        return max((place + 1 for place, size in enumerate(self.shape) if size is None), default=0)

    @property
    def fixed(self) -> tuple[int, ...]:
        """Return the sizes of the axes after the flattened ones."""
        return tuple(size or 0 for size in self.shape[self.flattened :])


def fields_of_element(values: Iterable[ElementValue]) -> tuple[Field, ...]:
    """Return the fields that carry these values on the wire: its values for each, and its shape if an axis varies."""
    return tuple(field for value in values for field in _fields(value))


def _fields(value: ElementValue) -> tuple[Field, ...]:
    """Return the fields of one value: its values, and its shape if any axis varies."""
    if not value.flattened:
        return (Field(key=value.key + _VALUES, dtype=value.dtype, shape=value.shape),)
    flat = Field(key=value.key + _VALUES, dtype=value.dtype, shape=(None, *value.fixed))
    return flat, Field(key=value.key + _SHAPE, dtype="int64", shape=(len(value.shape),))


def values_of_element(fields: Iterable[Field]) -> tuple[ElementValue, ...]:
    """Return the values that these fields carry; all axes before one that varies count as varying too.

    Without such fields there are none. Raise KeyError if a padded one lacks the field of its shape, ValueError if that
    has not one axis.
    """
    known = {field.key: field for field in fields}
    return tuple(_value(field, known) for field in known.values() if field.key.endswith(_VALUES))


def _value(field: Field, known: Mapping[str, Field]) -> ElementValue:
    """Return the value that a field of values carries; its rank comes from the field of its shape.

    Raise KeyError if a padded one lacks that field, ValueError if it has not one axis.
    """
    key = field.key.removesuffix(_VALUES)
    shape = field.shape
    # Several axes may have become one, and only the length of the shape's field tells how many.
    if field.padded:
        (rank,) = known[key + _SHAPE].shape
        shape = (*(None for _ in range((rank or 0) - len(shape) + 1)), *shape[1:])
    return ElementValue(key, field.dtype, shape)


def flat_values(
    values: Iterable[ElementValue], element: Mapping[str, NDArray[np.generic]]
) -> dict[str, NDArray[np.generic]]:
    """Return the element as its fields carry it.

    A value with an axis that varies is flattened, with its shape beside it; others are as they are. Raise KeyError if
    the element lacks a value, ValueError if fixed axes after varying ones have other sizes.
    """
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
    """Return the element in the first row of a batch of the plain iterator; an empty place of its shard has no rows."""
    element = {}
    for key in [name.removesuffix(_VALUES) for name in batch if name.endswith(_VALUES)]:
        values, shape = batch[key + _VALUES][0], batch.get(key + _SHAPE)
        if shape is not None:  # only the varying axes: in an empty batch the sizes are all zeros, even of fixed axes
            values = values.reshape(*shape[0][: len(shape[0]) - values.ndim + 1], *values.shape[1:])
        element[key] = values
    return element


def digest_of(flat: Mapping[str, NDArray[np.generic]]) -> int:
    """Return a 60-bit hash of an element's keys, shapes and bytes: positive, so that it fits an index's column."""
    parts = (part for key in sorted(flat) for part in (f"{key} {flat[key].shape}", flat[key].tobytes()))
    # 15 hexadecimal digits are 60 bits, below the sign bit of an int64.
    return int(fingerprint(*parts)[:15], 16) or 1


# --- a data set that a trainer sends ---


@dataclass(frozen=True, slots=True)
class SentGraph:
    """Serialized GraphDef (`graph`) whose elements are dicts of `values`."""

    values: tuple[ElementValue, ...]
    graph: bytes

    def encode(self) -> bytes:
        """Return the values' keys, dtypes and shapes and the graph as one msgpack frame, which `decode` reads."""
        described = [[value.key, value.dtype, value.shape] for value in self.values]
        return msgpack.packb([described, self.graph])  # type: ignore[no-any-return] # bytes

    @staticmethod
    def decode(content: bytes, where: str) -> SentGraph:
        """Return what `encode` wrote; raise DataError for other bytes.

        A graph in them that is no bytes object is converted by `bytes`, or raises TypeError or ValueError.
        """
        try:
            described, graph = msgpack.unpackb(content)
            values = tuple(_described(*facts) for facts in described)
        except Exception as error:  # bytes that are none raise many kinds of errors
            raise DataError(
                expected="a graph as a trainer sends it",
                got=type(error).__name__,
                where=where,
                remedy="Remove it; the next trainer_client.distribute sends it anew.",
            ) from None
        return SentGraph(values, bytes(graph))


def _described(key: str, dtype: str, shape: list[int | None]) -> ElementValue:
    """Return a value of the element; raise ValueError or TypeError if it is not one."""
    if not isinstance(key, str) or dtype not in DTYPES or not all(size is None or size >= 0 for size in shape):
        raise ValueError
    return ElementValue(key, dtype, tuple(shape))


def digest_of_graph(content: bytes) -> str:
    """Return the fingerprint that names this content: 128 bits in hexadecimal."""
    return fingerprint(content)
