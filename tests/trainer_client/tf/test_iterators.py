"""What TensorFlow runs for a feed's iterators: traced once, never optimised, and nothing of a feed stays behind.

Several batches at a time, whatever is empty in them, in processes of their own where TensorFlow might end them.
"""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from shared.pipelines.element_values import ElementValue, fields_of_element
from shared.wire.batch_layout import DTYPES, BucketShape, Field, fields_of_batch
from tests.support.fake_feed import FakeFeed
from tests.support.forked import start_code
from tests.support.two_devices import mirrored

import tensorflow as tf  # isort: skip - after the devices are set

from trainer_client.tf import iterators  # isort: skip
from trainer_client.tf.iterators import Stacks  # isort: skip

WHOLE = fields_of_batch(
    fields_of_element(
        [
            *(ElementValue(dtype, dtype, (None, 2)) for dtype in sorted(DTYPES)),
            ElementValue("deep", "float32", (None, None, None, 0)),
            ElementValue("never", "int64", (0, 3)),
            ElementValue("scalar", "int32", ()),
        ]
    )
)


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


def whole_feed(at_a_time, **how):
    """Batches that are made whole; in some of them nothing varies above 0."""
    varying = [field.key for field in WHOLE if field.padded]
    shapes = tuple(BucketShape(rows=1, lengths=dict.fromkeys(varying, steps)) for steps in (0, 3))
    return FakeFeed(producers=2, fields=WHOLE, shapes=shapes[:1] * 4 + shapes[1:], at_a_time=at_a_time, **how)


def roomless_feed(at_a_time):
    """Planned batches with a field that has no room for anything."""
    audio = Field(key="audio", dtype="float32", shape=(None,))
    none = Field(key="none", dtype="int32", shape=(0, 2))
    shapes = (BucketShape(rows=2, lengths={"audio": 4}),)
    return FakeFeed(fields=fields_of_batch((audio, none)), shapes=shapes, at_a_time=at_a_time)


ALONE = """
import sys
import numpy as np
import tensorflow as tf
from tests.trainer_client.tf import test_iterators

make = getattr(test_iterators, sys.argv[1])
several, single = (make(most).dataset() for most in (3, 1))
assert several.element_spec == single.element_spec
read = 0
for got, want in zip(several, single, strict=True):
    tf.nest.map_structure(lambda *both: np.testing.assert_array_equal(*both, strict=True), got, want)
    read += 1
print(read, "batches")
"""


@pytest.mark.parametrize("make", ["whole_feed", "roomless_feed"])
def test_empty_values_come_out_as_they_are(make):
    with start_code(ALONE, make, tensorflow=True) as process:
        said, errors = process.communicate(120)
    assert (process.returncode, said) == (0, "10 batches\n"), errors


def stacks_of(**session):
    return Stacks.of(SimpleNamespace(**{"producers": 0, "at_a_time": 4, "fields": WHOLE} | session))


def test_only_planned_batches_without_room_enter_one_by_one():
    planned = fields_of_batch((Field(key="audio", dtype="float32", shape=(None, 3)),))
    assert stacks_of(producers=2).most == stacks_of(fields=planned).most == 4
    assert stacks_of().most == 1
    assert stacks_of().shape_of((2, None)) == (2, None)


def test_a_single_batch_that_is_kept_keeps_no_slot():
    slot = np.arange(6)
    batches = SimpleNamespace(take_stacked=lambda keys, most: {"text": slot.reshape(1, 1, 6)})
    text = stacks_of(producers=1).take(batches, ["text"])["text"]
    assert text.tolist() == [[*range(6)]]
    assert not np.shares_memory(text, slot)


def test_several_are_copied_no_further():
    stack = np.arange(6)
    batches = SimpleNamespace(take_stacked=lambda keys, most: {"text": stack.reshape(most, 1, -1)[:3]})
    text = stacks_of(producers=1, at_a_time=3).take(batches, ["text"])["text"]
    assert text.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert np.shares_memory(text, stack)
