"""A model of sessions whose table of items is on parameter servers, and in no worker."""

import keras

from trainer_client.layers import ServedEmbedding


def model():
    items = keras.Input((None,), dtype="int64")
    rows = ServedEmbedding("items", 16, mask_zero=True)(items)  # no number of rows: any 64-bit integer is an item
    mean = keras.layers.GlobalAveragePooling1D()(rows)  # over what the mask lets through, which is no padding
    return keras.Model(items, keras.layers.Dense(1, activation="sigmoid")(mean))


loss = keras.losses.BinaryCrossentropy()


def optimizer():
    return keras.optimizers.Adagrad(0.3)


def eval_metrics():
    return [keras.metrics.BinaryAccuracy(name="accuracy")]


feed_keys = {"inputs": "items", "targets": "bought", "weights": "weight"}
