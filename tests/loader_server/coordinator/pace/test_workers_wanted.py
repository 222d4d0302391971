"""How many workers a job wants, in simulated worlds: steps, ramps, noise, slow networks, late and lost workers."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from loader_server.coordinator.events import Received, Ticked
from loader_server.coordinator.pace.pace_record import JobPace
from loader_server.coordinator.pace.workers_wanted import WorkersWanted
from loader_server.machine.worker_shares import Shares
from tests.support.coordinator import attach, beat, coordinator, progress, register
from tests.support.scaling_world import ScalingWorld

if TYPE_CHECKING:
    from tests.support.scaling_world import Seconds


def always(seconds: float) -> Seconds:
    return lambda _world: seconds


def about(seconds: float, regularity: float = 2) -> Seconds:
    return lambda world: world.random.gammavariate(regularity, seconds / regularity)


# --- up ---


@pytest.mark.parametrize("needed", [1, 2, 5, 16, 40])
def test_from_one_worker_to_the_right_number_within_30_s(needed: int) -> None:
    """The fewest with which trainers wait for less than 2 %, in at most three changes."""
    world = ScalingWorld(always(0.2), always(0.2 / (needed - 0.4)))
    world.run(30)
    assert world.there == world.numbers[-1] == needed
    assert len(world.history) <= 3
    assert world.reversals == 0
    assert world.waiting(60) < 0.02
    world.run(600)
    assert world.there == needed, "and there it stays"


@pytest.mark.parametrize("seed", range(10))
def test_with_builds_of_any_length_trainers_are_served_and_few_workers_idle(seed: int) -> None:
    world = ScalingWorld(about(0.2), about(0.2 / 12), seed=seed)
    world.run(120)
    assert world.waiting(60) < 0.04
    assert 12 <= world.there <= 16
    assert world.reversals == 0


def test_workers_that_come_late_are_no_failure() -> None:
    world = ScalingWorld(always(0.2), always(0.2 / 15.5), comes_after_s=45)
    world.run(300)
    assert world.numbers == [8, 16]
    assert world.waiting(30) < 0.02


def test_workers_that_never_come_are_wanted_all_the_same_and_no_more_of_them() -> None:
    world = ScalingWorld(always(0.2), always(0.2 / 4.6), most=2)
    world.run(900)
    assert world.numbers == [5]


def test_a_ramp_is_followed_up_and_down_with_one_turn() -> None:
    def step_s(world: ScalingWorld) -> float:
        return 0.05 / (1 + max(0.0, min(world.now_s, 900 - world.now_s) - 200) / 50)

    world = ScalingWorld(always(0.2), step_s, workers=4)
    world.run(450)
    assert world.there == world.numbers[-1] >= 20
    assert world.waiting(10) < 0.1
    world.run(900)
    assert world.there <= 5
    assert world.reversals == 1
    assert max(world.numbers) <= 30


def test_a_step_of_demand_is_met_within_20_s_and_left_slowly() -> None:
    def step_s(world: ScalingWorld) -> float:
        return 0.2 / (20.5 if 200 <= world.now_s < 600 else 4.5)

    world = ScalingWorld(about(0.2, 1), step_s, workers=4)
    world.run(200)
    assert world.there in (5, 6)
    world.run(20)
    assert 20 <= world.there <= 26
    world.run(390)
    assert world.there >= 20, "nothing is left at once"
    world.run(300)
    assert world.there <= 8
    assert world.reversals == 1


# --- what more workers do not help ---


@pytest.mark.parametrize("workers", [1, 2, 4, 16])
def test_behind_a_slow_network_one_worker_is_enough(workers: int) -> None:
    """Those that idle while trainers wait are given away as soon as that is seen."""
    world = ScalingWorld(always(0.05), always(0.05), wire_s=0.1, workers=workers)
    world.run(7)
    assert world.there <= 2, "a single worker is seen filling the window"
    world.run(13)
    assert world.there == 1
    world.run(900)
    assert set(world.numbers) <= {1, 2}
    assert len(world.history) <= 2


def test_behind_a_network_that_is_nearly_fast_enough_a_step_is_tried_and_taken_back() -> None:
    """And not tried again for five minutes, then for ten."""
    world = ScalingWorld(always(0.14), always(0.05), wire_s=0.1, workers=2)
    world.run(1200)
    tries_s = [at_s for at_s, number in world.history if number > 2]
    assert world.there == 2
    assert max(world.numbers) <= 4
    assert tries_s[1] - tries_s[0] > 300
    assert tries_s[2] - tries_s[1] > 600
    assert sum(number == 2 for number in world.numbers) == len(tries_s)


def test_tries_that_fail_again_and_again_are_an_hour_apart_at_last() -> None:
    world = ScalingWorld(always(0.14), always(0.05), wire_s=0.1, workers=2)
    world.run(14_000)
    tries_s = [at_s for at_s, number in world.history if number > 2]
    gaps_s = [second_s - first_s for first_s, second_s in pairwise(tries_s)]
    assert len(gaps_s) >= 6
    assert all(3600 < gap_s < 3700 for gap_s in gaps_s[4:])


def test_a_slow_store_is_not_asked_by_more_workers_than_help() -> None:
    """Up to three at once it is as fast for each; after that all together are no faster."""
    world = ScalingWorld(lambda world: 0.1 * max(1.0, world.building / 3), always(0.01))
    world.run(40)
    assert world.numbers == [8, 3]
    world.run(250)
    assert world.there == 3
    assert world.numbers == [8, 3]


def test_that_more_workers_do_not_help_is_seen_also_if_only_one_of_them_comes() -> None:
    """As on a machine that has no more of them: 30 batches a second are all that the store has."""
    world = ScalingWorld(lambda world: max(1, world.building) / 30, always(0.001), workers=2, most=3)
    world.run(60)
    assert world.numbers == [16, 2]
    assert world.there == 2


def test_a_step_whose_workers_come_one_by_one_is_judged_again_by_all() -> None:
    """Up to three at once the store is as fast for each."""
    world = ScalingWorld(lambda world: 0.1 * max(1.0, world.building / 3), always(0.001), most=2)
    world.run(60)
    assert world.there == 2
    assert world.numbers == [8]
    world.most = 100
    world.comes_again()
    world.run(60)
    assert world.numbers == [8, 3]


def test_a_job_that_gets_no_batch_at_all_keeps_one_worker() -> None:
    rule = WorkersWanted()
    numbers = [rule.look(JobPace(workers=1, busy=0.2, trainers=1, read=0, waited=1.0), at / 2) for at in range(400)]
    assert set(numbers) == {None, 1}


def test_a_first_build_that_takes_minutes_is_no_reason_for_more_than_one_try() -> None:
    rule = WorkersWanted()
    workers, numbers = 1, []
    for at in range(600):
        numbers.append(rule.look(JobPace(workers=workers, busy=workers, trainers=1, read=0, waited=1.0), at / 2))
        workers = numbers[-1] or workers
    assert set(numbers) == {None, 1, 8}
    assert numbers[-1] == 1


# --- down ---


@pytest.mark.parametrize(("high", "low"), [(16, 1), (16, 4), (40, 1), (40, 8)])
def test_back_from_a_demand_that_has_gone_in_three_changes(high: int, low: int) -> None:
    """The first once a minute has left room, the last half a minute later, however the number was reached."""
    begins_s = 120.0

    def step_s(world: ScalingWorld) -> float:
        return 0.1 / ((high if world.now_s < begins_s else low) - 0.4)

    world = ScalingWorld(always(0.1), step_s)
    world.run(begins_s)
    ups = len(world.history)
    assert world.there == high
    world.run(100)
    downs = world.history[ups:]
    assert 1 <= len(downs) <= 3
    assert world.reversals == 1
    assert low <= world.there <= low / 0.85 + 1
    assert downs[0][0] - begins_s > 55, "a short lull costs nothing"
    reached = list(world.numbers)
    world.run(300)
    assert world.numbers == reached
    assert world.waiting(60) < 0.02


def test_each_way_down_begins_with_a_quarter() -> None:
    def step_s(world: ScalingWorld) -> float:
        return 0.1 / (15.6 if world.now_s < 120 else 7.6 if world.now_s < 400 else 1.6)

    world = ScalingWorld(always(0.1), step_s)
    world.run(400)
    before = world.there
    first = len(world.history)
    world.run(200)
    downs = [before, *world.numbers[first:]]
    assert downs[-1] == 2
    assert downs[1] >= before - before // 4
    assert downs[2] >= downs[1] // 2


def test_workers_that_trainers_waited_for_at_once_are_not_left_again_for_ten_minutes() -> None:
    """Fewer than seven workers are slow, which no load shows: their caches are too small together."""
    world = ScalingWorld(lambda world: 0.2 if world.there >= 7 else 0.6, always(0.05), workers=8)
    world.run(60)
    assert world.numbers == [6, 10]
    taken_back_s = world.history[-1][0]
    world.run(2000)
    tries_s = [at_s for at_s, number in world.history[2:] if number < 7]
    assert tries_s[0] - taken_back_s > 300
    assert all(second_s - first_s > 600 for first_s, second_s in pairwise(tries_s))
    assert len(tries_s) >= 2


def test_a_step_down_that_costs_rate_is_taken_back_although_workers_idle() -> None:
    """Each worker's socket carries ten batches a second, and trainers could read any number."""
    rule = WorkersWanted()
    workers, numbers = 4, []
    for at in range(520):
        rule.look(pace(workers=workers, busy=0.25 * workers, read=5 * workers, waited=0.5), at / 2)
        workers = rule.wanted or workers
        numbers.append(workers)
    changes = [number for number, before in zip(numbers[1:], numbers, strict=False) if number != before]
    assert changes == [2, 4], "and it is not tried again for five minutes"


