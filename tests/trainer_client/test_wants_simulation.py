"""Random worlds: whatever fails in whatever order, each batch comes once, whole and in turn, and it goes on."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.errors import ReadError
from tests.support.simulated_worker import BUILD_STEPS
from tests.support.simulation import STEP_S, STEPS_A_TIMEOUT, TIMEOUT_S, Setting, World
from trainer_client import want_events as e
from trainer_client.ledger import SlotState

WORKERS = 4

worlds = st.builds(
    Setting,
    in_slot=st.lists(st.booleans(), min_size=1, max_size=WORKERS).map(tuple),
    slots=st.integers(2, 8),
    prefetch=st.integers(1, 6),
    hold=st.integers(0, 4),
    replicas=st.integers(1, 2),
).filter(lambda one: one.prefetch < one.slots)

which = st.integers(0, WORKERS - 1)
cuts = st.sampled_from(["lost", "read before", "read after"])
actions = st.one_of(
    st.tuples(st.just("step"), st.integers(1, 3 * STEPS_A_TIMEOUT)),
    st.tuples(st.just("step"), st.integers(1, 3)),
    st.tuples(st.just("take"), st.integers(1, 6)),
    st.tuples(st.just("give back")),
    st.tuples(st.just("hold"), which),
    st.tuples(st.just("release"), which),
    st.tuples(st.just("cut"), which, cuts),
    st.tuples(st.just("kill"), which, cuts),
    st.tuples(st.just("restart"), which),
    st.tuples(st.just("stop"), which),
    st.tuples(st.just("continue"), which),
    st.tuples(st.just("hang"), which, st.integers(1, 4 * STEPS_A_TIMEOUT)),
    st.tuples(st.just("slow"), which, st.integers(0, 40)),
    st.tuples(st.just("wrong"), which, st.booleans()),
    st.tuples(st.just("refusing"), which, st.booleans()),
    st.tuples(st.just("drain"), which),
    st.tuples(st.just("forget"), which),
    st.tuples(st.just("stall"), st.integers(1, 3 * STEPS_A_TIMEOUT)),
    st.tuples(st.just("reopen"), st.integers(0, 11)),
)


def act(world: World, kind: str, *body) -> None:
    if kind == "step":
        world.step(body[0])
    elif kind == "take":
        for _ in range(body[0]):
            world.take() or world.step()
    elif kind == "give back":
        world.give_back()
    elif kind == "stall":
        world.stall(body[0])
    elif kind == "reopen":
        world.reopen(*body)
    else:
        act_on(world, kind, body[0] % len(world.processes), *body[1:])
    world.check()


def act_on(world: World, kind: str, one: int, *body) -> None:
    process, link = world.processes[one], world.links[one]
    if kind in ("cut", "kill", "restart"):
        getattr(world, kind)(one, *body)
    elif kind in ("hold", "release"):
        link.held = kind == "hold"
    elif kind in ("stop", "continue"):
        process.stopped = kind == "stop"
    elif kind in ("drain", "forget") and process.turns:
        process.drain(link) if kind == "drain" else process.forget()
    elif kind == "hang":
        process.hung_steps = body[0]
    elif kind in ("slow", "wrong", "refusing") and (one or kind == "slow"):  # the first one builds well, if at all
        setattr(process, kind, body[0])


def run(setting: Setting, script, *, stopped_stay: bool) -> World:
    world = World(setting)
    for action in script:
        act(world, *action)
    world.heal(stopped_stay=stopped_stay)
    world.read_until(len(world.taken) + 2 * setting.batches, gap_s=8 * TIMEOUT_S)
    return world


@pytest.mark.fault(1)
@pytest.mark.fault(2)
@pytest.mark.fault(3)
@pytest.mark.fault(4)
@pytest.mark.fault(5)
@pytest.mark.fault(6)
@pytest.mark.fault(21)
@pytest.mark.fault(23)
@pytest.mark.fault(24)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(setting=worlds, script=st.lists(actions, max_size=40), stopped_stay=st.booleans())
def test_it_goes_on_after_any_faults(setting, script, stopped_stay):
    run(setting, script, stopped_stay=stopped_stay)


# --- one fault at a time, with its bound ---

ways = pytest.mark.parametrize("way", [True, False], ids=["in slot", "tcp"])

#: A build, its request and its answer, with some slack for the turns in between.
BUILD_S = (BUILD_STEPS + 5) * STEP_S


def world_of(*in_slot: bool, taken: int = 0, **other) -> World:
    world = World(Setting(in_slot=in_slot, **other))
    world.read_until(taken, gap_s=TIMEOUT_S)
    world.step(2)
    return world


@pytest.mark.fault(4)
@ways
@pytest.mark.parametrize("hold", [0, 1, 3])
def test_all_workers_but_one_are_stopped_for_ever(way, hold):
    world = world_of(way, way, way, taken=5, slots=6, prefetch=5, hold=hold)
    for one in (1, 2):
        world.processes[one].stopped = True
    assert world.read_until(40, gap_s=2 * TIMEOUT_S + BUILD_S) > TIMEOUT_S / 2


@pytest.mark.fault(4)
@ways
@pytest.mark.parametrize("hold", [0, 1, 3])
def test_stopped_workers_hold_all_ordinary_slots(way, hold):
    """The reserve serves one head after the other; a consumer that keeps what it got would else wait for itself."""
    world = World(Setting(in_slot=(way, way), slots=3, prefetch=2, hold=hold))
    world.processes[1].alive = False
    for _ in range(60):
        world.step()
        if world.ledger.count(SlotState.LENT) == 2:
            break
    world.processes[0].stopped = True
    world.step(2 * STEPS_A_TIMEOUT)
    world.restart(1)
    world.read_until(30, gap_s=TIMEOUT_S + BUILD_S)
    assert world.processes[0].stopped


@pytest.mark.fault(4)
def test_a_worker_stopped_while_it_writes_wakes_up_late_and_harms_nobody():
    world = world_of(True, True, slots=4, prefetch=3, hold=1)
    world.step(1)
    assert world.processes[0].building.written > 0
    world.processes[0].stopped = True
    world.read_until(10, gap_s=2 * TIMEOUT_S + BUILD_S)
    world.links[0].held = True  # so that it is through before it reads that nobody wants it any more
    world.processes[0].stopped = False
    world.step(10)
    world.links[0].held = False
    world.step(2)
    assert world.wants.counts.stale > 0
    world.read_until(40, gap_s=BUILD_S)


@pytest.mark.fault(5)
@ways
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_worker_hangs_in_turn_for_three_and_a_half_timeouts(way, workers):
    world = world_of(*[way] * workers, taken=2, slots=6, prefetch=4, hold=1)
    for turn in range(2 * workers):
        world.processes[turn % workers].hung_steps = round(3.5 * STEPS_A_TIMEOUT)
        world.read_until(len(world.taken) + 3, gap_s=3.5 * TIMEOUT_S + 2 * BUILD_S)
    assert world.failed is None


@pytest.mark.fault(5)
@ways
@pytest.mark.parametrize("slots", [2, 6])
def test_every_build_hangs_its_worker_for_three_and_a_half_timeouts(way, slots):
    """No livelock: waiting doubles until one of them is waited for."""
    world = World(Setting(in_slot=(way, way, way), slots=slots, prefetch=slots - 1, hold=1))
    for process in world.processes:
        process.hogging = round(3.5 * STEPS_A_TIMEOUT)
    world.read_until(6, gap_s=20 * TIMEOUT_S)


@pytest.mark.fault(6)
@ways
def test_a_worker_a_hundred_times_slower_does_not_stop_the_others(way):
    world = world_of(way, way, taken=8, slots=12, prefetch=8)
    world.processes[1].slow = 100
    began_s = world.now_s
    world.read_until(68, gap_s=100 * BUILD_STEPS * STEP_S)
    assert world.now_s - began_s < 60 * BUILD_S + 100 * BUILD_STEPS * STEP_S


@pytest.mark.fault(21)
@ways
def test_a_connection_that_breaks_again_and_again_is_survived(way):
    world = world_of(way, way, slots=6, prefetch=4)
    for number in range(30):
        world.cut(number % 2, after=("lost", "read before", "read after")[number % 3])
        world.step(3)
        world.take()
    world.read_until(len(world.taken) + 10, gap_s=TIMEOUT_S)


# --- interleavings that failed once, each by its name ---


@pytest.mark.fault(30)
@ways
def test_the_only_worker_drains_and_is_restarted(way):
    """The refusal of a worker that drains was taken for an error of the batch, and the feed failed."""
    world = world_of(way, taken=2)
    world.processes[0].drain(world.links[0])
    world.step(2 * STEPS_A_TIMEOUT)
    world.kill(0)
    world.step(5)
    world.restart(0)
    world.read_until(20, gap_s=TIMEOUT_S + BUILD_S)
    assert all(order.attempt == 0 for order in world.orders if isinstance(order, e.SendWant) and order.worker > 1)


@pytest.mark.fault(30)
@pytest.mark.fault(4)
@ways
def test_a_draining_worker_is_stopped_with_the_head_in_its_hands(way):
    """One that leaves was never suspected, so that its head was asked of nobody else."""
    world = world_of(way, way, slots=6, prefetch=4)
    world.step(1)
    world.processes[0].drain(world.links[0])
    world.step(1)
    world.processes[0].stopped = True
    world.read_until(20, gap_s=TIMEOUT_S + 2 * BUILD_S)


def test_a_worker_that_forgot_us_is_buried_and_comes_back_as_the_same_incarnation():
    """Its old pongs, numbered anew, denied wants that it had: their slots were lent twice."""
    setting = Setting(in_slot=(True, False, True), slots=5, prefetch=4, hold=0, replicas=2)
    script = [
        ("forget", 2), ("step", 10), ("cut", 1, "lost"), ("forget", 0), ("cut", 2, "read after"), ("take", 3),
        ("reopen", 5), ("step", 30),
    ]  # fmt: skip
    run(setting, script, stopped_stay=False)


@ways
def test_the_trainer_itself_is_away_for_long(way):
    """All workers were suspected for it, and everything was asked for again."""
    world = world_of(way, way, taken=4, slots=8, prefetch=5)
    before = world.wants.counts.asked_again
    world.stall(20 * STEPS_A_TIMEOUT)
    world.step(2)
    assert (world.wants.counts.suspected, world.wants.counts.asked_again) == (0, before)
    world.read_until(20, gap_s=BUILD_S)


@pytest.mark.fault(5)
def test_the_reserve_itself_is_at_a_worker_that_hangs_for_ever():
    """It was never taken back, though a silent worker cannot write into it."""
    world = World(Setting(in_slot=(False, False), slots=2, prefetch=1, hold=1))
    world.step(3)
    for process in world.processes:
        process.stopped = True
    world.step(6 * STEPS_A_TIMEOUT)
    world.processes[0].stopped = False
    world.read_until(10, gap_s=TIMEOUT_S + 2 * BUILD_S)


@pytest.mark.fault(7)
def test_the_head_is_refused_by_all_that_live_while_others_are_stopped_for_ever():
    """Someone might still have built it, so nobody ever said that it failed."""
    world = World(Setting(in_slot=(True, True), slots=4, prefetch=2, lost_timeout_s=5.0))
    world.processes[1].refusing = True
    world.step(2)
    world.processes[0].stopped = True
    world.step(9 * STEPS_A_TIMEOUT)
    assert isinstance(world.failed, ReadError)


@pytest.mark.fault(1)
@ways
def test_holders_die_after_the_patience_with_them_has_grown(way):
    """A fresh worker waited out the patience that was meant for the dead ones."""
    world = World(Setting(in_slot=(way, way, way, way), slots=8, prefetch=1))
    for one in (0, 1, 2, 3):
        world.processes[one].alive = one < 3
    world.step(2)
    for one in (0, 1, 2):
        world.processes[one].stopped = True
    world.step(2)
    world.restart(3)
    world.step(2)
    world.processes[3].stopped = True
    world.step(12 * STEPS_A_TIMEOUT)
    for one in (0, 1, 2, 3):
        world.kill(one)
    world.restart(0)
    world.read_until(3, gap_s=TIMEOUT_S + BUILD_S)
