"""Several batches at a time, whatever is empty in them; in processes of their own where TensorFlow might end them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from shared.pipelines.element_values import ElementValue, fields_of_element
from shared.wire.batch_layout import DTYPES, BucketShape, Field, fields_of_batch
from tests.support.fake_feed import FakeFeed
from tests.support.forked import start_code
from trainer_client.tf.stacks import Stacks

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
from tests.trainer_client.tf import test_stacks

make = getattr(test_stacks, sys.argv[1])
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