def test_a_slow_trainer_gives_workers_away_in_growing_steps() -> None:
    world = ScalingWorld(always(0.2), always(10), workers=8)
    world.run(60)
    assert world.there == 8, "too little is read for a judgement"
    world.run(200)
    assert world.numbers == [8, 6, 3, 1]


def test_what_a_trainer_needs_is_known_once_it_reads_steadily() -> None:
    world = ScalingWorld(always(0.2), always(0.2), workers=8)
    world.run(10)
    assert world.there == 2
    world.run(900)
    assert world.waiting(60) < 0.02
    assert world.numbers == [2]


@pytest.mark.parametrize("seed", range(5))
def test_a_step_down_that_made_trainers_wait_is_not_tried_again_soon(seed: int) -> None:
    def step_s(world: ScalingWorld) -> float:
        """Bursts of two in eight seconds."""
        return 0.01 if int(world.now_s) % 8 < 2 else 0.1

    world = ScalingWorld(always(0.2), step_s, workers=4, seed=seed)
    world.run(900)
    assert world.reversals <= 2


# --- pauses, losses, restarts ---


def test_pauses_of_all_trainers_change_nothing() -> None:
    """A validation, a checkpoint or a compilation of 20 s in every two minutes."""

    def step_s(world: ScalingWorld) -> float:
        return 0.1 if world.now_s % 120 < 100 else 20.0

    world = ScalingWorld(always(0.3), step_s)
    world.run(1500)
    assert world.there in (3, 4)
    assert world.reversals == 0
    assert len(world.history) <= 2


