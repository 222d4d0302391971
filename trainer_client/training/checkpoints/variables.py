"""A model's variables as plain arrays, and back.

Rules: every value comes back exactly, whatever its dtype. It must not know files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["assign_arrays", "assign_values", "plain_arrays", "plain_value"]


def plain_value(variable: Any) -> NDArray[np.generic]:
    """Return the value in a dtype that a file of plain arrays can hold.

    A bfloat16 becomes a float32, which represents it exactly.
    """
    value: NDArray[np.generic] = tf.convert_to_tensor(variable).numpy()
    return value if value.dtype.isbuiltin == 1 else value.astype(np.float32)


def plain_arrays(variables: Sequence[Any]) -> dict[str, NDArray[np.generic]]:
    """Return the values under their places, as the arrays of a checkpoint."""
    return {str(at): plain_value(variable) for at, variable in enumerate(variables)}


def assign_arrays(variables: Sequence[Any], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Assign what `plain_arrays` returned; raise DataError if the number of values, or a shape, differs."""
    assign_values(variables, [arrays[str(at)] for at in range(len(arrays))])


def assign_values(variables: Sequence[Any], arrays: Sequence[NDArray[np.generic]]) -> None:
    """Assign each variable its value; raise DataError if their number or a shape differs."""
    if [tuple(v.shape) for v in variables] != [a.shape for a in arrays]:
        raise _another_model(variables, arrays)
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(tf.cast(array, variable.dtype))


def _another_model(variables: Sequence[Any], arrays: Sequence[NDArray[np.generic]]) -> DataError:
    """Return the error that names the first variable of another shape, or says how many values there are."""
    odd = [
        (place, variable, array)
        for place, (variable, array) in enumerate(zip(variables, arrays, strict=False))
        if tuple(variable.shape) != array.shape
    ]
    expected, got = f"the model's {len(variables)} variables", f"{len(arrays)} values"
    if odd:
        place, variable, array = odd[0]
        name = getattr(variable, "path", None) or variable.name
        expected += f", of which number {place} is {name} with shape {tuple(variable.shape)}"
        got += f", of which number {place} has shape {array.shape}" + (
            f", and {len(odd) - 1} more have other shapes" if len(odd) > 1 else ""
        )
    return DataError(
        expected=expected, got=got, where="the checkpoint",
        remedy="Train the same model with the same optimizer, or use another folder.",
    )  # fmt: skip
