"""Trains until three epochs in a row were no better on recordings that were held out."""

import keras
import trainer_client
from trainer_client.training.losses import RowLoss

keras.utils.set_random_seed(7)
train = trainer_client.connect("tcp://127.0.0.1:7400", stream="train")
dev = trainer_client.connect("tcp://127.0.0.1:7400", stream="dev")

model = keras.Sequential(
    [
        keras.Input((None, 40)),  # frames of 40 bands
        keras.layers.Conv1D(48, 5, strides=2, activation="relu"),
        keras.layers.LayerNormalization(),
        keras.layers.Conv1D(48, 5, strides=2, activation="relu"),
        keras.layers.GlobalMaxPooling1D(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(5, activation="softmax"),
    ]
)
model.compile(
    keras.optimizers.Adam(3e-3),
    RowLoss(keras.losses.sparse_categorical_crossentropy),  # a mean over rows that hold a sample
    weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
)
stop = trainer_client.EarlyStop(trainer_client.NoProgress(3))  # of val_loss
model.fit(
    train.dataset(inputs="audio", targets="label", weights="weight"),
    validation_data=dev.dataset(inputs="audio", targets="label", weights="weight"),
    epochs=60,
    callbacks=[trainer_client.FeedCheckpoint(train, "checkpoints", early_stop=stop)],
    verbose=2,
)
print("stopped:", stop.reason)
