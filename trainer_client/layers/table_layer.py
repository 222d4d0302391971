"""Base of layers that take the settings of a job file's table.

Rules: unknown and impossible settings are refused as in job files; a saved model keeps them.
"""

from __future__ import annotations

from typing import Any

import keras

from shared.settings.tables import read_table

__all__ = ["TableLayer"]


class TableLayer(keras.layers.Layer):  # type: ignore[misc] # Keras has no types
    """Layer without weights that takes the settings of a table of the job file.

    Raise SettingsError for unknown, missing or impossible settings.
    """

    def __init__(self, settings: type, table: dict[str, Any], name: str | None, dtype: Any) -> None:
        # Under mixed precision, Keras' automatic casting would turn sound into half floats before anything is computed.
        super().__init__(name=name, dtype=dtype, trainable=False, autocast=False)
        self._table = dict(table)
        self.settings: Any = read_table(settings, table, type(self).__name__)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration for `from_config`, which makes an equal layer: name, dtype and settings."""
        config = super().get_config()
        return {"name": config["name"], "dtype": config["dtype"], **self._table}
