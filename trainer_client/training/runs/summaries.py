"""Numbers for TensorBoard, which need not be installed here.

Rules: what is written is on its way to the disk when the call returns, so nothing is lost if the process is killed.
Files have names that nobody can guess: TensorFlow would follow a link that is planted there.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Summaries", "write_summaries"]


class Summaries:
    """A summaries file in a folder, until `close`."""

    def __init__(self, folder: Path) -> None:
        scalars = tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")  # as TensorBoard knows them
        self._metadata = tf.compat.v1.SummaryMetadata(plugin_data=scalars)
        self._writer = tf.summary.create_file_writer(str(folder), filename_suffix=f".{secrets.token_hex(8)}.v2")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write each value under its name, at this step, and flush the file; errors of TensorFlow pass through."""
        with self._writer.as_default(step):
            for name, value in values.items():
                tf.summary.write(name, tf.constant(value, tf.float32), metadata=self._metadata)
        self._writer.flush()

    def close(self) -> None:
        """Close the file; no more can be written then."""
        self._writer.close()


def write_summaries(folder: Path, step: int, values: Mapping[str, float]) -> None:
    """Write these values, at this step, into a new file of their own in the folder; errors of TensorFlow pass."""
    summaries = Summaries(folder)
    summaries.write(step, values)
    summaries.close()
