"""Tiny models that are lent again: they train as new ones do, however the test before has ended."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import tiny_models
from tests.support.fake_feed import FakeFeed
from tests.support.tiny_models import FORM, StopAfter, Stopped, tiny_model

from trainer_client.training.checkpoints.feed_checkpoint import FeedCheckpoint  # isort: skip - after the devices are set


def trained(model, folder=None, stop_after=0):
    feed = FakeFeed(epochs=(5, 3))
    callbacks = [FeedCheckpoint(feed, folder)] if folder else []
    model.fit(feed.dataset(**FORM), epochs=2, verbose=0, callbacks=[*callbacks, StopAfter(stop_after)])
    return [one.numpy() for one in (*model.variables, *model.optimizer.variables)], model.seen


def test_a_lent_model_trains_as_a_new_one(tmp_path):
    want, seen = trained(tiny_model(new=True))
    model = tiny_model()
    with pytest.raises(Stopped):
        trained(model, tmp_path, stop_after=3)
    tiny_models.take_back()
    assert tiny_model() is model
    got, seen_again = trained(model)
    assert seen_again == seen
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)
