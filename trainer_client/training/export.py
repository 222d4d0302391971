"""Export of the trained model: a `.keras` file, or a SavedModel folder that serves any number of rows of any length.

Rules: the export is there whole or not at all. It is written first into a temporary folder beside it, whose name nobody
can guess.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

__all__ = ["export_model"]


def export_model(model: Any, inputs: Any, path: Path) -> None:
    """Write the model to `path`, replacing an earlier export there.

    `inputs` are the specs of the model's inputs; padded lengths that differ between batches are None in them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        draft = Path(folder, path.name)
        if path.suffix == ".keras":
            model.save(draft)
        else:
            _save_served(model, inputs, draft)
            # A folder cannot be renamed over one that holds files.
            shutil.rmtree(path, ignore_errors=True)
        draft.replace(path)


def _save_served(model: Any, inputs: Any, folder: Path) -> None:
    archive = keras.export.ExportArchive()
    archive.track(model)
    signature = tf.nest.map_structure(lambda spec: tf.TensorSpec((None, *spec.shape[1:]), spec.dtype), inputs)
    archive.add_endpoint("serve", lambda given: model(given, training=False), input_signature=[signature])
    archive.write_out(str(folder), verbose=False)
