"""The end of a job by order, behind the coordinator's door: who is told, and which round is the last for all ranks."""

from __future__ import annotations

import pytest

from loader_server.coordinator.events import EndOrdered, Received, Send, Ticked
from shared.wire import messages as m
from shared.wire.message_parts import RoundPlace
from tests.support.coordinator import TIMEOUT_S, attach, coordinator, progress, replies

SILENT_S = 5 * TIMEOUT_S


def stands(rank, epoch, number):
    return m.StandsStill(stream="train", incarnation=1000 + rank, epoch=epoch, number=number)


def world(ranks, *, missing=()):
    state = coordinator()
    for rank in set(range(ranks)) - set(missing):
        replies(state, attach(rank, ranks))
    return state


def sent(state, event, now_s=0.0):
    return [(one.peer, one.message) for one in state.handle(event, now_s) if isinstance(one, Send)]


def told(state, message):
    """Who is told what because of this message, by peer."""
    return sorted(sent(state, Received(b"%d" % message.incarnation, message)), key=lambda one: one[0])


def each(ranks, message):
    return [(b"%d" % (1000 + rank), message) for rank in range(ranks)]


def ends(last=None, *, drains=True):
    return m.JobEnds(drains=drains, last=None if last is None else RoundPlace(*last))


@pytest.mark.parametrize("drains", [True, False])
def test_the_furthest_place_is_the_last_for_all_once_every_rank_has_said_its_own(drains):
    state = world(3)
    assert sent(state, EndOrdered(drains)) == each(3, ends(drains=drains))
    assert replies(state, stands(0, 1, 12)) == []
    assert replies(state, stands(2, 1, 99)) == []
    assert told(state, stands(1, 2, 0)) == each(3, ends((2, 0), drains=drains))
    assert replies(state, progress(0, 1, 12, members=1)) == [ends((2, 0), drains=drains)]
    assert replies(state, stands(0, 5, 0)) == [], "what is settled stays so"


def test_a_rank_that_leaves_or_is_gone_is_not_waited_for_and_its_place_does_not_count():
    state = world(3)
    state.handle(EndOrdered(True), 0.0)
    for rank, number in ((0, 12), (2, 99)):
        replies(state, stands(rank, 1, number))
    replies(state, m.Detach(stream="train", rank=2, incarnation=1002))
    replies(state, progress(0, 1, 12), SILENT_S)
    assert sent(state, Ticked(), SILENT_S + 0.1) == [(b"1000", ends((1, 12)))]


def test_ranks_that_have_to_come_back_are_waited_for_so_long():
    state = world(3, missing=[1])
    state.handle(EndOrdered(True), 0.0)
    for rank in (0, 2):
        assert replies(state, stands(rank, 0, 7)) == []
    replies(state, attach(1, 3))
    assert told(state, stands(1, 0, 3)) == each(3, ends((0, 7)))

    state = world(2, missing=[1])
    state.handle(EndOrdered(True), 0.0)
    replies(state, stands(0, 0, 7))
    replies(state, progress(0, 0, 0), SILENT_S - 0.1)
    assert sent(state, Ticked(), SILENT_S - 0.1) == []
    assert sent(state, Ticked(), SILENT_S) == [(b"1000", ends((0, 7)))]


def test_who_attaches_meanwhile_is_told_what_the_others_are():
    state = world(2, missing=[1])
    state.handle(EndOrdered(True), 0.0)
    replies(state, stands(0, 0, 7))
    assert replies(state, attach(1, 2))[-1] == ends()
    replies(state, stands(1, 0, 1))
    assert replies(state, attach(1, 2, serial=2))[-1] == ends((0, 7))


def test_a_place_of_an_end_that_nobody_ordered_means_nothing():
    state = world(2)
    for rank in range(2):
        assert replies(state, stands(rank, 0, 7)) == []
    assert sent(state, EndOrdered(True))[0][1] == ends()
    assert replies(state, m.StandsStill(stream="train", incarnation=5, epoch=0, number=0))[0].code == "unknown"
