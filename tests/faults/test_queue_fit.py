"""`fit` over a stream in queue mode, killed between checkpoints: each batch counts once in the committed model."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.forked import start_code
from tests.support.loaders import ask, running, write_job
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

SAMPLES = 60
EPOCHS = 3

#: Its model is how often it was trained on each sample, and TensorFlow takes batches ahead of it.
_TRAINER = """
import sys
import keras
import tensorflow as tf
import trainer_client

class Counting(keras.Model):
    def __init__(self):
        super().__init__()
        self.counts = self.add_weight(shape=(int(sys.argv[3]),), dtype="int32", trainable=False, initializer="zeros")
    def call(self, tags):
        return tags
    def train_step(self, data):
        tags, _, weights = data
        rows = tf.boolean_mask(tags, weights != 0)
        self.counts.assign(self.counts + tf.math.bincount(tf.cast(rows, tf.int32), minlength=int(sys.argv[3])))
        return {"loss": 0.0}

class Telling(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("step", flush=True)

epochs = int(sys.argv[4])
with trainer_client.connect(sys.argv[1], epochs=epochs) as feed:
    model = Counting()
    model.compile()
    data = feed.dataset(map=lambda batch: (batch["tag"], batch["tag"], batch["weight"]))
    checkpoint = trainer_client.FeedCheckpoint(feed, sys.argv[2], every=3)
    model.fit(data, epochs=epochs, verbose=0, callbacks=[checkpoint, Telling()])
"""


def _start(endpoint, folder):
    return start_code(_TRAINER, endpoint, str(folder), str(SAMPLES), str(EPOCHS), tensorflow=True)


@pytest.mark.fault(12)
@pytest.mark.fault(17)
@pytest.mark.timeout(300)
def test_killed_between_checkpoints_each_sample_counts_once_in_the_committed_model(tmp_path):
    job = write_job(tmp_path, samples=SAMPLES, budget="2 s", job='heartbeat_timeout = "2 s"', stream='mode = "queue"')
    with running(job, workers=1) as loaders:
        for steps in (2, 8):
            with _start(loaders.endpoint, tmp_path / "model") as trainer:
                for _ in range(steps):
                    assert trainer.stdout.readline() == "step\n"
                if steps == 8:
                    loaders.coordinator().kill()
                trainer.kill()
        with _start(loaders.endpoint, tmp_path / "model") as trainer:
            _, errors = trainer.communicate(timeout=200)
            assert trainer.returncode == 0, errors
        table = ask(loaders.endpoint)["streams"]["train"]["queue"]["train"]
    arrays, record = CheckpointFolder(tmp_path / "model", 1).read_last()
    counts = next(array for array in arrays.values() if array.shape == (SAMPLES,))
    np.testing.assert_array_equal(counts, np.full(SAMPLES, EPOCHS))
    assert (record["epoch"], table["epoch"], table["dead"]) == (EPOCHS, EPOCHS, 0)
