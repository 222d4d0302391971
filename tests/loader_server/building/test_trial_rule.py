"""The rule of trials, on every sequence of tries that can come."""

from __future__ import annotations

import errno
from dataclasses import replace
from itertools import product

import pytest

from loader_server.building.trial_rule import (
    MOST_TRIES,
    ChildEnded,
    ExhaustedError,
    Passed,
    RanOut,
    TrialVerdict,
    convicting_ends,
    exhausted,
    judge,
    why_unjudged,
)
from loader_server.machine.room import NEEDED_DESCRIPTORS, Room
from loader_server.sources.blame import find_exhaustion
from shared.errors import MachineError, ReadError

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


# --- a worker that ran out itself ---


def caused_by(cause):
    error = ReadError(expected="a", got="b", where="c", remedy="d")
    error.__cause__ = cause
    return error


@pytest.mark.fault(38)
@pytest.mark.parametrize(
    "ran_out",
    [
        MemoryError(),
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENFILE, "Too many open files in system"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda error: error, caused_by, lambda error: caused_by(caused_by(error))])
def test_what_ran_out_is_found_however_it_is_wrapped(ran_out, wrap):
    assert find_exhaustion(wrap(ran_out)) is ran_out


@pytest.mark.parametrize(
    "error",
    [None, OSError(errno.EIO, "I/O error"), OSError("no number"), ValueError("x"), caused_by(OSError(errno.EIO, "x"))],
)
def test_what_is_the_datas_or_the_disks_fault(error):
    assert find_exhaustion(error) is None
    assert exhausted(error, "a sample", "here") is None


def test_the_error_names_what_was_in_hand_and_what_ran_out():
    named = exhausted(caused_by(OSError(errno.EMFILE, "Too many open files", "a.wav")), "batch 3", "stream train")
    assert isinstance(named, ExhaustedError)
    assert str(named).startswith(
        "stream train: expected enough memory and descriptors to build a batch, got batch 3 in"
    )
    assert "batch 3 in hand: OSError: [Errno 24] Too many open files: 'a.wav'. Look at that sample" in str(named)


def test_what_names_something_already_goes_on_naming_it():
    named = exhausted(MemoryError(), "clips/7.wav", "here")
    assert exhausted(named, "batch 3", "there") is named
    failed = MachineError(expected="a child", got="none for clips/7.wav", where="here", remedy="Look.")
    failed.__cause__ = OSError(errno.EMFILE, "Too many open files")
    assert str(exhausted(failed, "batch 3", "there")) == str(failed)
