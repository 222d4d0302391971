"""Being attached: one object that is there or not; and one object for each way of sharing batches."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import trainer_client.core
from shared.wire.message_parts import BookMark, Lease
from tests.support.lone_core import LoneCore
from trainer_client.core import events as e
from trainer_client.core.leasing.leased_queue import LeasedQueue
from trainer_client.core.lockstep import Lockstep

ROOM = Path(trainer_client.core.__file__).parent
TEXTS = {path.relative_to(ROOM).as_posix(): path.read_text("utf-8") for path in sorted(ROOM.rglob("*.py"))}


def asked(name, text):
    """Return how often code asks whether the attribute of this name is None."""
    return sum(
        isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Attribute)
        and node.left.attr == name
        and isinstance(node.ops[0], ast.Is | ast.IsNot)
        for node in ast.walk(ast.parse(text))
    )


def test_only_the_core_asks_whether_it_is_attached():
    found = {module: asked("stream", text) for module, text in TEXTS.items()}
    assert {module for module, count in found.items() if count} == {"core.py"}
    assert found["core.py"] <= 6


def test_nothing_tells_the_ways_of_sharing_apart_by_what_they_lack():
    assert not [module for module, text in TEXTS.items() if asked("leases", text)]
    assert [module for module, text in TEXTS.items() if "isinstance(self.sharing" in text] == ["attached_stream.py"]


def test_the_ways_of_sharing_answer_the_same_questions():
    ways = [{name for name in dir(way) if not name.startswith("_")} for way in (Lockstep, LeasedQueue)]
    assert ways[0] == ways[1]


def test_nothing_is_taken_in_about_a_stream_before_it_is_attached():
    lone = LoneCore()
    lone.tell(e.Saved("a checkpoint that the user restored first"))
    for event in (e.Took(0, 0), e.Opened(1, None, 0), e.ConnectionUp(1)):
        with pytest.raises(AssertionError):
            lone.tell(event)


def test_the_coordinators_answer_decides_how_batches_are_shared():
    lockstep, queue = LoneCore(), LoneCore()
    lockstep.attach()
    queue.attach(work="train", book=BookMark(1, 0))
    assert isinstance(lockstep.stream.sharing, Lockstep)
    assert isinstance(queue.stream.sharing, LeasedQueue)
    assert queue.stream.leases is queue.stream.sharing.leases
    with pytest.raises(AssertionError):
        _ = lockstep.stream.leases


def test_in_lockstep_a_saved_checkpoint_is_no_news_and_a_lease_is_a_mistake():
    lone = LoneCore()
    lone.attach()
    assert not lone.tell(e.Saved("checkpoint 3"))
    with pytest.raises(AssertionError, match="in lockstep"):
        lone.tell(e.LeaseSettled(Lease(0, 0, 1), 1, done=True))