def test_after_a_pause_a_quiet_moment_is_no_calm_minute() -> None:
    """The seconds of the pause are no seconds in which workers had room."""
    rule = WorkersWanted()
    for at in range(200):
        rule.look(pace(busy=3.0), at / 2)
    assert rule.wanted == 4
    for at in range(200, 500):
        rule.look(pace(busy=0.0, read=0), at / 2)
    for at in range(500, 560):
        rule.look(pace(busy=0.5), at / 2)
    assert rule.wanted == 4
    for at in range(560, 660):
        rule.look(pace(busy=0.5), at / 2)
    assert rule.wanted is not None
    assert rule.wanted < 4


def test_a_step_is_not_called_a_failure_because_trainers_left_meanwhile() -> None:
    rule = WorkersWanted()
    for at in range(16):
        rule.look(pace(busy=4.0, trainers=4, read=40, waited=0.6), at / 2)
    assert rule.wanted == 10
    for at in range(16, 60):
        rule.look(pace(workers=10, busy=10.0, trainers=2, read=20, waited=0.6), at / 2)
    assert rule.wanted is not None
    assert rule.wanted > 10


def test_a_first_step_that_takes_a_minute_to_compile_costs_no_worker() -> None:
    world = ScalingWorld(always(0.3), lambda world: 60.0 if world.read == 1 else 0.3 / 6.5, workers=8)
    world.run(70)
    assert world.there == 8
    world.run(300)
    assert set(world.numbers) == {8}


def test_a_lost_host_changes_nothing_while_its_workers_come_back() -> None:
    world = ScalingWorld(always(0.2), always(0.2 / 8.5), comes_after_s=5)
    world.run(120)
    before = world.numbers
    world.lose(4)
    world.comes_again()
    world.run(200)
    assert world.numbers == before
    assert world.there == 9


