"""Elements: what their parts are made of, and how they are put together from what TensorFlow lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import SettingsError
from trainer_client.tf.element_structure import ElementStructure, assembler

from tests.support.two_devices import mirrored  # isort: skip - sets devices before TensorFlow is used
import tensorflow as tf  # isort: skip

assert mirrored is not None

KNOWN = ("audio", "audio_length", "text", "weight", "tag")

leaves = st.integers().map(lambda _: tf.TensorSpec((None, 3), tf.float32))
structures = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["b", "a", "c"]), inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)


@given(structures)
def test_it_is_put_together_as_tensorflow_does(spec):
    listed = [object() for _ in tf.nest.flatten(spec)]
    assemble = assembler(spec, tf.TensorSpec)
    assert assemble is not None
    expected = tf.nest.pack_sequence_as(spec, listed)
    made = assemble(listed)
    assert made == expected
    assert repr(made) == repr(expected)  # the order of keys as well


@pytest.mark.parametrize(
    "spec",
    [
        tf.RaggedTensorSpec((None, None), tf.int32),
        (tf.TensorSpec((), tf.int32), tf.RaggedTensorSpec((None, None), tf.int32)),
        {"a": None},
        [tf.TensorSpec((), tf.int32)],
    ],
)
def test_what_it_does_not_know_is_left_to_tensorflow(spec):
    assert assembler(spec, tf.TensorSpec) is None


def test_a_key_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(SettingsError, match="audio_length"):
        ElementStructure(inputs="pitch").of(dict.fromkeys(KNOWN))
