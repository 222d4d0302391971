"""A model of sessions whose table of items is on parameter servers, and in no worker."""

import keras
from trainer_client.layers import ServedEmbedding


class Mean(keras.layers.Layer):
    """The mean over the items of each session; a row without a sample has none, and would divide 0 by 0."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def compute_mask(self, rows, mask=None):
        """Return None: a session has one mean, so nothing is masked from here on."""

    def call(self, rows, mask=None):
        counts = keras.ops.cast(mask, rows.dtype)[..., None]
        return keras.ops.sum(rows * counts, axis=1) / keras.ops.maximum(keras.ops.sum(counts, axis=1), 1)


def model():
    items = keras.Input((None,), dtype="int64")
    rows = ServedEmbedding("items", 16, mask_zero=True)(items)  # no number of rows: any 64-bit integer is an item
    return keras.Model(items, keras.layers.Dense(1, activation="sigmoid")(Mean()(rows)))


loss = keras.losses.BinaryCrossentropy()


def optimizer():
    return keras.optimizers.Adagrad(0.3)


def eval_metrics():
    return [keras.metrics.BinaryAccuracy(name="accuracy")]


feed_keys = {"inputs": "items", "targets": "bought", "weights": "weight"}
