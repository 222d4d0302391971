"""The recogniser in JAX; `jax.jit` compiles a step once for each of the stream's shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import trainer_client.jax

CHANNELS, LABELS = 64, 11  # the blank is 0, the alphabet's characters count from 1
STRIDES = (2, 2, 1, 1)  # two convolutions halve the frames, two look further


def initial(key, bands=40):
    *keys, last = jax.random.split(key, 5)
    shapes = [(5, size, CHANNELS) for size in (bands, CHANNELS, CHANNELS, CHANNELS)]
    weights = [jax.nn.initializers.he_normal()(*pair) for pair in zip(keys, shapes, strict=True)]
    return weights, jax.nn.initializers.glorot_normal()(last, (CHANNELS, LABELS))


def logits_of(parameters, audio):
    weights, labels = parameters
    x = (audio + 8) / 6  # logarithms of energies, to about -1 to 2
    for weight, stride in zip(weights, STRIDES, strict=True):
        x = jax.lax.conv_general_dilated(x, weight, (stride,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
        x = jax.nn.standardize(jax.nn.relu(x))
    return x @ labels


def mean_loss(parameters, batch):
    """Over rows that hold a sample."""
    logits, text, weight = logits_of(parameters, batch["audio"]), batch["text"], batch["weight"]
    no_frame = jnp.arange(logits.shape[1]) >= -(-batch["audio_length"][:, None] // 4)
    no_character = jnp.arange(text.shape[1]) >= batch["text_length"][:, None]
    losses = optax.ctc_loss(logits, no_frame.astype(float), text, no_character.astype(float))
    return jnp.sum(losses * weight) / jnp.maximum(weight.sum(), 1)


@jax.jit
def train_step(parameters, state, batch):
    loss, gradients = jax.value_and_grad(mean_loss)(parameters, batch)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(parameters, updates), state, loss


def arrays_of(batch):
    return {key: batch[key] for key in ("audio", "audio_length", "text", "text_length", "weight")}


train = trainer_client.connect("tcp://127.0.0.1:7400", stream="train")
dev = trainer_client.connect("tcp://127.0.0.1:7400", stream="dev")
data, dev_data = trainer_client.jax.FeedArrays(train), trainer_client.jax.FeedArrays(dev)

optimizer = optax.chain(optax.clip_by_global_norm(5.0), optax.adam(2e-3))
parameters = initial(jax.random.key(7))
state = optimizer.init(parameters)
judge = jax.jit(mean_loss)
while train.epoch < 10:
    losses = []
    for batch in data:
        parameters, state, loss = train_step(parameters, state, arrays_of(batch))
        losses.append(loss)
    judged = [judge(parameters, arrays_of(batch)) for batch in dev_data]
    print(f"epoch {train.epoch}: loss {np.mean(losses):.2f}, dev loss {np.mean(judged):.2f}", flush=True)
