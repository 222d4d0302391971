"""How many lines the loaders of a large job write about its trainers, and that these can be joined."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from loader_server.coordinator.events import Received
from loader_server.coordinator.report import Comings
from loader_server.worker.reception import Reception, ReceptionParts
from shared.events.trainer_fields import run_name
from shared.logs import Log
from shared.wire import messages as m
from shared.wire.batch_layout import BucketShape
from shared.wire.codec import encode
from tests.support.coordinator import View, attach, coordinator, register
from tests.support.in_memory import LENGTH, ROWS, MemoryStream
from tests.support.log_lines import Lines

if TYPE_CHECKING:
    from collections.abc import Iterator

TRAINERS, WORKERS = 500, 20


@pytest.fixture
def lines() -> Iterator[Lines]:
    with Lines() as lines:
        yield lines


class _Large(View):
    """A stream with batches for all of them."""

    def batches(self, epoch: int, group: int) -> int:
        return TRAINERS

    def objection(self, group: int) -> None:
        """Any group will do."""


class _Deaf:
    """A sender and a guard whose messages go nowhere."""

    sealed_port = 0
    batches = None

    def __init__(self) -> None:
        self.said: list[m.Message] = []
        self.buffers = SimpleNamespace(take=lambda _nbytes: None)

    def say(self, _identity: bytes, message: m.Message) -> None:
        self.said.append(message)

    def reads(self, _identity: bytes) -> bool:
        return True

    def turn_away(self, _key: str, _message: m.Message) -> None:
        """Everybody may say everything."""

    def expect(self, _identity: bytes) -> None:
        """Nobody has keys."""


def reception(number: int) -> tuple[Reception, _Deaf]:
    deaf, stream = _Deaf(), MemoryStream()
    stream.shapes = (BucketShape(rows=ROWS, lengths={"tokens": LENGTH}),)  # type: ignore[attr-defined]
    parts: dict[str, Any] = {
        "name": f"vm-{number}", "incarnation": number, "streams": {"train": stream},
        "settings": SimpleNamespace(name="digits", float32="float32", compression="none"),
        "builders": {"train": SimpleNamespace(batches=lambda _epoch, _group: 1)}, "thread": None,
        "sender": deaf, "guard": deaf, "log": Log("worker", job="digits", worker=f"vm-{number}"),
        "wake": lambda: None, "awaited": lambda: (), "has_room": lambda: True,
    }  # fmt: skip
    return Reception(ReceptionParts(**parts)), deaf


def hello(rank: int) -> m.Hello:
    return m.Hello(
        job="digits", stream="train", incarnation=1000 + rank, name=f"host:{rank}", rank=rank, shared=None,
        verify=False, seal=None,
    )  # fmt: skip


def test_five_hundred_trainers_on_twenty_workers_are_a_line_each(lines: Lines) -> None:
    state, comings, log = coordinator(_Large()), Comings(), Log("coordinator", job="digits")
    for worker in range(WORKERS):
        state.handle(Received(b"w%d" % worker, register(f"vm-{worker}", worker + 1)), 0.0)
    for rank in range(TRAINERS):
        state.handle(Received(b"%d" % rank, attach(rank, TRAINERS)), 0.0)
    for event, fields in comings.look(state.report(0.0), 0.0):
        log.info(event, **fields)
    for worker in range(WORKERS):
        served, deaf = reception(worker)
        for rank in range(TRAINERS):
            served.receive(b"%d" % rank, "", encode(hello(rank)), 0.0)
        assert [type(message) for message in deaf.said] == [m.Welcome] * TRAINERS
    assert len(lines.records) <= TRAINERS + WORKERS
    there = {fields["run"]: fields for fields in lines.fields("trainer is there")}
    assert there == {
        run_name(1000 + rank): {
            "job": "digits", "stream": "train", "rank": rank, "trainer": f"host:{rank}", "run": run_name(1000 + rank),
        }
        for rank in range(TRAINERS)
    }  # fmt: skip
