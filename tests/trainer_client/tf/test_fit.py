"""`model.fit` over feeds: every batch once, whatever the lengths of epochs, the strategy, the steps per execution."""

from __future__ import annotations

import pytest

from shared.errors import LostError
from tests.support.fake_feed import SHAPES, FakeFeed, tag_of
from tests.support.two_devices import mirrored

import keras  # isort: skip - after the devices are set
import tensorflow as tf  # isort: skip

from tests.support.tiny_models import FORM, take_back, tiny_model  # isort: skip
from trainer_client.training.checkpoints.feed_checkpoint import FeedCheckpoint  # isort: skip

EPOCHS = (10, 12, 9)


def feed_of(strategy, epochs=EPOCHS, **more):
    replicas = 1 if strategy is None else strategy.num_replicas_in_sync
    return FakeFeed(epochs=epochs, replicas=replicas, slots=16, **more)


def data_of(feed, strategy):
    return feed.dataset(**FORM) if strategy is None else feed.distributed(strategy, **FORM)


def wanted(feed, epochs=3):
    return [tag_of(epoch, number, 0) for epoch in range(epochs) for number in range(feed.session.batches(epoch))]


class StopAt(keras.callbacks.Callback):
    """Ends the process, as far as the model can tell, once the feed has trained this far."""

    def __init__(self, feed, epoch, number):
        super().__init__()
        self.feed = feed
        self.at = (epoch, number)

    def on_train_batch_end(self, batch, logs=None):
        if (self.feed.epoch, self.feed.number) >= self.at:
            raise ZeroDivisionError


@pytest.fixture(params=[1, 2], ids=["one device", "two devices"])
def strategy(request):
    return None if request.param == 1 else mirrored()


# Two replicas with several steps an execution fail inside Keras, whatever the dataset; with a FeedCheckpoint they run.
@pytest.mark.parametrize(
    ("replicas", "steps", "epochs"),
    [(1, 1, EPOCHS), (1, 1, (2, 5, 1)), (1, 4, EPOCHS), (1, 4, (8, 8, 8)), (2, 1, (2, 5, 1))],
)
def test_without_a_callback_each_epoch_is_the_next(replicas, steps, epochs):
    strategy = mirrored() if replicas == 2 else None
    feed = feed_of(strategy, epochs)
    model = tiny_model(strategy, steps)
    model.fit(data_of(feed, strategy), epochs=3, verbose=0)
    assert sorted(model.seen) == wanted(feed)


@pytest.mark.heritage("R5")
@pytest.mark.fault(17)
@pytest.mark.parametrize(
    ("steps", "crossing"),
    [(1, {}), (4, {}), (1, {"at_a_time": 4, "shapes": SHAPES[:1]})],
    ids=["a step at a time", "four steps at a time", "four batches a crossing"],
)
def test_stopped_at_batch_6_and_resumed_each_batch_is_trained_once(strategy, steps, crossing, tmp_path):
    feed = feed_of(strategy, **crossing)
    first = tiny_model(strategy, steps)
    stop = StopAt(feed, 0, 6 * feed.session.replicas)
    with pytest.raises(ZeroDivisionError):
        first.fit(
            data_of(feed, strategy), epochs=2, verbose=0, callbacks=[FeedCheckpoint(feed, tmp_path, every=1), stop]
        )
    feed.close()
    seen = first.seen
    take_back()

    feed = feed_of(strategy, **crossing)
    data = data_of(feed, strategy)
    next(iter(data))
    second = tiny_model(strategy, steps, new=steps > 1)
    assert second.built == (steps == 1), "as a restarted process has it, in some of the cases"
    second.fit(data, epochs=2, verbose=0, callbacks=[FeedCheckpoint(feed, tmp_path, every=1)])
    assert len(seen) == (6 if steps == 1 else 8) * feed.session.replicas
    assert sorted(seen + second.seen) == wanted(feed, 2)
    assert (feed.epoch, feed.number) == (2, 0)


def test_validation_sees_the_same_epoch_each_time_and_leaves_training_alone():
    feed, validation = feed_of(None), feed_of(None, (3,), evaluation=True)
    model = tiny_model()
    data = validation.dataset(**FORM)
    before = model.evaluate(data, verbose=0)
    assert model.evaluate(data, verbose=0) == before
    model.fit(feed.dataset(**FORM), epochs=3, verbose=0, validation_data=data)
    assert model.seen == wanted(feed)
    assert set(validation.session.yielded) == {(0, 0), (0, 1), (0, 2)}


def test_take_adapt_and_looking_beforehand_change_nothing():
    feed = feed_of(None)
    data = feed.dataset(**FORM)
    list(data.take(1))
    list(data.take(99))
    keras.layers.Normalization().adapt(data.map(lambda inputs, *_: inputs["audio"]))
    next(iter(data))
    model = tiny_model()
    model.fit(data, epochs=3, verbose=0)
    assert model.seen == wanted(feed)


@pytest.mark.heritage("R9")
@pytest.mark.parametrize("with_callback", [True, False])
def test_an_error_of_the_feed_is_named_and_ends_fit(with_callback, tmp_path):
    feed = feed_of(None, fail_at=(0, 6))
    model = tiny_model()
    callbacks = [FeedCheckpoint(feed, tmp_path)] if with_callback else []
    with pytest.raises(LostError if with_callback else tf.errors.UnknownError, match="worker w1: expected an answer"):
        model.fit(feed.dataset(**FORM), epochs=3, verbose=0, callbacks=callbacks)
    assert model.seen == wanted(feed)[:6]
    assert isinstance(feed.session.error, LostError)


def test_two_slots_and_twenty_steps_in_one_execution_do_not_stall():
    feed = FakeFeed(epochs=(40,), slots=2)
    model = tiny_model(steps_per_execution=20)
    model.fit(feed.dataset(**FORM), epochs=1, verbose=0)
    assert model.seen == wanted(feed, 1)


def test_predict_gives_a_row_for_every_row():
    feed = feed_of(None, (5,), evaluation=True)
    model = tiny_model()
    outputs = model.predict(feed.dataset(inputs=FORM["inputs"]), verbose=0)
    assert outputs.shape == (4 + 2 + 4 + 2 + 4, 1)
