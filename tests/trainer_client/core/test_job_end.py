"""When readers stop if the job is ended by order: alone, in queue mode, and as one of several ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.wire import messages as m
from shared.wire.message_parts import RoundPlace
from tests.support.lone_core import LoneCore, attached
from trainer_client.core import instructions as i
from trainer_client.core.job_end import JobEnd
from trainer_client.core.upcoming import Ranks

TIMEOUT_S = 2.0


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
