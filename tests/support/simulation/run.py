"""One seed from its beginning to its end: a calm start, faults, then everything heals and has to go on."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from tests.support.simulation.adversary import Adversary
from tests.support.simulation.scheduler import Broken, Scheduler
from tests.support.simulation.world import World
from trainer_client.network import outbox

__all__ = ["Outcome", "run"]

#: Heartbeat timeouts within which two epochs have to be over once all is well.
_END_TIMEOUTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a seed; `error` is empty where all promises held."""

    seed: int
    steps: int
    error: str = ""
    diary: str = ""
    setting: str = ""
    longest_wait_s: float = 0.0


class _Clock:
    """In place of the module `time` in the outbox."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return self._scheduler.now_s

    def monotonic_ns(self) -> int:
        return int(1e9 * self._scheduler.now_s)


def run(seed: int, *, keep_all: bool = False) -> Outcome:
    """Run one seed."""
    world = World(seed, keep_all=keep_all)
    real, outbox.time = outbox.time, _Clock(world.scheduler)  # type: ignore[assignment]
    try:
        _live(world)
    except AssertionError as error:
        return _outcome(seed, world, str(error) or _where(error), keep_all=keep_all)
    except Exception as error:  # a defect of the code under test, or of the world
        return _outcome(seed, world, _where(error), keep_all=keep_all)
    finally:
        outbox.time = real
    return _outcome(seed, world, "", keep_all=keep_all)


def _outcome(seed: int, world: World, error: str, *, keep_all: bool) -> Outcome:
    scheduler = world.scheduler
    diary = scheduler.diary() if error or keep_all else ""
    wait_s = world.checks.longest_wait_s
    return Outcome(
        seed=seed, steps=scheduler.steps, error=error, diary=diary, setting=str(world.setting), longest_wait_s=wait_s
    )


def _where(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)[-6:])


def _live(world: World) -> None:
    setting, scheduler = world.setting, world.scheduler
    adversary = Adversary(world)
    world.begin()
    scheduler.run_to(scheduler.between(0.0, 0.5) * setting.timeout_s)
    adversary.begin()
    scheduler.run_to(scheduler.now_s + setting.fault_s)
    adversary.heal()
    end_s = scheduler.now_s + _END_TIMEOUTS * setting.timeout_s
    while not world.is_done():
        if scheduler.now_s > end_s:
            raise Broken(f"L1: not done after {_END_TIMEOUTS} heartbeat timeouts without a fault")
        scheduler.run_to(scheduler.now_s + setting.timeout_s / 4)
