"""A job's actors in Ray: how many, which go first, what they are given, and what ends the job.

Ray is a fake one in this process, whose actors answer as each test has it; `make fleet-test` has the real one.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from loader_server.fleet.ray_fleet import MOST_ARGUMENT_BYTES, RayFleet
from shared.errors import MachineError, SettingsError, StokerError

ORDERS = {"coordinator": {"ends_job": True}, "worker": {"ends_job": False}}
SERVING = {"endpoint": "tcp://0.0.0.0:7400", "address": "10.0.0.7"}


class RayError(Exception):
    pass


class ActorDiedError(RayError):
    pass


class ActorAlreadyExistsError(ValueError, RayError):
    pass


class FakeActor:
    """An actor; its calls are answered with `facts`, by raising `error`, or not yet."""

    def __init__(self, ray: FakeRay, orders: str, options: dict[str, Any]) -> None:
        self.orders, self.options = orders, options
        self.facts: dict[str, Any] = {}
        self.error: Exception | None = None
        self.is_pending = self.is_killed = self.has_ended = False
        self.files: list[dict[str, str]] = []
        self.look, self.end = Call(self._look), Call(self._end)
        ray.actors.append(self)

    def _look(self, files: dict[str, str]) -> Answer:
        self.files.append(files)
        return Answer(self, dict(self.facts))

    def _end(self) -> Answer:
        self.has_ended = True
        return Answer(self, None)


class Call:
    def __init__(self, function: Any) -> None:
        self.remote = function


class Answer:
    def __init__(self, actor: FakeActor, value: Any) -> None:
        self.actor, self.value = actor, value


class FakeRay:
    """What `RayFleet` uses of the module `ray`."""

    class exceptions:
        RayError, ActorDiedError, ActorAlreadyExistsError = RayError, ActorDiedError, ActorAlreadyExistsError

    def __init__(self) -> None:
        self.actors: list[FakeActor] = []
        self.refusal: Exception | None = None

    def remote(self, _class: type) -> FakeRay:
        return self

    def options(self, **options: Any) -> Any:
        def make(orders: str) -> FakeActor:
            if self.refusal is not None:
                raise self.refusal
            return FakeActor(self, orders, options)

        return Call(make)

    def wait(self, answers: list[Answer], *, timeout: float, num_returns: int = 1) -> tuple[list[Answer], list[Answer]]:
        assert timeout == 0 or num_returns == len(answers)
        ready = [answer for answer in answers if not answer.actor.is_pending]
        return ready, [answer for answer in answers if answer not in ready]

    def get(self, answer: Answer) -> Any:
        if answer.actor.error is not None:
            raise answer.actor.error
        return answer.value

    def kill(self, actor: FakeActor) -> None:
        actor.is_killed = True

    @property
    def coordinator(self) -> FakeActor:
        return self.actors[0]

    @property
    def workers(self) -> list[FakeActor]:
        return [actor for actor in self.actors[1:] if not actor.is_killed]


@pytest.fixture
def ray() -> FakeRay:
    return FakeRay()


def make(ray: FakeRay, workers: tuple[int, int] = (1, 4)) -> RayFleet:
    placing = {"num_cpus": 2.0, "resources": {"disk": 1}, "label_selector": {"pool": "loaders"}}
    return RayFleet(ray, "digits", ORDERS, placing, workers)


def turn(fleet: RayFleet, times: int = 2) -> None:
    """An answer is heard in the turn after the one that asks."""
    for _ in range(times):
        fleet.turn()


def serve(ray: FakeRay, fleet: RayFleet, **facts: Any) -> None:
    ray.coordinator.facts = SERVING | facts
    turn(fleet)


def test_the_coordinators_actor_has_a_name_and_takes_no_core(ray: FakeRay) -> None:
    make(ray)
    assert ray.coordinator.options == {
        "max_restarts": -1,
        "name": "stoker-digits",
        "namespace": "stoker",
        "num_cpus": 0,
        "label_selector": {"pool": "loaders"},
    }


def test_there_are_no_workers_before_the_coordinator_serves(ray: FakeRay) -> None:
    fleet = make(ray)
    turn(fleet)
    assert (ray.workers, fleet.endpoint) == ([], "")


@pytest.mark.parametrize(("is_pending", "reason"), [(True, "it waits for a node"), (False, "it makes the index")])
def test_a_coordinator_that_is_long_in_coming_is_said_once_to_be_awaited(
    ray: FakeRay,
    is_pending: bool,
    reason: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = make(ray)
    ray.coordinator.is_pending = is_pending
    ray.coordinator.facts = {"address": "10.0.0.7"}
    turn(fleet)
    assert caplog.records == []
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 16)
    turn(fleet, 4)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("coordinator does not serve yet")
    assert reason in line


def test_workers_are_spread_and_take_what_was_asked_for(ray: FakeRay) -> None:
    fleet = make(ray, (2, 2))
    serve(ray, fleet)
    assert fleet.endpoint == "tcp://10.0.0.7:7400"
    assert [worker.options for worker in ray.workers] == 2 * [
        {
            "max_restarts": -1,
            "scheduling_strategy": "SPREAD",
            "num_cpus": 2.0,
            "resources": {"disk": 1},
            "label_selector": {"pool": "loaders"},
        }
    ]


def test_the_number_of_workers_follows_what_is_wanted_and_the_newest_go_first(ray: FakeRay) -> None:
    fleet = make(ray)
    serve(ray, fleet)
    first = ray.workers
    assert len(first) == 1
    serve(ray, fleet, workers_wanted=3)
    three = ray.workers
    assert (len(three), three[0]) == (3, first[0])
    serve(ray, fleet, workers_wanted=99)
    assert len(ray.workers) == 4
    serve(ray, fleet, workers_wanted=2)
    assert ray.workers == three[:2]
    serve(ray, fleet, workers_wanted=None)
    assert ray.workers == three[:2]


def test_a_worker_that_waits_for_a_node_is_asked_once(ray: FakeRay) -> None:
    fleet = make(ray)
    serve(ray, fleet)
    (worker,) = ray.workers
    worker.is_pending = True
    turn(fleet, 5)
    assert len(worker.files) == 1


def test_workers_get_the_coordinators_new_address(ray: FakeRay) -> None:
    fleet = make(ray)
    serve(ray, fleet)
    serve(ray, fleet, address="10.0.0.8")
    turn(fleet)
    assert ray.workers[0].files[-1] == {"endpoint": "tcp://10.0.0.8:7400\n"}


def test_a_coordinator_that_comes_again_elsewhere_costs_nothing_meanwhile(ray: FakeRay) -> None:
    fleet = make(ray)
    serve(ray, fleet)
    ray.coordinator.error = RayError("the actor is unavailable")
    turn(fleet, 20)
    assert (fleet.endpoint, len(ray.workers)) == ("tcp://10.0.0.7:7400", 1)
    ray.coordinator.error, ray.coordinator.facts = None, {"error": {}}
    turn(fleet)
    assert fleet.endpoint == "tcp://10.0.0.7:7400", "it may fail for a while, once it has served"


def test_a_worker_that_ray_gives_up_is_replaced(ray: FakeRay) -> None:
    fleet = make(ray)
    serve(ray, fleet)
    (lost,) = ray.workers
    lost.error = ActorDiedError("its creation failed")
    turn(fleet, 6)
    assert len(ray.actors) == 3
    assert fleet._workers[0].handle is ray.actors[2]


def test_the_error_of_a_coordinator_that_cannot_begin_is_raised(ray: FakeRay) -> None:
    fleet = make(ray)
    ray.coordinator.facts = {"address": "10.0.0.7", "error": dict.fromkeys(("expected", "got", "where", "remedy"), "x")}
    with pytest.raises(StokerError, match="x: expected x, got x"):
        turn(fleet)


def test_an_actor_that_ray_cannot_run_is_an_error_that_says_why(ray: FakeRay) -> None:
    fleet = make(ray)
    ray.coordinator.error = ActorDiedError("No module named 'loader_server'")
    with pytest.raises(MachineError, match="No module named 'loader_server'"):
        turn(fleet, 7)


def test_the_job_is_over_when_its_coordinator_has_ended(ray: FakeRay) -> None:
    fleet = make(ray)
    serve(ray, fleet)
    assert not fleet.is_over
    serve(ray, fleet, is_over=True)
    assert fleet.is_over


def test_a_job_that_is_served_already_is_refused(ray: FakeRay) -> None:
    ray.refusal = ActorAlreadyExistsError("the name is taken")
    with pytest.raises(SettingsError, match="expected a job that this Ray does not serve yet"):
        make(ray)


def test_orders_that_ray_would_put_into_its_store_are_refused(ray: FakeRay) -> None:
    orders = {"coordinator": {"files": {"keys/a.key": "k" * MOST_ARGUMENT_BYTES}}}
    with pytest.raises(SettingsError, match="expected at most 65536 bytes"):
        RayFleet(ray, "digits", orders, {"label_selector": {}}, (1, 1))
    assert ray.actors == []


def test_an_actor_without_a_process_is_not_asked_to_end_it(ray: FakeRay) -> None:
    fleet = make(ray)
    ray.coordinator.is_pending = True
    turn(fleet)
    fleet.close()
    assert (ray.coordinator.has_ended, ray.coordinator.is_killed) == (False, True)


def test_at_the_end_all_end_in_good_order_the_coordinator_last(ray: FakeRay) -> None:
    fleet = make(ray, (2, 2))
    serve(ray, fleet)
    turn(fleet)
    fleet.close()
    assert [(actor.has_ended, actor.is_killed) for actor in ray.actors] == 3 * [(True, True)]
