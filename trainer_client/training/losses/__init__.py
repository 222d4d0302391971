"""Losses whose value and gradient masked rows do not change, even if a masked row's own loss is not finite.

Rules: a mean divides by the sum of weights over all replicas of the step, so that a rank with fewer rows (or none)
counts only for its rows. What a masked row computes is replaced before it can become infinite, because infinity times
zero is NaN, in a gradient too. Under a strategy, a mean is one replica's share, and the shares add up to the mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from trainer_client.training.losses.replica_means import replica_of_several

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CTC", "RowLoss", "blank_after", "ctc_per_row", "masked_mean", "valid_rows"]

#: A logit so large that it leaves no probability to the others.
_SURELY = 1e9


def valid_rows(values: Any, weight: Any) -> Any:
    """Return the values with masked rows replaced by zeros, into which no gradient flows.

    Args:
        values: A tensor with a row for each row of the batch.
        weight: The weight of each row; 0 masks it.

    Returns:
        A tensor of the same shape.

    Example:
        >>> import tensorflow as tf
        >>> from trainer_client.training.losses import valid_rows
        >>> valid_rows(tf.constant([1.0, float("nan")]), tf.constant([1.0, 0.0])).numpy().tolist()
        [1.0, 0.0]
    """
    keep = tf.reshape(weight != 0, tf.concat([tf.shape(weight), tf.ones(tf.rank(values) - 1, tf.int32)], 0))
    return tf.where(keep, values, tf.zeros_like(values))


def masked_mean(per_row: Any, weight: Any) -> Any:
    """Return the weighted mean of a value per row, or 0 if no row is valid anywhere.

    With several replicas this is one replica's share of the mean, and the shares add up to it.

    Args:
        per_row: A value for each row.
        weight: The weight of each row; 0 masks it.

    Returns:
        A scalar tensor.

    Example:
        >>> import tensorflow as tf
        >>> from trainer_client.training.losses import masked_mean
        >>> float(masked_mean(tf.constant([1.0, 3.0, float("inf")]), tf.constant([1.0, 1.0, 0.0])))
        2.0
    """
    weight = tf.cast(weight, per_row.dtype)
    total = tf.reduce_sum(weight)
    # Only the divisor is summed: each replica's part of the sum stays here, and is its share of the mean.
    replica = replica_of_several()
    if replica is not None:
        total = replica.all_reduce(tf.distribute.ReduceOp.SUM, total)
    return tf.math.divide_no_nan(tf.reduce_sum(weight * valid_rows(per_row, weight)), total)


class RowLoss(keras.losses.Loss):  # type: ignore[misc] # Keras has no types
    """A loss for `compile` from a function of targets and outputs to a value per row.

    Args:
        per_row: The function, such as `keras.losses.mean_squared_error`. What it computes of a masked row counts for
            nothing, finite or not.
        name: The name of the loss.

    Example:
        >>> import keras, tensorflow as tf
        >>> from trainer_client.training.losses import RowLoss
        >>> loss = RowLoss(keras.losses.mean_squared_error)
        >>> targets, outputs = tf.constant([[1.0], [0.0]]), tf.constant([[3.0], [float("nan")]])
        >>> float(loss(targets, outputs, sample_weight=tf.constant([1.0, 0.0])))
        4.0
    """

    def __init__(self, per_row: Callable[[Any, Any], Any], name: str = "row_loss") -> None:
        super().__init__(name=name)
        self._per_row = per_row

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the masked mean over rows; without weights every row counts. Errors of the function pass through."""
        weight = tf.ones(tf.shape(y_pred)[:1]) if sample_weight is None else tf.convert_to_tensor(sample_weight)
        # Outputs of masked rows are replaced before the function sees them: infinity times zero is NaN, in the
        # gradient too, so masking its result alone would be too late.
        return masked_mean(self._per_row(y_true, valid_rows(y_pred, weight)), weight)


