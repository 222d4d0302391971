"""The op that calls Python: arrays come in as they are, errors come out, and the function lives long enough."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest
import tensorflow as tf

from shared.wire.layout import ALIGNMENT
from trainer_client.tf.dataset import copies_batches
from trainer_client.tf.python_op import call_python


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
