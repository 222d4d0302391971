"""Elastic runs whose members are killed, stopped and replaced: in the committed model each sample counts once."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.faults.elastic_chaos import Seat, check, job_in
from tests.support.elastic_trainer import HURRY
from tests.support.loaders import Loaders, ask, running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EPOCHS = 3


@contextmanager
def seats(loaders: Loaders, folder: Path, *names: str, limits=(2, 3), step_s=0.3) -> Iterator[list[Seat]]:
    """Trainers that are ended with the block."""
    made = [Seat(name, folder, loaders.endpoint, EPOCHS, limits, step_s) for name in names]
    try:
        for seat in made:
            seat.start()
        yield made
    finally:
        for seat in made:
            seat.kill()


def elastic(loaders: Loaders):
    return ask(loaders.endpoint)["streams"]["train"]["elastic"]


def world(seat: Seat) -> tuple[int, int, int]:
    """The version of its newest world, its rank and how many there are; zeros before the first."""
    lines = seat.lines("world")
    return lines[-1][2:5] if lines else (0, 0, 0)


def trains_in_a_world_of(ranks: int, *members: Seat) -> bool:
    """Whether these are all in one world of this size, and have trained in it."""
    worlds = {world(seat)[::2] for seat in members}
    steps = [seat.lines("step") for seat in members]
    return (
        len(worlds) == 1
        and next(iter(worlds))[1] == ranks
        and all(told and told[-1][2] == world(seat)[0] for told, seat in zip(steps, members, strict=True))
    )


def finish(*members: Seat) -> None:
    """They have been through what they had to, so they may be quick from here on."""
    (members[0].folder / HURRY).touch()
    for seat in members:
        assert seat.process.wait(120) == 0


def assert_each_sample_counted_once(folder: Path) -> None:
    checked = check(folder, EPOCHS)
    assert (checked["lost"], checked["repeated"], checked["breaks"]) == (0, 0, 0), checked
    assert checked["commits"] > 3


@pytest.mark.slow
@pytest.mark.heritage("E15")
@pytest.mark.heritage("E18")
@pytest.mark.fault(17)
@pytest.mark.timeout(300)
def test_a_run_goes_on_without_members_that_are_killed_and_takes_in_those_that_join(tmp_path):
    with running(job_in(tmp_path), workers=1) as loaders, seats(loaders, tmp_path, "a", "b", "c") as (one, two, three):
        wait_until(lambda: trains_in_a_world_of(3, one, two, three), "all train")
        chief, *others = sorted((one, two, three), key=lambda seat: world(seat)[1])
        wait_until(lambda: chief.lines("commit"), "the chief has committed")
        chief.kill()
        wait_until(lambda: trains_in_a_world_of(2, *others), "the others go on without their chief")
        assert [world(seat)[1] for seat in others] == [0, 1], "the next rank is chief now"
        loaders.coordinator().kill()
        chief.start()
        wait_until(lambda: trains_in_a_world_of(3, *others, chief), "it is let in again")
        assert [world(seat)[1] for seat in (*others, chief)] == [0, 1, 2]
        finish(one, two, three)
        wait_until(lambda: elastic(loaders)["stage"] == "ended", "the coordinator has heard of the end")
    assert_each_sample_counted_once(tmp_path)


@pytest.mark.slow
@pytest.mark.fault(17)
@pytest.mark.timeout(300)
def test_a_chief_that_was_taken_for_dead_commits_nothing_more_and_comes_back_as_another(tmp_path):
    with running(job_in(tmp_path), workers=1) as loaders, seats(loaders, tmp_path, "a", "b", "c") as members:
        wait_until(lambda: trains_in_a_world_of(3, *members), "all train")
        chief, *others = sorted(members, key=lambda seat: world(seat)[1])
        chief.send(signal.SIGSTOP)
        wait_until(lambda: trains_in_a_world_of(2, *others), "the others go on without their chief")
        version = world(others[0])[0]
        chief.send(signal.SIGCONT)
        wait_until(lambda: trains_in_a_world_of(3, *members), "it is let in again")
        assert world(chief)[0] > version
        assert world(chief)[1] == 2
        finish(*members)
    assert_each_sample_counted_once(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_below_the_least_the_rest_waits_and_one_too_many_is_a_spare(tmp_path):
    limits = {"limits": (2, 2)}
    with (
        running(job_in(tmp_path), workers=1) as loaders,
        seats(loaders, tmp_path, "a", "b", **limits) as members,
    ):
        wait_until(lambda: trains_in_a_world_of(2, *members), "both train")
        members[0].kill()
        wait_until(lambda: elastic(loaders)["stage"] == "changing", "the other is alone")
        wait_until(lambda: len(elastic(loaders)["waiting"]) == 1, "and waits")
        with seats(loaders, tmp_path, "c", "d", **limits) as more:
            wait_until(lambda: elastic(loaders)["stage"] == "training", "it goes on with one of them")
            wait_until(lambda: len(elastic(loaders)["waiting"]) == 1, "the other is a spare")
            wait_until(lambda: any(world(seat)[0] for seat in more), "the one has begun")
            going = next(seat for seat in more if world(seat)[0])
            going.kill()
            wait_until(lambda: len([seat for seat in more if world(seat)[0]]) == 2, "the spare takes its place")
            finish(members[1], next(seat for seat in more if seat is not going))
    assert_each_sample_counted_once(tmp_path)
