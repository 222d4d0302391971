"""A transformer that reads English tokens and writes German ones."""

import keras
import numpy as np
import sentencepiece
import tensorflow as tf
import trainer_client
from keras import layers, ops

LONGEST = 64  # tokens of a text


class Tokens(layers.Layer):
    """Vectors of tokens and of their places."""

    def __init__(self, count, width):
        super().__init__()
        self.tokens, self.places = layers.Embedding(count, width), layers.Embedding(LONGEST, width)

    def call(self, tokens):
        return self.tokens(tokens) + self.places(ops.arange(ops.shape(tokens)[1]))


def attended(x, memory=None, mask=None, heads=4):
    y = layers.LayerNormalization()(x)
    attention = layers.MultiHeadAttention(heads, x.shape[-1] // heads)
    return x + attention(y, y if memory is None else memory, attention_mask=mask, use_causal_mask=mask is None)


def thought(x):
    y = layers.LayerNormalization()(x)
    return x + layers.Dense(x.shape[-1])(layers.Dense(4 * x.shape[-1], "relu")(y))


def translator(english, german, width=64, blocks=1):
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    own = ops.not_equal(source, 0)[:, None, :]  # 0 is padding
    read, written = Tokens(english, width)(source), Tokens(german, width)(target)
    for _ in range(blocks):
        read = thought(attended(read, mask=own))
    for _ in range(blocks):
        written = thought(attended(attended(written), memory=read, mask=own))
    return keras.Model((source, target), layers.Dense(german)(layers.LayerNormalization()(written)))


def pairs(batch):
    """Source and target so far; the token that comes next; 1 where there is one."""
    target = batch["target"]
    return (batch["source"], target[:, :-1]), target[:, 1:], tf.cast(target[:, 1:] != 0, tf.float32)


def translated(text):
    source, target = np.array([english.encode(text, add_eos=True)]), [german.bos_id()]
    while target[-1] != german.eos_id() and len(target) < LONGEST:
        target.append(int(np.argmax(model((source, np.array([target])))[0, -1])))
    return german.decode(target)


keras.utils.set_random_seed(7)
english, german = (sentencepiece.SentencePieceProcessor(model_file=f"data/{name}.model") for name in ("en", "de"))
train = trainer_client.connect("tcp://127.0.0.1:7400", stream="train")
dev = trainer_client.connect("tcp://127.0.0.1:7400", stream="dev")

model = translator(len(english), len(german))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
model.compile(keras.optimizers.Adam(2e-3, clipnorm=1.0), loss, weighted_metrics=["accuracy"])
model.fit(
    train.dataset(map=pairs),
    validation_data=dev.dataset(map=pairs),
    epochs=10,
    callbacks=[trainer_client.FeedCheckpoint(train, "checkpoints")],
    verbose=2,
)
print("forty two ninety seven:", translated("forty two ninety seven"))
