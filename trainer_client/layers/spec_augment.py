"""SpecAugment for a batch of features: masks stripes in time and frequency, as loaders' `spec_augment` does.

Rules: in training only; each row draws for itself, within its own length. Stripes have the same distribution as the
loaders', but are not the same ones, because loaders draw from a sample's own generator.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from shared.audio.features import StripeSettings
from trainer_client.layers.table_layer import TableLayer

__all__ = ["SpecAugment"]


@keras.saving.register_keras_serializable(package="stoker")
class SpecAugment(TableLayer):
    """Layer that masks stripes of time and of frequency in features, in training only.

    Each row is drawn for anew, from a generator that is saved with the model.

    Args:
        name: The name of the layer.
        dtype: As for any Keras layer.
        seed: The seed of the generator. None: another one in each process.
        **table: Settings of the loaders' `spec_augment`, such as `time_width`.

    Raises:
        SettingsError: A setting is unknown or impossible.

    Example:
        >>> import tensorflow as tf
        >>> from trainer_client.layers import SpecAugment
        >>> layer, features = SpecAugment(time_width=20, fill="zero"), tf.ones([1, 50, 40])
        >>> bool(tf.reduce_all(layer(features, tf.constant([50])) == features))
        True
        >>> layer(features, tf.constant([50]), training=True).shape == features.shape
        True
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        dtype: Any = None,
        seed: int | None = None,
        **table: Any,
    ) -> None:
        super().__init__(StripeSettings, table, name, dtype)
        self._seed = seed
        self._generator = keras.random.SeedGenerator(seed)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration from which `from_config` makes an equal layer.

        Returns:
            The settings, with the seed.
        """
        return {**super().get_config(), "seed": self._seed}

    def call(self, features: Any, length: Any, training: bool = False) -> Any:  # noqa: FBT001, FBT002 - Keras'
        """Return the features with stripes masked; unchanged if not training.

        Args:
            features: Features `[rows, steps, bands]`.
            length: How many steps each row has.
            training: Whether to mask stripes.

        Returns:
            Features of the same shape, with the row's mean or zeros in stripes, by `fill`. Steps behind a row's own
            stay as they are.
        """
        if not training:
            return features
        stripes: StripeSettings = self.settings
        length = tf.cast(length, tf.int32)
        steps, bands = tf.shape(features)[1], tf.shape(features)[2]
        # float64: loaders compute the share in Python's floats, and float32 could round to another whole number.
        share = tf.cast(stripes.time_share * tf.cast(length, tf.float64), tf.int32)
        in_time = self._striped(stripes.time_stripes, tf.minimum(stripes.time_width, share), length, steps)
        widest = tf.fill(tf.shape(length), tf.minimum(stripes.band_width, bands))
        in_bands = self._striped(stripes.band_stripes, widest, tf.fill(tf.shape(length), bands), bands)
        own = tf.sequence_mask(length, steps)[:, :, tf.newaxis]
        wiped = own & (in_time[:, :, tf.newaxis] | in_bands[:, tf.newaxis, :])
        return tf.where(wiped, _mean(features, own) if stripes.fill == "mean" else tf.zeros_like(features), features)

    def _striped(self, stripes: int, most: Any, size: Any, places: Any) -> Any:
        """Return which places of each row lie in a stripe, `[rows, places]`.

        Stripes are at most `most` wide and lie within `size`.
        """
        widths = self._drawn(stripes, most[:, tf.newaxis])
        starts = self._drawn(stripes, size[:, tf.newaxis] - widths)[..., tf.newaxis]
        place = tf.range(places)
        return tf.reduce_any((starts <= place) & (place < starts + widths[..., tf.newaxis]), axis=1)

    def _drawn(self, stripes: int, most: Any) -> Any:
        """Return `stripes` whole numbers for each row, drawn from 0 to its `most`, both included."""
        shares = keras.random.uniform((tf.shape(most)[0], stripes), seed=self._generator, dtype="float32")
        drawn = tf.cast(shares * tf.cast(most + 1, tf.float32), tf.int32)
        return tf.minimum(drawn, most)  # a share next to 1 may be rounded up


def _mean(features: Any, own: Any) -> Any:
    """Return the mean of each row's own steps, `[rows, 1, 1]`; 0 for a row without steps."""
    bands = tf.cast(tf.shape(features)[2], features.dtype)
    steps = tf.reduce_sum(tf.cast(own, features.dtype), axis=(1, 2), keepdims=True)
    total = tf.reduce_sum(tf.where(own, features, tf.zeros_like(features)), axis=(1, 2), keepdims=True)
    return tf.math.divide_no_nan(total, steps * bands)
