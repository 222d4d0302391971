"""The model of `trainer-client train --model recogniser`: log-mel bands to digits, by CTC."""

import itertools

import keras
import tensorflow as tf
from trainer_client.training.losses import CTC, blank_after


class Recogniser(keras.Model):
    """Two convolutions that halve the frames, two that look further, and a label for each frame that is left."""

    def __init__(self, channels):
        super().__init__()
        self.scale = keras.layers.Rescaling(1 / 6, offset=8 / 6)  # logarithms of energies, to about -1 to 2
        self.convolutions = keras.Sequential()
        for stride in (2, 2, 1, 1):
            self.convolutions.add(keras.layers.Conv1D(channels, 5, stride, "same", activation="relu"))
            self.convolutions.add(keras.layers.LayerNormalization())
        self.labels = keras.layers.Dense(11)  # the blank is 0, the alphabet's characters count from 1

    def call(self, inputs):
        audio, frames = inputs
        return blank_after(self.labels(self.convolutions(self.scale(audio))), -(-frames // 4))


def model(channels=64):
    return Recogniser(channels)


loss = CTC()


def optimizer(rate=2e-3):
    return keras.optimizers.Adam(rate, clipnorm=5.0)


feed_keys = {"inputs": ("audio", "audio_length"), "targets": "text", "weights": "weight"}


def edits(text, logits):
    """How many insertions, deletions and substitutions make what was heard into what was said, for each row."""
    frames = tf.fill(tf.shape(logits)[:1], tf.shape(logits)[1])
    (heard,), _ = tf.nn.ctc_greedy_decoder(tf.transpose(logits, (1, 0, 2)), frames, blank_index=0)
    said = tf.sparse.from_dense(tf.cast(text, tf.int64))
    return tf.reshape(tf.edit_distance(heard, said, normalize=False), (-1,))


def eval_metrics():
    return [keras.metrics.MeanMetricWrapper(edits, name="edits")]


def prediction_processor(rows):
    """Print what was heard in each recording: labels that follow each other are one, and blanks are none."""
    for tag, logits in zip(rows["tag"], rows["output"], strict=True):
        labels = [0, *logits.argmax(-1).tolist()]
        heard = [label - 1 for before, label in itertools.pairwise(labels) if label not in (0, before)]
        print(f"{tag}: {''.join(map(str, heard))}")
