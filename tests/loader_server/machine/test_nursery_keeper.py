"""A supervisor's nursery, and the successors of those that die."""

from __future__ import annotations

import errno
import math
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from loader_server.machine.nursery_keeper import Deaths, NurseryKeeper, start_nursery
from shared.errors import MachineError
from shared.logs import Log

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakeNursery:
    """A nursery that does as it is told."""

    def __init__(self, pid: int = 1) -> None:
        self.pid, self.interrupt_fd = pid, -1
        self.code: int | None = None
        self.said: list[bytes] = []
        self.is_late = False
        self.is_killed = self.is_closed = False

    def fileno(self) -> int:
        return 100 + self.pid

    def socket_fileno(self) -> int:
        return 200 + self.pid

    def look(self) -> int | None:
        return self.code

    def has_answered(self) -> bool:
        return bool(self.said)

    def hear_ready(self) -> bool:
        return self.said.pop() == b"ready"

    def forget_late(self) -> None:
        if not self.said.pop():
            raise ConnectionResetError
        self.is_late = False

    def kill(self) -> None:
        self.is_killed = True

    def close(self) -> None:
        self.is_closed = True


class World:
    """A keeper, and the nurseries that it has had; `errors` come instead of the next ones."""

    def __init__(self) -> None:
        self.made = [FakeNursery()]
        self.errors: list[OSError] = []
        first: Any = self.made[0]
        self.keeper = NurseryKeeper(first, 7, Log("test"), self._execute)

    def _execute(self) -> Any:
        if self.errors:
            raise self.errors.pop()
        self.made.append(FakeNursery(len(self.made) + 1))
        return self.made[-1]

    def kill(self, now_s: float) -> None:
        """Let the nursery die, and its keeper see it."""
        self.made[-1].code = -9
        self.keeper.look(now_s)


@pytest.fixture
def world() -> Iterator[World]:
    return World()


def test_one_that_lives_is_ready_and_left_alone(world: World) -> None:
    world.keeper.look(5.0)
    assert world.keeper.is_ready
    assert list(world.keeper.descriptors()) == [101]
    assert world.keeper.due_s() == math.inf
    assert world.made[0].interrupt_fd == 7
    assert len(world.made) == 1


def test_one_that_died_has_a_successor_in_the_same_turn(world: World) -> None:
    """Nothing is asked of it before it has said that it is ready."""
    world.kill(5.0)
    assert world.keeper.nursery is world.made[1]
    assert world.made[1].interrupt_fd == 7
    assert not world.keeper.is_ready
    assert list(world.keeper.descriptors()) == [102, 202]
    world.keeper.look(5.1)
    assert not world.keeper.is_ready
    world.made[1].said = [b"ready"]
    world.keeper.look(5.2)
    assert world.keeper.is_ready
    assert list(world.keeper.descriptors()) == [102]
    assert world.keeper.due_s() == math.inf


def test_a_successor_that_hangs_is_killed_and_followed_by_another(world: World) -> None:
    world.kill(5.0)
    due_s = world.keeper.due_s()
    assert 5.0 < due_s < 60.0
    world.keeper.look(due_s - 0.1)
    assert not world.made[1].is_killed
    world.keeper.look(due_s)
    assert world.made[1].is_killed
    assert world.keeper.due_s() == math.inf
    world.kill(due_s + 1)
    assert world.keeper.nursery is world.made[2]


def test_a_first_word_that_is_none_does_not_make_it_ready(world: World) -> None:
    """It has just died: its socket is readable, and says nothing."""
    world.kill(5.0)
    world.made[1].said = [b""]
    world.keeper.look(5.1)
    assert not world.keeper.is_ready


def test_the_fifth_death_in_a_minute_is_an_error(world: World) -> None:
    for second in range(4):
        world.kill(float(second))
    with pytest.raises(MachineError, match="its end 5 times in a minute, at last by signal SIGKILL"):
        world.kill(60.0)
    assert len(world.made) == 5


@pytest.mark.parametrize(("last_s", "are"), [(60.0, True), (60.1, False)])
def test_deaths_that_are_far_apart_are_not_too_many(last_s: float, are: bool) -> None:
    deaths = Deaths()
    for second in (0.0, 1.0, 2.0, 59.0):
        deaths.add(second)
        assert not deaths.are_too_many(second)
    deaths.add(last_s)
    assert deaths.are_too_many(last_s) is are


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_without_room_for_a_successor_it_is_tried_again(
    world: World, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log says so once."""
    world.errors = [OSError(number, "no room")] * 3
    world.kill(5.0)
    for _ in range(2):
        assert world.keeper.due_s() > 5.0
        assert list(world.keeper.descriptors()) == []
        world.keeper.look(world.keeper.due_s())
    assert len(world.made) == 1
    world.keeper.look(world.keeper.due_s())
    assert world.keeper.nursery is world.made[1]
    assert sum("no nursery can be started" in line for line in caplog.messages) == 1


def test_an_interpreter_that_is_gone_is_an_error(world: World) -> None:
    world.errors = [FileNotFoundError(errno.ENOENT, "No such file")]
    with pytest.raises(MachineError, match="to be started, to fork loaders from"):
        world.kill(5.0)


def test_nothing_is_asked_of_one_whose_answer_is_late(world: World) -> None:
    """It is stopped, say: what it was asked for is ended once it goes on."""
    world.made[0].is_late = True
    world.keeper.look(5.0)
    assert not world.keeper.is_ready
    assert list(world.keeper.descriptors()) == [101, 201]
    world.made[0].said = [b""]
    world.keeper.look(6.0)
    assert not world.keeper.is_ready
    world.made[0].said = [b"12"]
    world.keeper.look(7.0)
    assert world.keeper.is_ready
    assert not world.made[0].is_killed


@pytest.mark.parametrize("is_starting", [False, True])
def test_closing_ends_it_and_does_not_wait_for_one_that_still_starts(world: World, is_starting: bool) -> None:
    if is_starting:
        world.kill(5.0)
    world.keeper.close()
    assert world.made[-1].is_closed
    assert world.made[-1].is_killed is is_starting


def test_a_nursery_that_is_started_as_a_program_can_fork_when_it_is_had() -> None:
    nursery = start_nursery()
    reading, writing = os.pipe()
    try:
        child = nursery.start(["nonsense"], keep=writing)
        assert child.wait(60) not in (None, 0), "it ran, and found no such command"
        assert nursery.look() is None
    finally:
        nursery.close()
        os.close(reading)
        os.close(writing)
    assert nursery.look() is not None


@pytest.mark.parametrize(("program", "got"), [("/bin/false", "or its end"), ("/nowhere", "No such file")])
def test_a_nursery_that_never_starts_is_an_error(program: str, got: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(MachineError, match=f"expected {program} to be started, to fork loaders from") as caught:
        start_nursery()
    assert got in caught.value.got
