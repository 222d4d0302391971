"""What messages are made of: registered by name and role, and records that survive the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from shared.wire import message_parts
from shared.wire.batch_layout import BucketShape, Field
from shared.wire.codec import decode, encode
from shared.wire.message_parts import COUNT, KINDS, Message, Seal, WireField, WireShape, clipped, message, wire
from shared.wire.refusing import TO_COORDINATOR, TO_WORKER

if TYPE_CHECKING:
    from collections.abc import Iterator


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


@pytest.fixture
def probe() -> Iterator[type[Message]]:
    @message("WireProbe", to="coordinator", by=("worker",))
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Probe(Message):
        number: int = wire(COUNT)

    yield Probe
    del KINDS["WireProbe"], message_parts.SPEAKERS["coordinator"][Probe]


def test_it_crosses_under_the_name_that_it_states(probe: type[Message]) -> None:
    frame = encode(probe(number=3))
    assert b"WireProbe" in frame
    assert b"\xa5Probe" not in frame, "the name of the class is nobody's business"
    assert decode(frame) == probe(number=3)


def test_those_may_say_it_whom_it_names(probe: type[Message]) -> None:
    assert TO_COORDINATOR[probe] == {"worker"}
    assert probe not in TO_WORKER


def test_a_name_is_taken_once(probe: type[Message]) -> None:
    with pytest.raises(AssertionError, match="two messages are called WireProbe"):
        message("WireProbe")(probe)


def test_every_message_of_ours_is_called_as_its_class() -> None:
    assert {name: kind.__name__ for name, kind in KINDS.items()} == {name: name for name in KINDS}
