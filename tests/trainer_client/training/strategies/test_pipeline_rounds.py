"""A pipeline's elements, of any shapes, under several replicas: as in a plain run over the same rows, none left."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest

import tests.support.two_devices  # before TensorFlow is used
from shared.errors import EndedError, LostError, SettingsError
from shared.pipelines.element_values import ElementValue, fields_of_element
from shared.wire.batch_layout import BucketShape
from tests.support.fake_feed import FakeFeed
from tests.support.lending import Lending

import keras  # isort: skip - after the devices are set
import tensorflow as tf  # isort: skip

from tests.support.strategy_runs import Losses, adam, saved  # isort: skip
from trainer_client import Until  # isort: skip
from trainer_client.core.upcoming import Position  # isort: skip
from trainer_client.training.strategies.asynchronous import Asynchronous  # isort: skip
from trainer_client.training.strategies.central import Central  # isort: skip
from trainer_client.training.strategies.mirrored import Mirrored  # isort: skip
from trainer_client.training.strategies.single import Single  # isort: skip
from trainer_client.training.loop.training_loop import LoopSettings, TrainingData, TrainingLoop  # isort: skip

TOWERS = ("CPU:0", "CPU:1")
#: Rounds of each epoch.
ROUNDS = (5, 4)
#: How many rows a batch may have: XLA compiles the step for each, on each device.
ROWS = (0, 2, 6)
MOST = max(ROWS)


def feed_of(replicas, batches):
    """Each element holds so many of a plain run's batches, and how many rows of each count; some have none."""
    values = ElementValue("level", "float32", (batches, MOST, 3)), ElementValue("rows", "int64", (batches,))
    feed = FakeFeed(
        epochs=ROUNDS, replicas=replicas, producers=2, fields=fields_of_element(values),
        shapes=(BucketShape(rows=1, lengths={}),),
    )  # fmt: skip

    def fill(arrays, epoch, number):
        for at in range(batches):
            generator = np.random.default_rng((3, epoch, number * batches + at))
            arrays["level:values"][0, at] = generator.normal(size=(MOST, 3))
            arrays["rows:values"][0, at] = generator.choice(ROWS) if (number * batches + at) % 4 else 0

    feed.session.fill = fill
    return feed


def rows_of(element):
    """All rows of an element, one behind the other; their targets and weights."""
    keep = tf.sequence_mask(element["rows"], MOST)
    level = tf.boolean_mask(element["level"], keep)
    return level, tf.reduce_sum(level, 1), tf.abs(level[:, 0])


def dataset_pipeline(context, *, below=lambda data: data):
    data = context.map_producer_to_consumer(tf.data.Dataset.range(0).map(lambda one: {"one": one}))
    return below(data).map(rows_of)


def compiled():
    model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    model.compile(adam(), lambda targets, outputs: tf.square(targets - outputs[:, 0]))
    return model


@cache
def lent(placement):
    return Lending(Single() if placement is Single else placement(TOWERS))


def run(folder, placement, feed, *, function=dataset_pipeline, steps=8, xla=False):
    keras.utils.set_random_seed(3)
    with placement.scope():
        model = placement.model(compiled) if isinstance(placement, Lending) else compiled()
    data = TrainingData(feed=feed, elements=placement.pipeline(feed, function), for_each_shape=None)
    losses = Losses()
    settings = LoopSettings(until=Until(steps=steps), checkpoints=folder, xla=xla)
    loop = TrainingLoop(model, data, placement, settings, [losses])
    loop.run()
    assert loop._session.accounts.counts.retraces == 0
    return losses.seen


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    losses = run(folder, lent(Single), feed_of(1, batches=2))
    return losses, *saved(folder)


@pytest.mark.parametrize(
    ("placement", "xla"), [(Mirrored, False), (Central, False), (Mirrored, True)], ids=["mirrored", "central", "XLA"]
)
def test_replicas_take_elements_of_unlike_shapes_and_of_no_rows_and_come_to_what_a_plain_run_comes_to(
    tmp_path, plain, placement, xla
):
    losses, arrays, record = plain
    made = Lending(placement(TOWERS)) if xla else lent(placement)  # the step of XLA is another
    early = run(tmp_path, made, feed_of(2, batches=1), steps=3, xla=xla)
    late = run(tmp_path, made, feed_of(2, batches=1), xla=xla)
    np.testing.assert_allclose([*early, *late], losses, rtol=1e-5, atol=1e-7)
    others, told = saved(tmp_path)
    for one, other in zip(arrays, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert (told["epoch"], told["step"]) == (record["epoch"], record["step"]) == (1, 8)


def test_towers_that_wait_for_none_take_them_too(tmp_path):
    losses = run(tmp_path, Asynchronous(TOWERS), feed_of(2, batches=1), steps=18)
    assert np.mean(losses[-4:]) < np.mean(losses[:4])


def each_twice(data):
    return data.flat_map(lambda one: tf.data.Dataset.from_tensors(one).repeat(2))


@pytest.mark.parametrize(("placement", "replicas"), [(Single, 1), (Central, 2)])
@pytest.mark.parametrize(
    ("below", "got"),
    [
        (lambda data: data.take(3), "3"),
        (lambda data: data.repeat(2), "more"),
        (lambda data: data.repeat(), "more"),
        (each_twice, "more"),
    ],
    ids=["fewer", "repeated", "endless", "each twice"],
)
def test_training_refuses_elements_that_are_not_one_for_each_batch(tmp_path, placement, replicas, below, got):
    feed = feed_of(replicas, batches=1)
    expected = f"below the marker: expected an element for each of the {ROUNDS[0] * replicas} batches"
    with pytest.raises(SettingsError, match=f"{expected} that are left of the epoch, got {got}"):
        run(tmp_path, lent(placement), feed, function=partial(dataset_pipeline, below=below))
    assert feed.session.cursor.at.epoch == 0, "before the epoch counts as trained on"


@pytest.mark.parametrize(("placement", "replicas"), [(Single, 1), (Central, 2)])
def test_a_pipeline_that_yields_the_feeds_own_elements_counts_what_was_trained_on_and_no_more(placement, replicas):
    feed = feed_of(replicas, batches=1)
    feed.session.cursor.count(ROUNDS[0] - 1)
    elements = lent(placement).pipeline(
        feed, lambda context: context.map_producer_to_consumer(tf.data.Dataset.range(0))
    )
    assert len(list(elements)) == 1
    assert feed.session.cursor.at == Position(0, (ROUNDS[0] - 1) * replicas, replicas)


def stopping(error, replicas):
    """A feed that is stopped by this after three rounds."""
    feed = feed_of(replicas, batches=1)
    fill = feed.session.fill

    def stopped(arrays, epoch, number):
        if number == 3 * replicas:
            feed.session.error = error
            raise error
        fill(arrays, epoch, number)

    feed.session.fill = stopped
    return feed


@pytest.mark.parametrize(("placement", "replicas"), [(Single, 1), (Central, 2)])
def test_what_stops_the_feed_comes_out_of_a_pipeline_as_it_is(tmp_path, placement, replicas):
    said = {"expected": "a worker", "got": "none", "where": "the job", "remedy": "Start one."}
    with pytest.raises(LostError, match=r"the job: expected a worker, got none\."):
        run(tmp_path / "lost", lent(placement), stopping(LostError(**said), replicas))
    run(tmp_path / "ended", lent(placement), stopping(EndedError(**said), replicas))
    assert saved(tmp_path / "ended")[1]["step"] == 3, "what was trained on is saved"
