"""Fields and shapes cross and come back as they were."""

import pytest

from shared.wire.batch_layout import BucketShape, Field
from shared.wire.message_parts import Seal, WireField, WireShape, clipped


@pytest.mark.parametrize(
    "field",
    [
        Field(key="audio", dtype="float32", shape=(None, 80), per_second=100.0),
        Field(key="weight", dtype="float32", shape=()),
    ],
    ids=lambda field: field.key,
)
def test_a_field_comes_back(field):
    assert WireField.of(field).field() == field


def test_a_shape_comes_back():
    shape = BucketShape(rows=3, lengths={"text": 5, "audio": 80})
    assert WireShape.of(shape).bucket() == shape


def test_equal_shapes_are_equal_whatever_the_order_of_their_keys():
    one, other = ({"text": 5, "audio": 80}, {"audio": 80, "text": 5})
    assert WireShape.of(BucketShape(rows=3, lengths=one)) == WireShape.of(BucketShape(rows=3, lengths=other))
    assert WireShape.of(BucketShape(rows=3, lengths=one)).lengths == (("audio", 80), ("text", 5))


def test_prose_is_clipped_to_its_bound():
    assert (clipped("x" * 4001), clipped("y")) == ("x" * 4000, "y")


def test_no_key_is_shown():
    assert repr(Seal(b"k" * 32, b"i" * 16)) == "Seal(…)"
