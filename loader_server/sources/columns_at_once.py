"""Samples that were decoded one by one, as columns, so that transforms can take a whole batch at once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loader_server.sources.batch_columns import Columns
    from shared.wire.batch_layout import Field

__all__ = ["MOST_AT_ONCE", "joined_columns"]

#: Most bytes of samples that are decoded together: they are in memory at once, and share one sample's time limit.
MOST_AT_ONCE = 16 * 2**20


def joined_columns(samples: Sequence[dict[str, Any]], fields: Sequence[Field]) -> Columns | None:
    """Return decoded samples, of which there is at least one, as columns; None if one has a fixed shape with axes.

    Values without axes become an array, and all others a list.
    """
    plain = {field.key for field in fields if not field.shape}
    if any(field.shape and not field.padded for field in fields):
        return None
    columns = {key: [sample[key] for sample in samples] for key in samples[0]}
    return {key: np.array(values) if key in plain else values for key, values in columns.items()}
