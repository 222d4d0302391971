"""A language model of characters, in a loop of one's own: sentences share rows, and none sees its neighbours."""

import keras
import numpy as np
import tensorflow as tf
import trainer_client
from keras import layers, ops

ALPHABET = "abcdefghijklmnopqrstuvwxyz "  # as in the job file; characters count from 1
LONGEST = 96  # of a row, as in the job file


def language_model(width=64, heads=4, blocks=2):
    text, segment, position = (keras.Input((None,), dtype="int32") for _ in range(3))
    same_sentence = ops.equal(segment[:, :, None], segment[:, None, :])
    x = layers.Embedding(len(ALPHABET) + 1, width)(text) + layers.Embedding(LONGEST, width)(position)
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x += layers.MultiHeadAttention(heads, width // heads)(y, y, attention_mask=same_sentence, use_causal_mask=True)
        y = layers.LayerNormalization()(x)
        x += layers.Dense(width)(layers.Dense(4 * width, "gelu")(y))
    return keras.Model((text, segment, position), layers.Dense(len(ALPHABET) + 1)(layers.LayerNormalization()(x)))


def mean_loss(text, segment, position):
    """Over all characters that follow another one of their sentence."""
    logits = model((text, segment, position))[:, :-1]
    losses = keras.losses.sparse_categorical_crossentropy(text[:, 1:], logits, from_logits=True)
    return tf.reduce_mean(losses[(segment[:, 1:] == segment[:, :-1]) & (segment[:, 1:] > 0)])


@tf.function
def train_step(*arrays):
    with tf.GradientTape() as tape:
        loss = mean_loss(*arrays)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


def arrays_of(batch):
    return tuple(tf.constant(batch[key]) for key in ("text", "text_segment", "text_position"))


def continued(text, count=40):
    for _ in range(count):
        ids = np.array([[ALPHABET.index(character) + 1 for character in text]])
        logits = model((ids, np.ones_like(ids), np.arange(len(text))[np.newaxis]))
        text += ALPHABET[np.argmax(logits[0, -1, 1:])]
    return text


keras.utils.set_random_seed(7)
model = language_model()
optimizer = keras.optimizers.Adam(3e-3, clipnorm=1.0)
train = trainer_client.connect("tcp://127.0.0.1:7400", stream="train")
dev = trainer_client.connect("tcp://127.0.0.1:7400", stream="dev")
while train.epoch < 5:
    losses = [train_step(*arrays_of(batch)) for batch in train]
    judged = [mean_loss(*arrays_of(batch)) for batch in dev]
    print(f"epoch {train.epoch}: {len(losses)} steps, loss {np.mean(losses):.3f}, dev loss {np.mean(judged):.3f}")
print(continued("the small dog"))
