"""Ranks with clocks of their own end at the same step, and do not ask each other all the time."""

from __future__ import annotations

from trainer_client.training.runs.agreed_time import AgreedTime

LIMIT_S = 3600.0


def ended(step_s, *, first_s=0.0):
    """At which step, and how often they asked."""
    asked, times = [], []

    def agree(spent_s):
        asked.append(spent_s)
        return spent_s

    time = AgreedTime(LIMIT_S, agree)
    spent_s = first_s
    for step in range(1, 10**6):
        spent_s += step_s(step)
        times.append(time.after(step, spent_s))
        if times[-1] >= LIMIT_S:
            return spent_s, len(asked)
    raise AssertionError


def test_it_ends_with_the_step_in_which_the_time_is_over():
    spent_s, asked = ended(lambda _step: 0.5)
    assert LIMIT_S <= spent_s < LIMIT_S + 0.5
    assert asked < 30


def test_a_slow_beginning_is_asked_about_a_little_more_often():
    spent_s, asked = ended(lambda _step: 0.5, first_s=60.0)
    assert LIMIT_S <= spent_s < LIMIT_S + 0.5
    assert asked < 60


def test_steps_that_become_slower_are_noticed_in_time():
    spent_s, _ = ended(lambda step: 0.5 if step < 5000 else 1.0)
    assert LIMIT_S <= spent_s < LIMIT_S + 1.0


def test_it_begins_anew():
    time = AgreedTime(LIMIT_S, lambda spent_s: spent_s)
    assert time.after(1, LIMIT_S) == LIMIT_S
    time.begin()
    assert (time.after(0, 5.0), time.after(1, 6.0)) == (0.0, 6.0)
