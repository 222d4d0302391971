"""What workers made, as tensors of their own shapes; the rest is in tests/end_to_end/test_pipeline.py."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from shared.errors import SettingsError
from shared.pipelines.element_values import ElementValue, flat_values
from trainer_client.tf.pipelines.pipeline import element_tensors, make

VALUES = (
    ElementValue("feat", "float32", (None, None, 2)),
    ElementValue("fixed", "int64", (3,)),
    ElementValue("n", "int64", ()),
)


def batch_of(**element):
    return {key: tf.constant(np.asarray(array)[None]) for key, array in flat_values(VALUES, element).items()}


def test_each_value_gets_its_shape_back():
    feat = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    made = tf.function(lambda batch: element_tensors(VALUES, batch))(
        batch_of(feat=feat, fixed=np.arange(3), n=np.int64(7))
    )
    np.testing.assert_array_equal(made["feat"], feat)
    assert (made["fixed"].numpy().tolist(), int(made["n"])) == ([0, 1, 2], 7)


def test_an_empty_batch_keeps_what_is_fixed():
    batch = batch_of(feat=np.zeros((0, 0, 2), np.float32), fixed=np.zeros(3, np.int64), n=np.int64(0))
    batch["feat:shape"] = tf.zeros_like(batch["feat:shape"])
    assert element_tensors(VALUES, batch)["feat"].shape == (0, 0, 2)


def test_parts_are_joined_to_the_value_that_a_worker_had():
    values = (ElementValue("words:bytes", "uint8", (None,)), ElementValue("words:sizes", "int32", (2,)))
    element = {"words:bytes": np.frombuffer(b"onetwo", np.uint8), "words:sizes": np.full(2, 3, np.int32)}
    batch = {key: tf.constant(np.asarray(array)[None]) for key, array in flat_values(values, element).items()}
    assert element_tensors(values, batch)["words"].numpy().tolist() == [b"one", b"two"]


@pytest.mark.parametrize(
    ("function", "producers", "message"),
    [
        ("my_pipeline", 2, "expected a function of a context, or True for the default pipeline, got 'my_pipeline'"),
        (True, 0, 'expected a stream with source = "pipeline", got train, whose batches the planner makes'),
    ],
)
def test_what_is_no_pipeline_is_refused(function, producers, message):
    session = SimpleNamespace(spec=SimpleNamespace(producers=producers, stream="train"))
    with pytest.raises(SettingsError, match=message):
        make(session, function, "")
