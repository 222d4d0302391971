"""TensorFlow tunes none of our pipelines: whoever destroyed their iterators could wait a minute for that."""

from __future__ import annotations

import contextlib

import pytest

from tests.support.fake_feed import FakeFeed
from tests.support.two_devices import mirrored

import tensorflow as tf  # isort: skip - after the devices are set

from trainer_client.tf.untuned import untune_devices, untuned  # isort: skip


def tuned(dataset):
    return dataset.options().autotune.enabled is not False


def over_devices(iterator):
    """The datasets that a strategy's iterator reads, one for each device."""
    return [one._dataset for one in iterator._iterators[0]._iterator._device_iterators]


def test_a_feeds_dataset_and_what_is_derived_from_it_are_not_tuned():
    with contextlib.closing(FakeFeed(at_a_time=4)) as feed:
        data = feed.dataset(map=lambda batch: batch["audio"] * 2)
        iterator = iter(data)
        assert not tuned(data)
        assert not tuned(iterator._dataset)
        assert not tuned(data.map(lambda audio: audio).take(1).prefetch(1))


def test_users_may_have_theirs_tuned():
    options = tf.data.Options()
    options.autotune.enabled = True
    assert tuned(untuned(tf.data.Dataset.range(3)).with_options(options))


def test_nor_are_those_of_a_strategys_devices():
    with contextlib.closing(FakeFeed(replicas=2)) as feed:
        iterator = iter(feed.distributed(mirrored(), inputs="audio"))
        one, other = over_devices(iterator)
        assert not tuned(one)
        assert not tuned(other)
        assert iterator.get_next_as_optional().has_value()


def test_other_datasets_are_left_as_they_are():
    strategy = mirrored()
    with pytest.raises(ValueError, match="cut short"), untune_devices():
        raise ValueError("cut short")
    data = strategy.distribute_datasets_from_function(lambda _: tf.data.Dataset.range(4))
    assert all(tuned(one) for one in over_devices(iter(data)))
