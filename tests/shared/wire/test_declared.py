"""A message is whole where it is declared: no list elsewhere has to name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from shared.wire import declared
from shared.wire.codec import decode, encode
from shared.wire.declared import KINDS, Message, message
from shared.wire.message_parts import COUNT, wire
from shared.wire.refusing import TO_COORDINATOR, TO_WORKER

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def probe() -> Iterator[type[Message]]:
    @message("WireProbe", to="coordinator", by=("worker",))
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Probe(Message):
        number: int = wire(COUNT)

    yield Probe
    del KINDS["WireProbe"], declared.SPEAKERS["coordinator"][Probe]


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
