"""Logarithmic mel bands of sound, by any of the conventions, a batch at once.

Rules: each row counts only up to its own length; after that, and in masked rows, bands are zero. Numbers are float32
whatever the model computes in, and within 1e-4 of the bands that the loaders' `logmel` makes of the same sound.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from shared.audio.conventions import CONVENTIONS, EMPHASIS, OWN
from shared.audio.features import LogMelSettings, mel_frames
from trainer_client.layers.table_layer import TableLayer

__all__ = ["LogMel"]

_FULL_SCALE = 2**15


@keras.saving.register_keras_serializable(package="stoker")
class LogMel(TableLayer):
    """Layer that turns sound into logarithmic mel bands, without weights of its own.

    Args:
        name: The name of the layer.
        dtype: As for any Keras layer; bands are float32 whatever it says.
        **table: Settings of the loaders' `logmel`, such as `rate`, `bands` and `convention`.

    Raises:
        SettingsError: A setting is unknown or impossible.

    Example:
        >>> import tensorflow as tf
        >>> from trainer_client.layers import LogMel
        >>> bands, frames = LogMel(rate=8000, bands=40)(tf.zeros([2, 1600]), tf.constant([1600, 0]))
        >>> bands.shape[2], int(frames[1])
        (40, 0)
    """

    def __init__(self, *, name: str | None = None, dtype: Any = None, **table: Any) -> None:
        super().__init__(LogMelSettings, table, name, dtype)
        settings: LogMelSettings = self.settings
        self._convention = CONVENTIONS[settings.convention] if settings.convention else OWN
        self._frames = frames = mel_frames(settings, self._convention)
        self._taper = self._convention.taper(frames.window).astype(np.float32)
        scale = np.float32(_FULL_SCALE if self._convention.like_kaldi else 1)
        # Kaldi computes on the scale of 16 bits: scaling the filters by its square saves scaling the sound.
        self._filters = self._convention.filters(frames.fft, settings.rate, settings.bands, frames.edges_hz) * scale**2

    def call(self, audio: Any, audio_length: Any) -> tuple[Any, Any]:
        """Return the bands, and the number of frames of each row.

        Args:
            audio: Sound `[rows, samples]`, float32 or int16.
            audio_length: How many samples each row has; 0 for a masked row.

        Returns:
            Bands `[rows, frames, bands]`, zero behind each row's own frames, and how many those are.
        """
        length = tf.cast(audio_length, tf.int32)
        sound = self._extended(_as_floats(audio), length)
        bands = self._logarithms(self._energies(sound))
        frames = self._frames_of(length)
        own = tf.sequence_mask(frames, tf.shape(bands)[1])[:, :, tf.newaxis]
        return tf.where(own, self._in_range(bands, own), 0.0), frames

    def _frames_of(self, length: Any) -> Any:
        """Return the number of frames of each row; 0 if it is empty, else at least 1."""
        frames = self._frames
        spare = tf.maximum(length + 2 * frames.margin - frames.window, 0)
        return tf.where(length > 0, 1 + spare // frames.hop, 0)

    def _extended(self, sound: Any, length: Any) -> Any:
        """Return each row followed by silence, at least for a frame, and with the convention's padding around it."""
        frames = self._frames
        sound = tf.where(tf.sequence_mask(length, tf.shape(sound)[1]), sound, 0.0)
        if self._convention.padding == "reflect":
            sound = _mirrored(sound, length, frames.margin)
        else:
            sound = tf.pad(sound, [[0, 0], [frames.margin, frames.margin]])
        return tf.pad(sound, [[0, 0], [0, tf.maximum(frames.window - tf.shape(sound)[1], 0)]])

    def _energies(self, sound: Any) -> Any:
        """Return the mel energies of each frame, `[rows, frames, bands]`, as Kaldi's if the convention is like it."""
        frames = self._frames
        windows = tf.signal.frame(sound, frames.window, frames.hop)
        if self._convention.like_kaldi:
            windows = self._without_mean(windows, sound)
        spectrum = tf.signal.rfft(windows * self._taper, [frames.fft])
        return tf.matmul(tf.square(tf.math.real(spectrum)) + tf.square(tf.math.imag(spectrum)), self._filters)

    def _without_mean(self, windows: Any, sound: Any) -> Any:
        """Return the frames of the sound, each less its mean, with pre-emphasis."""
        # Pre-emphasis is linear, so it may be applied to the whole sound, and the mean of a frame times 1 - EMPHASIS be
        # subtracted afterwards. Only a frame's first sample comes out otherwise, and the taper is zero there.
        raised = sound - EMPHASIS * tf.pad(sound, [[0, 0], [1, 0]])[:, :-1]
        means = tf.reduce_mean(windows, axis=-1, keepdims=True)
        return tf.signal.frame(raised, self._frames.window, self._frames.hop) - (1 - EMPHASIS) * means

    def _logarithms(self, energies: Any) -> Any:
        """Return logarithms of energies, bounded below, in the convention's unit."""
        logarithms = tf.math.log(tf.maximum(energies, self._convention.floor))
        return logarithms * np.float32(10 / np.log(10)) if self._convention.decibels else logarithms

    def _in_range(self, bands: Any, own: Any) -> Any:
        """Return the bands, none further below its row's maximum than the convention allows, if it has such a limit."""
        if not self._convention.range_db:
            return bands
        loudest = tf.reduce_max(tf.where(own, bands, bands.dtype.min), axis=(1, 2), keepdims=True)
        return tf.maximum(bands, loudest - self._convention.range_db)


def _as_floats(audio: Any) -> Any:
    """Return the sound as float32 on the scale from -1 to 1, as loaders have it; int16 is divided by 2**15."""
    audio = tf.convert_to_tensor(audio)
    sound = tf.cast(audio, tf.float32)
    return sound / _FULL_SCALE if audio.dtype == tf.int16 else sound


def _mirrored(sound: Any, length: Any, margin: int) -> Any:
    """Return each row with `margin` samples before and after it, mirrored at its own first and last sample."""
    size = tf.shape(sound)[1]
    # Reflection is periodic: from the first sample to the last and back, without repeating either.
    back_and_forth = tf.maximum(2 * (length - 1), 1)[:, tf.newaxis]
    place = (tf.range(size + 2 * margin) - margin) % back_and_forth
    return tf.gather(tf.pad(sound, [[0, 0], [0, 1]]), tf.minimum(place, back_and_forth - place), batch_dims=1)
