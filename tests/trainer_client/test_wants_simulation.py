"""Random worlds: whatever fails in whatever order, nothing is given twice, nothing is written under a reader, and it goes on."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.simulation import STEPS_A_TIMEOUT, TIMEOUT_S, Setting, World

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
    st.tuples(st.just("refuse"), which, st.booleans()),
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
        world.reopen(min(body[0], world.setting.batches - 1))
    else:
        act_on(world, kind, body[0] % len(world.processes), *body[1:])
    world.check()


def act_on(world: World, kind: str, one: int, *body) -> None:
    process, link = world.processes[one], world.links[one]
    if kind in ("hold", "release"):
        link.held = kind == "hold"
    elif kind == "cut":
        world.cut(one, *body)
    elif kind == "kill":
        world.kill(one, *body)
    elif kind == "restart":
        world.restart(one)
    elif kind in ("stop", "continue"):
        process.stopped = kind == "stop"
    elif kind == "hang":
        process.hung_steps = body[0]
    elif kind == "slow":
        process.slow = body[0]
    elif one and kind == "wrong":
        process.wrong = body[0]
    elif one and kind == "refuse":
        process.refusing = body[0]
    elif kind == "drain" and process.turns:
        process.drain(link)
    elif kind == "forget" and process.turns:
        process.forget()


def run(setting: Setting, script, *, stopped_stay: bool) -> World:
    world = World(setting)
    for action in script:
        act(world, *action)
    world.heal(stopped_stay=stopped_stay)
    world.read_until(len(world.taken) + 2 * setting.batches, gap_s=8 * TIMEOUT_S)
    return world


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(setting=worlds, script=st.lists(actions, max_size=40), stopped_stay=st.booleans())
def test_it_goes_on_after_any_faults(setting, script, stopped_stay):
    run(setting, script, stopped_stay=stopped_stay)
