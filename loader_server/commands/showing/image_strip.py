"""An image of a batch as a strip of the batch's picture, with the cells around it hatched.

Rules: pure, but for what it draws into. An image is a value of three axes, the last one of 1, 3 or 4 channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shared.wire.batch_layout import Field

__all__ = ["draw_image", "is_image"]

_AXES, _CHANNELS = 3, (1, 3, 4)


def is_image(field: Field) -> bool:
    """Return whether a field's values are drawn as images."""
    return len(field.shape) == _AXES and field.shape[2] in _CHANNELS and field.dtype in ("uint8", "float32")


def draw_image(axes: Any, arrays: Mapping[str, NDArray[Any]], field: Field, row: int) -> None:
    """Draw a row's image upright, in true proportion; floats between the least and greatest of the batch."""
    array = arrays[field.key]
    rows, columns = array.shape[1:3]
    height = int(arrays[f"{field.key}_length"][row]) if field.padded else rows
    width = int(arrays[f"{field.key}_width"][row]) if field.is_wide else columns
    axes.set_yticks([])
    axes.tick_params(labelsize=7)
    around = {"facecolor": "0.93", "edgecolor": "0.75", "hatch": "////", "linewidth": 0}
    axes.axvspan(-0.5, columns - 0.5, **around)
    image = array[row, :height, :width]
    if image.size and arrays["weight"][row]:
        shown = image if image.dtype == np.uint8 else _scaled(image, array)
        axes.imshow(shown[:, :, 0] if shown.shape[2] == 1 else shown, cmap="gray", interpolation="nearest", zorder=2)
    axes.set_aspect("equal")
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)


def _scaled(image: NDArray[Any], batch: NDArray[Any]) -> NDArray[Any]:
    """Return floats as shares of the range that the batch's finite values have; others become 0."""
    finite = batch[np.isfinite(batch)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    shares = np.nan_to_num((image - low) / max(high - low, 1e-12), posinf=0, neginf=0)
    clipped: NDArray[Any] = np.clip(shares, 0, 1)
    return clipped
