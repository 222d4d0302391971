"""Data sets as graphs: what can be sent, what is refused by name, and that equal code gives equal bytes."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import tests.support.two_devices  # before anything starts TensorFlow's runtime
from shared.errors import SettingsError
from shared.pipelines.dense_parts import joined_values
from shared.pipelines.element_values import SentGraph
from trainer_client.tf.pipelines import graph as module
from trainer_client.tf.pipelines.graph import packed_element, sent_graph


class Pair(NamedTuple):
    left: Any
    right: Any


def mapped(function, count=4):
    return tf.data.Dataset.range(count).map(function)


def documented(scale):
    tf.data.TextLineDataset("unused")  # counts the nodes of this process
    data = tf.data.TextLineDataset("lines").map(tf.strings.length)
    data = data.map(lambda n: tf.cast(n, tf.int64)).map(
        lambda n: (n * scale, tf.strings.as_string(n)), num_parallel_calls=2
    )
    return data.shuffle(6, seed=1).batch(2).prefetch(1)


def test_equal_code_gives_equal_bytes_however_much_was_traced_before():
    first = sent_graph(documented(3)).encode()
    mapped(lambda n: n + 41)
    assert sent_graph(documented(3)).encode() == first
    assert sent_graph(documented(4)).encode() != first
    assert b"lambda" not in SentGraph.decode(first, "here").graph


def test_the_structure_comes_back_from_what_crosses():
    data = mapped(
        lambda n: Pair({"b": tf.ragged.range([n, 2]), "a": tf.strings.as_string(n)}, (tf.sparse.from_dense([n, 0]), n))
    )
    (one, *_) = data.skip(2)
    crossing = next(iter(module.parted(data.map(module._leaves).skip(2), "here")))
    assert sorted(crossing) == sorted(value.key for value in sent_graph(data).values)
    back = packed_element(data.element_spec, joined_values(crossing))
    assert isinstance(back, Pair)
    assert back.left["b"].to_list() == one.left["b"].to_list() == [[0, 1], [0, 1]]
    assert (back.left["a"].numpy(), int(back.right[1])) == (b"2", 2)
    np.testing.assert_array_equal(tf.sparse.to_dense(back.right[0]), [2, 0])


def with_variable():
    variable = tf.Variable(1, dtype=tf.int64)
    return mapped(lambda n: n + variable)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mapped(lambda n: tf.numpy_function(np.sin, [n], tf.float64)), "PyFunc is stateful.*dataset_pipeline"),
        (
            lambda: tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int32)),
            "PyFunc is stateful.*dataset_pipeline",
        ),
        (with_variable, "ReadVariableOp is stateful"),
        (lambda: mapped(lambda _: tf.random.uniform([])), r"got .*RandomUniform is stateful.*tf\.random\.uniform stay"),
        (lambda: mapped(lambda n: n).cache("/tmp/never-made"), "writes no files.*got CacheDatasetV2"),
        (lambda: mapped(lambda n: tf.complex(1.0, 2.0)), "numbers and strings.*complex64.*leaf 0"),
        (lambda: mapped(lambda n: n).window(2), 'expected "0" as a dense, ragged or sparse tensor, got DatasetSpec'),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(make, message):
    with pytest.raises(SettingsError, match=rf"(?s)^trainer_client\.distribute: .*{message}"):
        sent_graph(make())


def test_a_graph_that_is_too_large_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 2**20)
    with pytest.raises(SettingsError, match=r"at most 1 MiB, tables in it included, got 1 MiB.*TFRecordDataset"):
        sent_graph(tf.data.Dataset.from_tensor_slices(np.zeros(2**18, np.int64)[: 2**17 + 2**13]))


def test_a_cache_in_memory_may_be_sent():
    assert sent_graph(mapped(lambda n: n).cache()).graph
