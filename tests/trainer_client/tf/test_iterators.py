"""What TensorFlow runs for a feed's iterators: traced once, never optimised, and nothing of a feed stays behind."""

from __future__ import annotations

import gc
import weakref

import pytest

from tests.support.fake_feed import FakeFeed
from tests.support.two_devices import mirrored

import tensorflow as tf  # isort: skip - after the devices are set

from trainer_client.tf import iterators  # isort: skip


def test_datasets_of_equal_elements_share_their_graphs_and_nothing_else(monkeypatch):
    one = FakeFeed(epochs=(3,)).dataset(inputs=("tag", "weight"))
    monkeypatch.setattr(iterators, "_traced", None)
    other = FakeFeed(epochs=(2,)).dataset(inputs=("tag", "weight"))
    assert [len(list(data)) for data in (one, other, one)] == [3, 2, 3]


def test_tensorflow_takes_its_functions_as_they_are_for_each_iterator():
    """One that may need several devices is optimised each time, for longer than reading a hundred batches takes."""
    data = FakeFeed().dataset(inputs="audio")
    openings, spec = data._counted._input_dataset.openings, data.element_spec
    variant = tf.function(lambda: tf.data.experimental.to_variant(iterators.generate(openings, spec)))
    functions = variant.get_concrete_function().graph.as_graph_def().library.function
    assert len(functions) == 5
    assert [one.signature.name for one in functions if not one.attr["experimental_ints_on_device"].b] == []


def test_with_its_dataset_a_feed_is_gone():
    def read():
        feed = FakeFeed(epochs=(2,))
        assert len(list(feed.dataset(inputs="audio"))) == len(list(feed.dataset(inputs="audio").take(9))) == 2
        feed.close()
        return weakref.ref(feed.session)

    gone = read()
    gc.collect()
    assert gone() is None


def test_an_iterator_needs_no_dataset():
    strategy = mirrored()
    opened = [
        iter(FakeFeed(epochs=(2,)).dataset(inputs="tag")),
        iter(FakeFeed(epochs=(2,)).dataset(inputs="tag").prefetch(1)),
        iter(FakeFeed(epochs=(2,), replicas=2).distributed(strategy, inputs="tag")),
    ]
    gc.collect()
    assert [len(list(iterator)) for iterator in opened] == [2, 2, 2]


def counted(feed):
    return tf.function(lambda: feed.dataset(inputs="tag").reduce(0, lambda count, _: count + 1))


def looped(feed):
    data = feed.dataset(inputs="tag")

    @tf.function
    def batches():
        count = 0
        for _ in data:
            count += 1
        return count

    return batches


def replicated(feed):
    data = feed.distributed(mirrored(), inputs="tag")

    @tf.function
    def rounds():
        count = 0
        for _ in data:
            count += 1
        return count

    return rounds


@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options")
@pytest.mark.parametrize(("make", "replicas"), [(counted, 1), (looped, 1), (replicated, 2)])
def test_a_graph_needs_no_dataset(make, replicas):
    graph = make(FakeFeed(epochs=(3,), replicas=replicas)).get_concrete_function()
    gc.collect()
    assert int(graph()) == 3
