"""Values that do not cross as they are, in parts and back, eagerly and in a graph."""

import numpy as np
import pytest
import tensorflow as tf

import tests.support.two_devices  # before anything starts TensorFlow's runtime
from shared.errors import SettingsError
from shared.pipelines.dense_parts import joined_values, parted, parts_of


@pytest.fixture
def values():
    return {
        "number": tf.constant([[1.5, 2.0]]),
        "word": tf.constant("naïve"),
        "words": tf.constant([["a", ""], ["ccc", "\x00\xff"]]),
        "ragged": tf.ragged.constant([[[1, 2], []], [[3]]]),
        "texts": tf.ragged.constant([["one", "two"], [], ["x"]]),
        "sparse": tf.sparse.from_dense([[0, 7], [8, 0]]),
        "marks": tf.sparse.from_dense(["", "b"]),
    }


def plain(value):
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    return value.to_list() if isinstance(value, tf.RaggedTensor) else np.asarray(value).tolist()


@pytest.mark.slow
def test_every_kind_of_value_comes_back_from_its_parts(values):
    data = parted(tf.data.Dataset.from_tensors(values), "here")
    assert all(spec.dtype != tf.string for spec in data.element_spec.values())
    assert {"number", "words:bytes", "words:sizes", "texts:flat:bytes", "ragged:rows_1"} <= set(data.element_spec)
    (back,) = data.map(joined_values)
    assert {key: plain(value) for key, value in back.items()} == {key: plain(one) for key, one in values.items()}


def test_what_has_no_parts_stays_as_it_is():
    data = tf.data.Dataset.from_tensors({"n": 1})
    assert parted(data, "here") is data
    assert parted(tf.data.Dataset.range(3), "here").element_spec.shape == ()


def test_parts_without_rows_are_values_without_rows(values):
    """As where a shard has ended: zeros in every shape."""
    parts = {name: part for key, one in values.items() for name, part in parts_of(key, one).items()}
    empty = {
        name: tf.zeros_like(part)[:0] if part.shape.rank and not name.endswith(":dense") else tf.zeros_like(part)
        for name, part in parts.items()
    }
    back = joined_values(empty)
    assert plain(back["texts"]) == plain(back["ragged"]) == []
    assert back["word"].numpy() == b""
    assert back["words"].shape == (0, 2)
    assert back["sparse"].dense_shape.numpy().tolist() == [0, 0]


def test_other_kinds_are_refused_by_name():
    nested = tf.data.Dataset.from_tensors({"rows": tf.data.Dataset.range(2)})
    with pytest.raises(SettingsError, match=r'^here: expected "rows" as a dense, ragged or sparse tensor, got Dataset'):
        parted(nested, "here")
