"""The rule of trials, on every sequence of tries that can come."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from loader_server.building.trial_rule import (
    MOST_TRIES,
    ChildEnded,
    Passed,
    RanOut,
    TrialVerdict,
    convicting_ends,
    judge,
    why_unjudged,
)
from loader_server.machine.room import NEEDED_DESCRIPTORS, Room

NEEDED = Room(memory=2**30, descriptors=NEEDED_DESCRIPTORS)
ENOUGH = RanOut("MemoryError", NEEDED, is_fresh=True)
USED = RanOut("MemoryError", NEEDED, is_fresh=False)
LITTLE_MEMORY = RanOut("MemoryError", Room(memory=2**30 - 1, descriptors=1000), is_fresh=True)
FEW_DESCRIPTORS = RanOut("OSError: [Errno 24]", Room(memory=2**40, descriptors=63), is_fresh=True)
CRASHED = ChildEnded("signal SIGSEGV", by_itself=True)
KILLED = ChildEnded("signal SIGKILL", by_itself=False)
EVERY = (Passed(), ENOUGH, USED, LITTLE_MEMORY, FEW_DESCRIPTORS, CRASHED, KILLED)
CONVICTING = (ENOUGH, CRASHED)


def carried_out(tries):
    """The verdict on those of the tries that are made, and how many these are."""
    for made in range(len(tries) + 1):
        verdict = judge(tries[:made], NEEDED)
        if verdict is not TrialVerdict.AGAIN:
            return verdict, made
    return TrialVerdict.AGAIN, len(tries)


def foretold(tries):
    """The same in other words: the first that passes or comes from outside, the second that convicts, or the fifth."""
    convicting = 0
    for made, one in enumerate(tries, 1):
        convicting += one in CONVICTING
        if isinstance(one, Passed):
            return TrialVerdict.PASSED, made
        if one is KILLED:
            return TrialVerdict.UNJUDGED, made
        if convicting == 2:
            return TrialVerdict.OWN_FAULT, made
        if made == 5:
            return TrialVerdict.UNJUDGED, made
    return TrialVerdict.AGAIN, len(tries)


@pytest.mark.parametrize("count", range(MOST_TRIES + 1))
def test_every_sequence_of_tries_has_the_verdict_that_was_foretold(count):
    for tries in product(EVERY, repeat=count):
        assert carried_out(tries) == foretold(tries), tries


def test_no_sequence_goes_on_for_ever():
    assert all(carried_out(tries)[0] is not TrialVerdict.AGAIN for tries in product(EVERY, repeat=5))


@pytest.mark.parametrize("one", [USED, LITTLE_MEMORY, FEW_DESCRIPTORS])
def test_a_child_without_enough_or_that_tried_others_before_says_nothing_against_a_sample(one):
    assert carried_out([one, CRASHED, one, one, one]) == (TrialVerdict.UNJUDGED, 5)
    assert convicting_ends([one, CRASHED, one], NEEDED) == ["signal SIGSEGV"]


def test_the_ends_of_a_conviction_are_the_two_that_convict():
    assert convicting_ends([USED, ENOUGH, LITTLE_MEMORY, CRASHED], NEEDED) == ["MemoryError", "signal SIGSEGV"]


def test_why_nobody_could_judge_is_said_once_for_each_way():
    less = replace(LITTLE_MEMORY, room=replace(LITTLE_MEMORY.room, memory=2**20))
    assert why_unjudged([less, less, LITTLE_MEMORY, KILLED], NEEDED) == (
        "MemoryError, with 1024 MiB of memory and 1000 descriptors free, of which 1 GiB of memory and 64 descriptors "
        "are needed, signal SIGKILL, which came from outside"
    )
    assert why_unjudged([USED, CRASHED], NEEDED) == (
        "MemoryError, in a child that had tried others before, signal SIGSEGV"
    )
