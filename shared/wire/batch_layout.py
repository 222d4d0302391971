"""Layout of batches: their tensors, and the place of each in the one contiguous payload.

Rules: pure; every tensor starts at a multiple of 64 bytes, because TensorFlow takes 64-byte-aligned buffers without a
copy; a tensor's first axis is the row axis; of a sample's value the first axis may be padded, or the first two.
Strings lie in one tensor of bytes for each key, whose form `shared.wire.strings` knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "ALIGNMENT",
    "DTYPES",
    "RESET",
    "STRING",
    "BucketShape",
    "Field",
    "Layout",
    "Tensor",
    "fields_of_batch",
    "layout_of",
    "narrowed",
]

ALIGNMENT = 64

#: The dtypes of arrays that may cross the wire: fixed width, no objects.
DTYPES = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
)


#: The dtype of keys whose values are strings: one a row, or one for each sample of a packed row.
STRING = "string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One value of a sample: its dtype and shape; None is a padded axis: the first one, or the first two.

    A field of strings has the shape () or, in packed rows, (None,): as many as the row has samples. `per_second` is the
    number of steps along the padded axis in a second of the recording (None: it has no time).
    """

    key: str
    dtype: str
    shape: tuple[int | None, ...]
    per_second: float | None = None

    @property
    def padded(self) -> bool:
        """Return whether samples differ in length along the first axis; strings have no such axis."""
        return bool(self.shape) and self.shape[0] is None and not self.is_string

    @property
    def is_string(self) -> bool:
        """Return whether values are strings."""
        return self.dtype == STRING

    @property
    def is_wide(self) -> bool:
        """Return whether samples differ along the second axis too, so that they have a width beside a length."""
        return len(self.shape) > 1 and self.shape[1] is None

    @property
    def length_keys(self) -> tuple[str, ...]:
        """Return the keys of its padded axes, in order: its own and then `<key>_width`; none if no axis is padded.

        Strings have their own key, under which shapes have the bytes of the tensor.
        """
        if self.is_string:
            return (self.key,)
        return tuple(_axis_key(self.key, place) for place, axis in enumerate(self.shape) if axis is None)

    @property
    def step_bytes(self) -> int:
        """Return the bytes of one step along the padded axis, of one cell of two, or of all the value if none is."""
        return np.dtype(self.dtype).itemsize * math.prod(axis for axis in self.shape if axis is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketShape:
    """Padded shape of a bucket: rows, and the padded length of each padded axis, by `Field.length_keys`.

    Of strings it has the bytes of their tensor, instead of a length.
    """

    rows: int
    lengths: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Tensor inside a payload.

    One of strings has the shape (rows,), or (rows, -1) if rows are packed: as many as the fullest row has samples.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    def lies_in(self, payload: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a view of the tensor's bytes in a payload."""
        return payload[self.offset : self.offset + self.nbytes]


@dataclass(frozen=True)
class Layout:
    """All tensors of a payload of `nbytes` bytes, in order of their offsets."""

    tensors: tuple[Tensor, ...]
    nbytes: int

    def arrays(self, payload: NDArray[np.uint8]) -> dict[str, NDArray[np.generic]]:
        """Return views of the payload, one for each tensor, without a copy; of strings, their bytes."""
        numbers = {t.key: np.ndarray(t.shape, t.dtype, payload, t.offset) for t in self._numbers}
        return numbers | {t.key: t.lies_in(payload) for t in self.strings} if self.strings else numbers

    @cached_property
    def _numbers(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.dtype != STRING)

    @cached_property
    def strings(self) -> tuple[Tensor, ...]:
        """Return the tensors of strings."""
        return tuple(tensor for tensor in self.tensors if tensor.dtype == STRING)

    def gaps(self) -> Iterator[slice]:
        """Yield the byte ranges between tensors, which are part of the payload and of its digest."""
        # Each tensor begins at a multiple of 64, so there is a gap after one whose size is no such multiple.
        ends = [*(tensor.offset for tensor in self.tensors[1:]), self.nbytes]
        for tensor, end in zip(self.tensors, ends, strict=True):
            if tensor.offset + tensor.nbytes < end:
                yield slice(tensor.offset + tensor.nbytes, end)


#: Extra tensor of batches whose rows carry state: true where a row's state must be reset first.
RESET = Field(key="reset", dtype="bool", shape=())


def fields_of_batch(fields: Sequence[Field]) -> tuple[Field, ...]:
    """Return the fields of a batch: those of a sample, lengths and widths of padded keys, `weight` and `tag`."""
    padded = [f"{f.key}_length" for f in fields if f.padded] + [f"{f.key}_width" for f in fields if f.is_wide]
    lengths = tuple(Field(key=key, dtype="int32", shape=()) for key in padded)
    extra = (Field(key="weight", dtype="float32", shape=()), Field(key="tag", dtype="int64", shape=()))
    return (*fields, *lengths, *extra)


def layout_of(fields: Sequence[Field], shape: BucketShape) -> Layout:
    """Return the layout of a batch of this shape; `fields` are the batch's, not a sample's."""
    return _laid_out(_sized(field, shape) for field in fields)


def _sized(field: Field, shape: BucketShape) -> tuple[str, str, tuple[int, ...], int]:
    """Return key, dtype, shape and bytes of a field's tensor."""
    if field.is_string:
        return field.key, STRING, (shape.rows, *(-1 for _ in field.shape)), shape.lengths[field.key]
    sample = (
        shape.lengths[_axis_key(field.key, place)] if axis is None else axis for place, axis in enumerate(field.shape)
    )
    sizes = (shape.rows, *sample)
    return field.key, field.dtype, sizes, math.prod(sizes) * np.dtype(field.dtype).itemsize


def narrowed(layout: Layout, dtypes: Mapping[str, str]) -> Layout:
    """Return the layout of the same tensors, with each dtype that `dtypes` names replaced by the one it has there."""
    return _laid_out(
        (t.key, dtypes[t.dtype], t.shape, math.prod(t.shape) * np.dtype(dtypes[t.dtype]).itemsize)
        if t.dtype in dtypes
        else (t.key, t.dtype, t.shape, t.nbytes)
        for t in layout.tensors
    )


def _laid_out(sized: Iterable[tuple[str, str, tuple[int, ...], int]]) -> Layout:
    """Return the layout of tensors that are given by key, dtype, shape and bytes."""
    tensors, end = [], 0
    for key, dtype, shape, nbytes in sized:
        tensors.append(Tensor(key, dtype, shape, end, nbytes))
        end = _aligned(end + nbytes)
    return Layout(tuple(tensors), end)


def _axis_key(key: str, place: int) -> str:
    """Return the name under which plans and indexes have the lengths along an axis."""
    return f"{key}_width" if place else key


def _aligned(offset: int) -> int:
    # Rounded up: // rounds towards minus infinity, so two negations turn its direction.
    return -(-offset // ALIGNMENT) * ALIGNMENT
