"""The trained model as a file: `.keras`, or a folder of a SavedModel that serves any number of rows of any length.

Rules: it is there whole or not at all.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["export_model"]


def export_model(model: Any, inputs: Any, path: Path) -> None:  # noqa: ANN401 - Keras has no types
    """Write it; `inputs` are specs of what it is called with, in which padded lengths that differ are None."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".keras":
        temporary = path.with_name(f".{path.stem}.tmp.keras")
        model.save(temporary)
        temporary.replace(path)
        return
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    archive = keras.export.ExportArchive()
    archive.track(model)
    signature = tf.nest.map_structure(lambda one: tf.TensorSpec((None, *one.shape[1:]), one.dtype), inputs)
    archive.add_endpoint("serve", lambda given: model(given, training=False), input_signature=[signature])
    archive.write_out(str(temporary), verbose=False)
    shutil.rmtree(path, ignore_errors=True)
    temporary.replace(path)
