"""Being attached: one object that is there or not; and one object for each way of sharing batches.

When readers stop if the job is ended by order: alone, in queue mode, and as one of several ranks.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import trainer_client.core
from shared.wire import messages as m
from shared.wire.message_parts import BookMark, Lease, RoundPlace
from tests.support.lone_core import LoneCore, attached
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.attached_stream import JobEnd
from trainer_client.core.leasing.leased_queue import LeasedQueue
from trainer_client.core.lockstep import Lockstep
from trainer_client.core.upcoming import Ranks

ROOM = Path(trainer_client.core.__file__).parent
TEXTS = {path.relative_to(ROOM).as_posix(): path.read_text("utf-8") for path in sorted(ROOM.rglob("*.py"))}

TIMEOUT_S = 2.0


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


def ends(last=None, *, drains=True):
    return m.JobEnds(drains=drains, last=None if last is None else RoundPlace(*last))


@pytest.fixture
def out():
    return []


def job_end(out, *, world=1, replicas=1, **said):
    settings = replace(LoneCore(slots=2).core._settings, ranks=Ranks(rank=0, replicas=replicas, world=world))
    return JobEnd(settings, attached(**said), out)


def told(out):
    """What was ordered since the last time, without the error."""
    orders = [
        (one.at_once, one.last, one.waits) if isinstance(one, i.EndReading) else type(one).__name__ for one in out
    ]
    out.clear()
    return orders


@pytest.mark.parametrize("how", [{"world": 1}, {"world": 2, "replicas": 2}, {"world": 2, "evaluation": True}])
def test_whoever_is_alone_stops_at_once_and_is_told_so_once(out, how):
    end = job_end(out, **how)
    for drains in (True, True, False):
        end.hear(ends(drains=drains), 0.0)
    assert told(out) == [(True, None, False)]
    assert end.due_s == float("inf")


def test_in_queue_mode_it_reads_what_it_has_until_it_is_told_not_to(out):
    end = job_end(out, work="train")
    for drains in (True, True, False, True):
        end.hear(ends(drains=drains), 0.0)
    assert told(out) == [(False, None, False), (True, None, False)]


def test_a_rank_stands_still_whenever_it_is_told_until_it_hears_the_last_round(out):
    end = job_end(out, world=2)
    for _ in range(2):
        end.hear(ends(), 0.0)
    assert told(out) == ["StandStill"] * 2
    for _ in range(2):
        end.hear(ends((3, 14)), 1.0)
    assert told(out) == [(False, (3, 14), True)]
    end.hear(ends((3, 14), drains=False), 1.0)
    assert told(out) == [(False, (3, 14), False)]


@pytest.mark.parametrize("last", [None, (3, 14)])
def test_a_rank_whose_coordinator_is_gone_stops(out, last):
    end = job_end(out, world=2)
    end.hear(ends(), 0.0)
    end.hear(ends(last), 1.0)
    assert end.due_s == 1.0 + 8 * TIMEOUT_S
    told(out)
    end.tick(end.due_s - 0.1)
    assert told(out) == []
    for _ in range(2):
        end.tick(1.0 + 8 * TIMEOUT_S)
    assert told(out) == [(True, None, False)]
    assert end.due_s == float("inf")
