"""Sound from loaders and features from a layer: the numbers of loaders' own features, and a model that learns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import trainer_client
from shared.quick_import import quick_import
from tests.support.corpora import make_corpus
from tests.support.loaders import running
from trainer_client.layers import LogMel, SpecAugment
from trainer_client.training.losses import RowLoss

with quick_import():
    import keras
    import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.loaders import Loaders

JOB = """
[job]
name = "sound"
seed = 7
listen = "tcp://127.0.0.1:*"

[streams.train]
source = "manifest"
paths = ["csv.csv"]
transforms = ["waveform"]
length = "audio"
budget = "4 s"
shapes = 3

[streams.train.waveform]
rate = 8000
dtype = "int16"

[streams.features]
source = "manifest"
paths = ["csv.csv"]
transforms = ["logmel"]
length = "audio"
budget = "4 s"
shapes = 3

[streams.features.logmel]
rate = 8000
bands = 40
"""


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    folder = tmp_path_factory.mktemp("sound")
    make_corpus(folder, samples=40, longest_s=1.0)
    (folder / "job.toml").write_text(JOB)
    with running(folder / "job.toml", workers=1) as loaders:
        yield loaders


@pytest.mark.heritage("R15")
def test_a_layer_makes_the_features_that_loaders_make(loaders: Loaders) -> None:
    with trainer_client.connect(loaders.endpoint, stream="features") as feed:
        wanted = {
            int(tag): row[:length].copy()
            for batch in feed
            for tag, row, length in zip(batch["tag"], batch["audio"], batch["audio_length"], strict=True)
            if tag >= 0
        }
    layer, seen = LogMel(rate=8000, bands=40), set()
    with trainer_client.connect(loaders.endpoint) as feed:
        for ((sound, length, tags),) in feed.dataset(inputs=("audio", "audio_length", "tag")):
            assert sound.dtype == tf.int16
            bands, frames = (tensor.numpy() for tensor in layer(sound, length))
            for tag, row, count in zip(tags.numpy().tolist(), bands, frames, strict=True):
                assert not row[count:].any()
                if tag < 0:
                    assert count == 0
                    continue
                largest = wanted[tag].max(axis=1, keepdims=True)
                high = wanted[tag] > largest + np.log(1e-6)
                assert np.abs(row[:count] - wanted[tag])[high].max() < 1e-4
                seen.add(tag)
    assert seen == set(wanted)
    assert len(seen) == 40


def test_a_model_of_sound_is_fit(loaders: Loaders) -> None:
    keras.utils.set_random_seed(1)
    sound, length = keras.Input((None,), dtype="int16"), keras.Input((), dtype="int32")
    bands, frames = LogMel(rate=8000, bands=40)(sound, length)
    outputs = keras.layers.GlobalAveragePooling1D()(SpecAugment(time_width=5)(bands, frames))
    model = keras.Model([sound, length], keras.layers.Dense(1)(outputs))
    model.compile(keras.optimizers.Adam(0.05), RowLoss(lambda wanted, made: tf.square(made[:, 0] - wanted)))
    with trainer_client.connect(loaders.endpoint) as feed:
        data = feed.dataset(inputs=("audio", "audio_length"), targets="weight", weights="weight")
        losses = model.fit(data, epochs=4, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
