"""A model's outputs for batches, under names, as plain arrays.

Rules: an output has a row for each row of the batch. It must not know feeds, checkpoints or files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from shared.errors import DataError
from trainer_client.tf.element_structure import ElementStructure
from trainer_client.training.checkpoints.saved_model import assign_values, plain_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Predictor"]


class Predictor:
    """A model with checkpoint values in its variables; `structure` says which arrays of a batch are its inputs."""

    def __init__(self, model: Any, structure: ElementStructure, values: Sequence[NDArray[Any]]) -> None:
        self._model = model
        self._structure = structure
        #: What to assign to the variables before the first batch, which may have to build the model; None once done.
        self._values: Sequence[NDArray[Any]] | None = values
        self._step = tf.function(self._outputs, reduce_retracing=True)

    def predict(self, arrays: Mapping[str, NDArray[Any]], rows: int) -> dict[str, NDArray[Any]]:
        """Return the model's outputs for a batch, by name; strings are bytes, and dtypes that NumPy lacks float32.

        The first call builds the model, if it is not built, and assigns its variables. Raise DataError if their values
        do not fit the model, or if an output does not have a row for each row of the batch, and SettingsError if the
        batch lacks a key of the inputs. Errors of the model and of the user's `map` are passed on.
        """
        tensors = {key: tf.convert_to_tensor(np.asarray(array)) for key, array in arrays.items()}
        if self._values is not None:
            if not self._model.built:
                self._model(self._inputs(tensors))
            assign_values(self._model.variables, self._values)
            self._values = None
        outputs = _named(self._step(tensors), "")
        return {name: _checked(name, plain_value(output), rows) for name, output in outputs}

    def _outputs(self, tensors: Mapping[str, Any]) -> Any:
        return self._model(self._inputs(tensors), training=False)

    def _inputs(self, tensors: Mapping[str, Any]) -> Any:
        inputs, own_map = self._structure.inputs, self._structure.map
        element = ElementStructure(inputs=inputs).of(tensors)  # without targets and weights
        if own_map is not None:
            element = own_map(element)
        return keras.utils.unpack_x_y_sample_weight(element)[0]


def _named(outputs: Any, name: str) -> list[tuple[str, Any]]:
    """Return pairs of name and tensor: its path, joined by underscores, in a list `output_0`; a single one is `output`.

    Without outputs there are none.
    """
    parts: Iterable[tuple[Any, Any]]
    if isinstance(outputs, Mapping):
        parts = outputs.items()
    elif isinstance(outputs, tuple | list):
        name, parts = name or "output", enumerate(outputs)
    else:
        return [(name or "output", outputs)]
    return [pair for part, value in parts for pair in _named(value, f"{name}_{part}" if name else str(part))]


def _checked(name: str, output: NDArray[Any], rows: int) -> NDArray[Any]:
    if output.ndim < 1 or len(output) != rows:
        raise DataError(
            expected=f"a row for each of the batch's {rows} rows", got=f"shape {output.shape}", where=f"output {name}",
            remedy="Predict with a model whose outputs keep the rows of its inputs apart.",
        )  # fmt: skip
    return output.astype("S") if output.dtype == object else output  # TensorFlow's strings
