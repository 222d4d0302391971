"""When a worker speaks to its coordinator; the clock is the test's."""

from __future__ import annotations

import pytest

from loader_server.building.culprits import culprit_key
from loader_server.worker.membership import Membership
from shared.wire import messages as m

UNKNOWN = m.Refused(code="unknown", expected="a", got="b", remedy="c")


def registered(timeout_ms=4000, *, now_s=10.0):
    one = Membership()
    one.lose_patience(now_s)
    one.say(now_s, sent=True)
    one.hear(now_s)
    one.take_in(m.Registered(heartbeat_timeout_ms=timeout_ms), now_s)
    return one


def test_it_begins_at_once_and_says_who_it_is_until_it_is_known():
    one = Membership()
    assert one.is_due(10.0)
    assert not one.registered
    one.say(10.0, sent=True)
    assert not one.is_due(10.49)
    assert one.is_due(10.5)


def test_what_could_not_be_sent_is_tried_again_soon():
    one = Membership()
    one.say(10.0, sent=False)
    assert one.due_s == pytest.approx(10.02)
    known = registered()
    known.say(10.0, sent=False)
    assert known.due_s == pytest.approx(10.02)


def test_once_known_a_heartbeat_is_due_at_once_and_then_four_times_a_timeout():
    one = registered(timeout_ms=4000, now_s=10.0)
    assert one.registered
    assert one.heartbeat_timeout_s == 4.0
    assert one.is_due(10.0)
    one.say(10.0, sent=True)
    assert (one.is_due(10.99), one.is_due(11.0)) == (False, True)


def test_a_coordinator_that_does_not_know_it_is_told_at_once():
    one = registered()
    one.say(10.0, sent=True)
    one.take_in(UNKNOWN, 10.3)
    assert not one.registered
    assert one.is_due(10.3)


def test_another_refusal_changes_nothing():
    one = registered()
    one.say(10.0, sent=True)
    one.take_in(m.Refused(code="role", expected="a", got="b", remedy="c"), 10.3)
    assert one.registered
    assert not one.is_due(10.3)


@pytest.mark.fault(68)
@pytest.mark.parametrize("code", ["builder", "version"])
def test_one_that_would_build_other_bytes_registers_every_second_and_gives_nobody_up(code):
    one = Membership()
    assert not one.gives_up(10.0)
    one.say(10.0, sent=True)
    one.take_in(m.Refused(code=code, expected="a", got="b", remedy="c"), 10.3)
    assert (one.registered, one.is_refused) == (False, True)
    assert (one.is_due(11.29), one.is_due(11.3)) == (False, True)
    one.say(11.3, sent=True)
    assert (one.is_due(12.29), one.is_due(12.3)) == (False, True)
    assert not one.gives_up(1000.0)
    one.take_in(m.Registered(heartbeat_timeout_ms=4000), 1000.0)
    assert (one.registered, one.is_refused) == (True, False)


@pytest.mark.fault(43)
def test_silence_is_borne_for_longer_each_time_and_it_registers_anew():
    one, now_s, gaps = registered(timeout_ms=1000, now_s=10.0), 10.0, []
    while len(gaps) < 6:
        began_s = now_s
        while not one.lose_patience(now_s):
            now_s += 0.01
        assert not one.registered
        assert one.is_due(now_s)
        gaps.append(now_s - began_s)
    assert gaps == pytest.approx([1, 2, 4, 8, 8, 8], abs=0.03)
    one.hear(now_s)
    assert not one.lose_patience(now_s + 1.0)
    assert one.lose_patience(now_s + 1.01)


@pytest.mark.fault(43)
def test_silence_begins_with_the_first_look():
    one = Membership()
    assert not one.lose_patience(100.0)
    assert not one.lose_patience(102.0)
    assert one.lose_patience(102.1)


def test_who_left_says_nothing_more():
    one = registered()
    one.left = True
    assert not one.is_due(1e6)
    assert not one.lose_patience(1e6)


@pytest.mark.fault(43)
def test_a_culprit_is_said_at_once_and_until_it_is_listed():
    member, found = registered(), m.Culprit(worker="w", stream="train", identity="a.wav", ends="SIGSEGV")
    member.say(10.0, sent=True)
    member.convict(found)
    assert member.is_due(10.0)
    member.take_in(m.Culprits(version=4, keys=(culprit_key("train", "b.wav"),)), 10.0)
    assert (member.culprits, member.unlisted()) == (4, [found])
    member.take_in(m.Culprits(version=5, keys=(culprit_key("train", "a.wav"),)), 10.0)
    assert (member.culprits, member.unlisted()) == (5, [])


def test_culprits_of_one_whom_the_coordinator_forgot_wait_until_it_is_known_again():
    member, found = registered(), m.Culprit(worker="w", stream="train", identity="a.wav", ends="SIGSEGV")
    member.convict(found)
    member.take_in(UNKNOWN, 10.0)
    assert member.unlisted() == []
    member.take_in(m.Registered(heartbeat_timeout_ms=4000), 10.0)
    assert member.unlisted() == [found]


def test_a_coordinator_that_was_never_there_is_waited_for_a_minute():
    one = Membership()
    assert not one.gives_up(10.0)
    assert not one.gives_up(70.0)
    assert one.gives_up(70.1)


def test_one_that_was_there_is_waited_for_for_ever():
    one = registered()
    assert not one.gives_up(10.0)
    one.take_in(UNKNOWN, 20.0)
    assert not one.gives_up(1e9)
