"""Elements are made ahead of who asks, and no further; errors come in their place; nobody is left behind."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import suppress

import pytest

from tests.support.loaders import wait_until
from trainer_client.tf import exit_guard
from trainer_client.tf.staging import Staging


class Maker:
    """Counts up; fails at one number, and waits at another until it is let go."""

    def __init__(self, *, fails_at=None, waits_at=None):
        self.made, self.fails_at, self.waits_at = 0, fails_at, waits_at
        self.let_go = threading.Event()
        self.asked = 0
        self.further = []

    def __call__(self):
        if self.made == self.fails_at:
            raise ZeroDivisionError(self.made)
        if self.made == self.waits_at:
            self.let_go.wait()
        self.made += 1
        if self.made > self.asked + 2:
            self.further.append(self.made)
        return self.made


def has_ended(staging):
    return id(staging) not in exit_guard._inside


def test_so_many_are_made_ahead_of_who_asks_and_none_further():
    make = Maker()
    with Staging(make, 2) as staging:
        wait_until(lambda: make.made == 2, "two are made, though nobody asked")
        for number in range(1, 6):
            make.asked = number
            assert staging.wait_next() == number
            wait_until(lambda number=number: make.made == number + 2, "two are made ahead of the one that was taken")
    assert make.further == []
    wait_until(lambda: has_ended(staging), "its thread has ended")


def test_an_error_comes_behind_what_was_made_before_it():
    make = Maker(fails_at=2)
    with Staging(make, 4) as staging:
        wait_until(lambda: has_ended(staging), "the thread has met it")
        assert [staging.wait_next(), staging.wait_next()] == [1, 2]
        with pytest.raises(ZeroDivisionError, match="2"):
            staging.wait_next()


def test_a_thread_that_is_left_makes_what_it_has_in_hand_and_nothing_else():
    make = Maker(waits_at=0)
    with Staging(make, 3) as staging:
        assert not has_ended(staging)
    make.let_go.set()
    wait_until(lambda: has_ended(staging), "its thread has ended")
    assert make.made <= 1


@pytest.fixture
def no_garbage_collector():
    gc.disable()
    yield
    gc.enable()


def untaken(let_go, *, is_left_first):
    """One whose thread met an error that nobody took, before it was left or after that."""

    def make():
        let_go.wait()
        raise ZeroDivisionError

    with Staging(make, 1) as staging:
        if not is_left_first:
            let_go.set()
            wait_until(lambda: has_ended(staging), "the thread has met it")
    return weakref.ref(staging)


@pytest.mark.usefixtures("no_garbage_collector")
@pytest.mark.parametrize("is_left_first", [False, True])
def test_an_error_that_nobody_takes_keeps_nothing_in_memory(is_left_first):
    let_go = threading.Event()
    left = untaken(let_go, is_left_first=is_left_first)
    let_go.set()
    wait_until(lambda: left() is None, "nothing refers to it, itself included")


def taken():
    """One whose error was taken."""
    with Staging(Maker(fails_at=0), 1) as staging, suppress(ZeroDivisionError):
        staging.wait_next()
    return weakref.ref(staging)


@pytest.mark.usefixtures("no_garbage_collector")
def test_an_error_that_was_taken_keeps_nothing_in_memory():
    left = taken()
    wait_until(lambda: left() is None, "nothing refers to it, itself included")


def test_python_waits_for_it_before_it_shuts_down():
    staging = Staging(Maker(), 1)
    exit_guard._end_all()
    wait_until(lambda: has_ended(staging), "its thread has ended")
