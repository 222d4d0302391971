"""TensorFlow tunes none of our pipelines, and our op gives Python's arrays to it as they are."""

from __future__ import annotations

import contextlib
import gc
import itertools

import numpy as np
import pytest

from shared.wire.batch_layout import ALIGNMENT
from tests.support.fake_feed import FakeFeed
from tests.support.two_devices import mirrored

import tensorflow as tf  # isort: skip - after the devices are set

from trainer_client.tf.dataset import copies_batches  # isort: skip
from trainer_client.tf.private_api import call_python, untune_devices, untuned  # isort: skip


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


# --- the op that calls Python ---


def aligned(values):
    raw = np.zeros(values.nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    made = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    made[...] = values
    return made


def dataset_of(function, dtypes=(tf.int32, tf.float32)):
    return tf.data.Dataset.range(3).map(lambda number: tuple(call_python(function, [number], dtypes)))


def test_it_gets_the_arguments_and_what_it_returns_are_the_elements():
    def halves(number):
        return [np.full((2, int(number)), 7, np.int32), np.array([number / 2], np.float32)]

    data = dataset_of(halves)
    first, second = zip(*data.as_numpy_iterator(), strict=True)
    assert [one.shape for one in first] == [(2, 0), (2, 1), (2, 2)]
    assert first[2].tolist() == [[7, 7], [7, 7]]
    assert [one.tolist() for one in second] == [[0.0], [0.5], [1.0]]


def test_an_array_is_not_copied():
    if copies_batches():
        pytest.skip("this TensorFlow copies what Python returns")
    array = aligned(np.arange(1000, dtype=np.int32))
    (tensor,) = next(iter(dataset_of(lambda _: [array], (tf.int32,))))
    assert np.asarray(memoryview(tensor)).ctypes.data == array.ctypes.data


def test_what_it_raises_ends_the_pass():
    def failing(_):
        raise ValueError("this one")

    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.UnknownError), match="this one"):
        next(iter(dataset_of(failing)))


def test_it_lives_as_long_as_somebody_iterates():
    def made():
        counter = itertools.count()
        return iter(dataset_of(lambda _: [np.array([next(counter)], np.int32)], (tf.int32,)))

    iterator = made()
    gc.collect()
    assert [int(one[0][0]) for one in iterator] == [0, 1, 2]
