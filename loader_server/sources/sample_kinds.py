"""The fields of samples that code of a user makes: what the first usable sample holds, and which of its axes vary.

Rules: pure. A sample is a dict of arrays, which numbers are as well, and of other values, which have no field.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.batch_columns import shown_axes
from shared.wire.batch_layout import Field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

__all__ = ["fields_of_sample", "has_axes", "has_length", "kinds_of_sample", "shown_kind"]


def has_length(value: object) -> bool:
    """Return whether a value is a string, or an array with axes."""
    return isinstance(value, str) or has_axes(value, 1)


def has_axes(value: object, least: int) -> bool:
    """Return whether a value is an array of at least so many axes."""
    return isinstance(value, np.ndarray) and value.ndim >= least


def kinds_of_sample(sample: Mapping[str, Any], wide: AbstractSet[str]) -> dict[str, Field | None]:
    """Return arrays and numbers as fields with the first axis padded, of `wide` keys the first two.

    Other values have None.
    """
    return {key: _kind(key, value, 1 + (key in wide)) for key, value in sample.items()}


def fields_of_sample(sample: Mapping[str, Any], padded: AbstractSet[str], wide: AbstractSet[str]) -> list[Field]:
    """Return arrays and numbers as fields; of the padded keys the first axis varies, and of `wide` ones the first two.

    Values that are no arrays have none.
    """
    kinds = [kind for kind in kinds_of_sample(sample, wide).values() if kind is not None]
    varying = padded | wide
    return [kind if kind.key in varying else replace(kind, shape=np.shape(sample[kind.key])) for kind in kinds]


def _kind(key: str, value: object, axes: int) -> Field | None:
    """Return an array's field with the first axes padded, so many as it has of these; None if it is no array."""
    if not isinstance(value, np.ndarray):
        return None
    count = min(axes, value.ndim)
    return Field(key=key, dtype=str(value.dtype), shape=(*[None] * count, *value.shape[count:]))


def shown_kind(key: str, kinds: Mapping[str, Field | None]) -> str:
    """Return a key and its kind as messages show them."""
    if (kind := kinds.get(key)) is None:
        return f'"{key}" as no array' if key in kinds else f'no "{key}"'
    return f'"{key}" as {kind.dtype} [{shown_axes(kind.shape)}]'