class CTC(RowLoss):
    """Connectionist temporal classification for `compile`.

    Targets are padded with the blank, 0, so labels count from 1; outputs are logits, through `blank_after` where rows
    differ in length.

    Args:
        name: The name of the loss.

    Example:
        >>> import tensorflow as tf
        >>> from trainer_client.training.losses import CTC
        >>> labels, logits = tf.constant([[1, 0]]), tf.zeros([1, 2, 3])
        >>> round(float(CTC()(labels, logits)), 3)
        1.099
    """

    def __init__(self, name: str = "ctc") -> None:
        super().__init__(_ctc_of_padded, name)


def _ctc_of_padded(labels: Any, logits: Any) -> Any:
    labels = tf.cast(labels, tf.int32)
    frames = tf.fill(tf.shape(logits)[:1], tf.shape(logits)[1])
    return _ctc(labels, logits, tf.math.count_nonzero(labels, axis=1, dtype=tf.int32), frames)


def ctc_per_row(labels: Any, logits: Any, label_length: Any, logit_length: Any, weight: Any) -> Any:
    """Return the CTC loss of each row; blank is 0, and masked rows have a loss of 0 and no gradient.

    Args:
        labels: The labels of each row, padded to one length.
        logits: The logits of each row, `[rows, frames, classes]`.
        label_length: How many labels each row has.
        logit_length: How many frames each row has.
        weight: The weight of each row; 0 masks it.

    Returns:
        A loss for each row.

    Example:
        >>> import tensorflow as tf
        >>> from trainer_client.training.losses import ctc_per_row
        >>> labels, lengths = tf.constant([[1], [1]]), tf.constant([1, 1])
        >>> losses = ctc_per_row(labels, tf.zeros([2, 2, 3]), lengths, 2 * lengths, tf.constant([1.0, 0.0]))
        >>> [round(float(loss), 3) for loss in losses]
        [1.099, 0.0]
    """
    valid = weight != 0
    # A masked row gets all frames and no labels: a loss that is surely finite, so its gradient has no NaN.
    frames = tf.where(valid, tf.cast(logit_length, tf.int32), tf.shape(logits)[1])
    label_length = tf.where(valid, tf.cast(label_length, tf.int32), 0)
    return valid_rows(_ctc(labels, valid_rows(logits, weight), label_length, frames), weight)


def _ctc(labels: Any, logits: Any, label_length: Any, logit_length: Any) -> Any:
    return tf.nn.ctc_loss(
        labels=_of_any_shape(tf.cast(labels, tf.int32), (None, None)),
        logits=_of_any_shape(tf.cast(logits, tf.float32), (None, None, logits.shape[-1])),
        label_length=_of_any_shape(label_length, (None,)),
        logit_length=_of_any_shape(logit_length, (None,)),
        logits_time_major=False,
        blank_index=0,
    )


def _of_any_shape(values: Any, shape: tuple[int | None, ...]) -> Any:
    """Return the same values, of sizes that TensorFlow does not know while it traces."""
    # TensorFlow names the loops of `ctc_loss` by what they compute, not by their sizes, so a second shape would find
    # the loops of the first, and print that as errors.
    return tf.compat.v1.placeholder_with_default(values, shape)


def blank_after(logits: Any, logit_length: Any) -> Any:
    """Return logits that are certainly blank past each row's length, so that only its own frames count.

    Args:
        logits: The logits of each row, `[rows, frames, classes]`.
        logit_length: How many frames of its own each row has.

    Returns:
        Logits of the same shape.

    Example:
        >>> import tensorflow as tf
        >>> from trainer_client.training.losses import blank_after
        >>> blank_after(tf.zeros([1, 2, 3]), tf.constant([1])).numpy()[0].tolist()
        [[0.0, 0.0, 0.0], [0.0, -1000000000.0, -1000000000.0]]
    """
    shape = tf.shape(logits)
    own = tf.sequence_mask(logit_length, shape[1])[:, :, tf.newaxis]
    blank = tf.one_hot(0, shape[2], on_value=0.0, off_value=-_SURELY, dtype=logits.dtype)
    return tf.where(own, logits, blank)