def test_a_coordinator_that_begins_anew_finds_the_same_number() -> None:
    world = ScalingWorld(always(0.2), always(0.2 / 8.5))
    world.run(120)
    world.forget()
    world.run(200)
    assert world.there == 9
    assert world.reversals == 0


def test_half_of_the_trainers_leave() -> None:
    world = ScalingWorld(always(0.2), always(0.05), trainers=4)
    world.run(60)
    assert world.there in (16, 17)
    world.leave()
    world.leave()
    world.run(300)
    assert 8 <= world.there <= 10
    assert world.waiting(60) < 0.02
    assert world.reversals == 1


def test_a_trainer_that_waits_in_vain_beside_others_does_not_turn_the_number() -> None:
    rule = WorkersWanted()
    for at in range(100):
        rule.look(JobPace(workers=4, busy=3.8, trainers=2, read=10, waited=0.01), at / 2)
    assert rule.wanted == 4


def pace(**other: float) -> JobPace:
    fields = {"workers": 4, "busy": 1.0, "trainers": 1, "read": 20, "waited": 0.0}
    return JobPace(**{**fields, **other})  # type: ignore[arg-type]


def test_nothing_is_known_until_trainers_have_read_for_some_seconds() -> None:
    rule = WorkersWanted()
    assert [rule.look(pace(), at / 2) for at in range(13)] == [None] * 13
    assert rule.look(pace(), 6.5) == 2


def test_without_workers_nothing_is_known() -> None:
    rule = WorkersWanted()
    assert {rule.look(pace(workers=0, busy=0.0, read=0, waited=1.0), at / 2) for at in range(100)} == {None}


def test_after_a_minute_without_any_trainer_one_worker_is_wanted() -> None:
    rule = WorkersWanted()
    for at in range(30):
        rule.look(pace(busy=3.0), at / 2)
    assert rule.wanted == 4
    assert rule.look(pace(trainers=0, busy=0.0, read=0), 15.0) == 4
    assert rule.look(pace(trainers=0, busy=0.0, read=0), 74.5) == 4
    assert rule.look(pace(trainers=0, busy=0.0, read=0), 75.0) == 1
    assert rule.look(pace(busy=3.0), 80.0) is None, "what those who come need is not known yet"
    for at in range(161, 190):
        rule.look(pace(busy=3.0), at / 2)
    assert rule.wanted == 4


def test_if_trainers_never_came_that_takes_ten_seconds() -> None:
    rule = WorkersWanted()
    assert rule.look(pace(trainers=0), 0.0) is None
    assert rule.look(pace(trainers=0), 9.5) is None
    assert rule.look(pace(trainers=0), 10.0) == 1


def test_the_coordinator_wants_what_heartbeats_ask_for() -> None:
    """Two workers are always busy, and the trainer waits for three quarters of its time."""
    state = coordinator()
    for incarnation in (1, 2):
        state.handle(Received(b"%d" % incarnation, register(f"w{incarnation}", incarnation)), 0.0)
    state.handle(Received(b"t", attach()), 0.0)
    assert state.report(0.0)["workers_wanted"] is None
    for at in range(1, 21):
        now_s = at / 2
        for incarnation in (1, 2):
            busy = beat(f"w{incarnation}", incarnation, busy_us=int(1e6 * now_s))
            state.handle(Received(b"%d" % incarnation, busy), now_s)
        state.handle(Received(b"t", progress(0, 0, 5 * at, waited_permille=750)), now_s)
        state.handle(Ticked(), now_s)
    assert state.report(10.0)["workers_wanted"] == 8


def test_workers_that_are_there_and_have_work_are_wanted_before_anybody_waits() -> None:
    """As on a machine where no other job took them."""
    rule = WorkersWanted()
    for at in range(20):
        rule.look(pace(workers=8, busy=1.2), at / 2)
    assert rule.wanted == 2
    for at in range(20, 60):
        rule.look(pace(workers=8, busy=5.2), at / 2)
    assert rule.wanted == 6


# --- noise ---


def noisy(seed: int) -> ScalingWorld:
    """A job of constant demand on its mean: builds and steps of any length, and any number of workers to begin with."""
    draw = random.Random(seed)
    build_s, load = draw.uniform(0.5, 1.0), draw.uniform(1.2, 6.0)
    return ScalingWorld(
        about(build_s),
        about(build_s / load),
        seed=seed,
        workers=draw.choice((1, 2, 4, 8)),
        window=draw.choice((16, 64)),
    )


