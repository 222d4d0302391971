"""A run whose newest checkpoint was damaged goes on at the one before it, with that one's own cursor."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

import trainer_client
from tests.support.loaders import running, write_job

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # isort: skip
import tensorflow as tf  # isort: skip

from tests.support.tiny_models import take_back, tiny_model  # isort: skip

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.loaders import Loaders


class _StopAt(keras.callbacks.Callback):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.left -= 1
        if not self.left:
            raise ZeroDivisionError


def _named(batch):
    """For the recorder, which tells a batch by its largest tag."""
    inputs = {"audio": batch["audio"], "tag": tf.reduce_max(batch["tag"], keepdims=True)}
    return inputs, batch["weight"], batch["weight"]


def _fit(loaders: Loaders, folder: Path, steps: int) -> list[int]:
    """Train one epoch, saving each step, and stop after so many; what was trained on."""
    take_back()
    model = tiny_model()
    with trainer_client.connect(loaders.endpoint) as feed:
        callbacks = [trainer_client.FeedCheckpoint(feed, folder, every=1), _StopAt(steps)]
        try:
            model.fit(feed.dataset(map=_named), epochs=1, verbose=0, callbacks=callbacks)
        except ZeroDivisionError:
            assert feed.number == steps
    return model.seen


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[10] ^= 1  # in the first header of the archive
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.fault(49)
@pytest.mark.parametrize("damage", [_flip, _cut])
def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(tmp_path, damage, caplog) -> None:
    folder = tmp_path / "checkpoints"
    with running(write_job(tmp_path, samples=250, longest_s=0.5)) as loaders:
        with trainer_client.connect(loaders.endpoint) as feed:
            want = [int(batch["tag"].max()) for batch in feed]
        first = _fit(loaders, folder, steps=4)
        newest = max(folder.iterdir())
        damage(newest)
        second = _fit(loaders, folder, steps=10**6)
    assert first[:3] + second == want  # so the fourth, which only the damaged one had, was trained on anew
    assert first[3] == want[3]
    ours = [line for line in caplog.records if line.name.startswith("stoker") and line.levelno == logging.WARNING]
    said = {line.event: line.fields["file"] for line in ours}
    assert said["checkpoint cannot be used: the one before it is tried"] == newest


@pytest.mark.fault(49)
def test_when_all_are_damaged_nothing_is_trained(tmp_path) -> None:
    folder = tmp_path / "checkpoints"
    with running(write_job(tmp_path, samples=100, longest_s=0.5)) as loaders:
        _fit(loaders, folder, steps=3)
        before = sorted(folder.iterdir())
        for path in before:
            _flip(path)
        with pytest.raises(
            trainer_client.DataError, match=r"expected a whole checkpoint, got 3 damaged .*Put one back"
        ):
            _fit(loaders, folder, steps=10**6)
    assert sorted(folder.iterdir()) == before
