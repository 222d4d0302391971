"""Numbers for TensorBoard, which need not be installed here.

Rules: each call writes a new file and closes it, so that nothing is lost if the process is killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["write_summaries"]


def write_summaries(folder: Path, step: int, values: Mapping[str, float]) -> None:
    """Write each value under its name, at this step."""
    scalars = tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")  # as TensorBoard knows them
    metadata = tf.compat.v1.SummaryMetadata(plugin_data=scalars)
    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default(step):
        for name, value in values.items():
            tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)
    writer.close()