def turns(seeds: range, over_s: float) -> Counter[int]:
    """How many of these worlds turned how often."""
    counts: Counter[int] = Counter()
    for seed in seeds:
        world = noisy(seed)
        world.run(over_s)
        counts[world.reversals] += 1
    return counts


def test_noise_makes_no_number_flap() -> None:
    counts = turns(range(100), 150)
    assert max(counts) <= 1
    assert counts[0] >= 97


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_noise_of_10_000_seeds_makes_no_number_flap() -> None:
    """None goes back and forth; a step that went too far is left again in one of a hundred."""
    counts = turns(range(10_000), 120)
    assert max(counts) <= 1
    assert counts[0] >= 9_900


# --- what the model of stations says ---


def followed(rule: WorkersWanted, seconds: float, *, workers: int, began_s: float = 0.0, **facts: Any) -> int | None:
    """What is wanted after so long, twice a second the same; workers come and go as they are wanted, if they may."""
    wanted = None
    for at in range(int(2 * seconds)):
        wanted = rule.look(JobPace(workers=workers, trainers=1, **facts), began_s + at / 2)
    return wanted


@pytest.mark.parametrize(
    ("busy", "waited", "gain", "wanted"),
    [
        # Behind a slow network or a small window workers may look busy (they wait for reads): no more of them help.
        (3.0, 0.8, 0.0, 4),
        (1.5, 0.8, 0.0, 2),
        (0.3, 0.8, 0.0, 1),
        # The same workers and waiting, but transforms are the limit.
        (3.0, 0.8, 4.0, 15),
        (3.0, 0.8, 1.0, 6),
        # Not known: waiting counts as far as workers are busy.
        (3.0, 0.8, None, 15),
        (0.3, 0.8, None, 1),
    ],
)
def test_workers_are_wanted_as_far_as_more_of_them_would_gain(
    busy: float, waited: float, gain: float | None, wanted: int
) -> None:
    rule = WorkersWanted()
    assert followed(rule, 7, workers=3, busy=busy, read=10, waited=waited, workers_gain=gain) == wanted


def test_no_step_is_tried_that_is_known_to_gain_nothing() -> None:
    """Without the model workers that are busy for most of the time are worth a try."""
    for gain, numbers in ((None, {3, 4}), (0.0, {3})):
        rule, wanted = WorkersWanted(), set()
        for at in range(600):
            wanted.add(rule.look(JobPace(3, 2.3, 1, 10, 0.02 if at < 40 else 0.3, gain), at / 2))
        assert wanted - {None} == numbers, gain


def test_a_job_that_waits_for_its_network_leaves_workers_to_one_that_waits_for_transforms() -> None:
    """Three workers for two jobs, two at first with the first: its model says that more would not help."""
    shares, numbers = Shares(3), {"network": 2, "transforms": 1}
    rules = {name: WorkersWanted() for name in numbers}
    for at in range(400):
        now_s = at / 2
        busy = {"network": 0.9, "transforms": float(numbers["transforms"])}
        for name, gain in (("network", 0.0), ("transforms", 4.0 / numbers["transforms"])):
            wanted = rules[name].look(JobPace(numbers[name], busy[name], 1, 10, 0.6, gain), now_s)
            if wanted is not None:
                shares.hear(name, wanted)
        if now_s >= shares.due_s():
            numbers = shares.look(numbers, now_s)
    assert numbers == {"network": 1, "transforms": 2}


def test_workers_that_crash_at_once_leave_no_number_unknown_for_ever() -> None:
    rule = WorkersWanted()
    seen = [rule.look(JobPace(workers=at % 3, busy=0.0, trainers=1, read=0, waited=1.0), at / 2) for at in range(240)]
    assert set(seen[:118]) == {None}
    assert set(seen[122:]) == {1}
    wanted = followed(rule, 20, workers=1, began_s=120.0, busy=1.0, read=10, waited=0.8)
    assert wanted is not None
    assert wanted > 1, "once a worker stays the rule goes on as ever"


def test_trainers_that_do_something_else_leave_the_number_unknown() -> None:
    rule = WorkersWanted()
    assert {rule.look(JobPace(at % 3, 0.0, 1, 0, 0.0), at / 2) for at in range(240)} == {None}
