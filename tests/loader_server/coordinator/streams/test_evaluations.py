"""Evaluations behind the coordinator's door: each model apart, trainers that come and go, what is kept and shown."""

from __future__ import annotations

import numpy as np
import pytest

from loader_server.coordinator.events import Keep, Received
from loader_server.leases import evaluation_table as module
from loader_server.leases.lease_table import LeaseRules
from shared.wire import messages as m
from shared.wire.message_parts import Failure, Lease, MetricStates
from tests.support.coordinator import View, attach, coordinator, replies

RULES = LeaseRules(floor_s=30.0, tries=1)
ALL = 100


def judging(*who):
    state = coordinator(View(evaluation=True, leases=RULES))
    for one in who:
        replies(state, attach(incarnation=one))
    return state


def outcomes(who=1000, serial=1, *, evaluation="m", states=(), asks=None, **other):
    told = {
        "stream": "train", "work": "evaluate", "incarnation": who, "serial": serial, "book": None, "generation": 1,
        "done": (), "failed": (), "returned": (), "in_hand": None, "wanted": 64, "before": 1, "snapshot": False,
        "states": MetricStates(evaluation, 8, 0, np.array(states, "<f8").tobytes(), asks),
    }  # fmt: skip
    return m.Outcomes(**{**told, **other})


def tell(state, *args, **other):
    (answer,) = [one for one in replies(state, outcomes(*args, **other)) if isinstance(one, m.Leases)]
    return answer


def finish(state, who=1000, evaluation="m", value=1.0):
    """Evaluate all that is left; the last answer."""
    serial = 1
    answer = tell(state, who, evaluation=evaluation, generation=0)
    while not answer.sums.settled:
        serial += 1
        answer = tell(
            state, who, serial, evaluation=evaluation, done=answer.leases, states=[value] * len(answer.leases), asks=0
        )
    return answer


def total(answer):
    return float(np.frombuffer(answer.sums.content, "<f8")[0])


def evaluating(state):
    return state.report(0.0)["streams"]["train"]["evaluating"]


def test_two_models_have_all_batches_each():
    state = judging(1, 2)
    assert total(finish(state, 1, "one", 1.0)) == ALL
    assert total(finish(state, 2, "other", 3.0)) == 3 * ALL
    assert [(one["evaluation"], one["done"], one["batches"]) for one in evaluating(state)] == [
        ("one", ALL, ALL), ("other", ALL, ALL),
    ]  # fmt: skip
    assert state.report(0.0)["streams"]["train"]["queue"]["evaluate"]["done"] == 2 * ALL


def test_two_evaluators_of_one_share_it_and_whoever_comes_late_has_the_same_sums():
    state = judging(1, 2, 3)
    first = tell(state, 1)
    tell(state, 1, 2, done=first.leases, states=[1.0] * len(first.leases), wanted=0)
    assert total(finish(state, 2)) == ALL
    late = tell(state, 3, asks=0, generation=0)
    assert (total(late), late.leases) == (ALL, ())


def test_settled_and_left_it_begins_anew_but_unsettled_it_goes_on():
    state = judging(1, 2)
    tell(state, 1)
    answer = tell(state, 1, 2, done=[Lease(0, 0, 1)], states=[1.0])
    replies(state, m.Detach(stream="train", rank=0, incarnation=1))
    assert tell(state, 2, generation=0).sums.batches == answer.sums.batches == 1
    finish(state, 2)
    replies(state, m.Detach(stream="train", rank=0, incarnation=2))
    replies(state, attach(incarnation=3))
    answer = tell(state, 3, generation=0, asks=0)
    assert (answer.sums.settled, answer.sums.batches, answer.generation) == (False, 0, 2)
    assert answer.leases


def test_whoever_asked_for_sums_before_a_restart_of_the_coordinator_gets_them_after_it():
    state = judging(1)
    facts = []
    serial = next(serial for serial, answer in _steps(state, facts) if answer.sums.settled)
    again = judging(1)
    for fact in facts:
        again.recover(fact)
    assert again.queues.incomplete() == []
    assert total(tell(again, 1, serial + 1, asks=0)) == ALL


def _steps(state, facts):
    said_, serial = outcomes(1, generation=0), 1
    while True:
        orders = state.handle(Received(b"me", said_), 0.0)
        facts += [one.fact for one in orders if isinstance(one, Keep)]
        (answer,) = [one.message for one in orders if isinstance(getattr(one, "message", None), m.Leases)]
        yield serial, answer
        serial += 1
        said_ = outcomes(1, serial, done=answer.leases, states=[1.0] * len(answer.leases))


def test_a_trainer_is_in_one_evaluation_at_a_time():
    state = judging(1, 2)
    held = tell(state, 1, evaluation="one").leases
    tell(state, 1, 2, evaluation="other")
    assert [(one["evaluation"], one["trainers"]) for one in evaluating(state)] == [("one", 0), ("other", 1)]
    assert tell(state, 2, evaluation="one").leases[0] == Lease(0, 0, held[0].nth + 1)


def test_the_oldest_that_nobody_is_in_are_dropped(monkeypatch):
    monkeypatch.setattr(module, "_MOST_KEPT", 2)
    state = judging(1, 2)
    tell(state, 2, evaluation="held")
    for serial in range(1, 6):
        tell(state, 1, serial, evaluation=f"number {serial}")
    assert [one["evaluation"] for one in evaluating(state)] == ["held", "number 3", "number 4", "number 5"]


def test_reasons_of_dropped_evaluations_are_still_counted(monkeypatch):
    """A counter that falls would be taken for one that began anew."""
    monkeypatch.setattr(module, "_MOST_KEPT", 1)
    state = judging(1)
    for number in range(4):
        answer = tell(state, 1, 2 * number, evaluation=f"number {number}")
        failed = (Failure(answer.leases[0], f"reason {number % 2}"),)
        tell(state, 1, 2 * number + 1, evaluation=f"number {number}", failed=failed)
        reasons = state.report(0.0)["streams"]["train"]["queue"]["evaluate"]["reasons"]
        assert sum(reasons.values()) == number + 1
    assert len(evaluating(state)) < 4
    assert reasons == {"reason 0": 2, "reason 1": 2}


def test_a_flood_of_evaluations_is_not_answered(monkeypatch):
    monkeypatch.setattr(module, "_MOST_KEPT", 1)
    monkeypatch.setattr(module, "_MOST_UNDER_WAY", 1)
    state = judging(1, 2, 3)
    tell(state, 1, evaluation="one")
    tell(state, 2, evaluation="two")
    assert replies(state, outcomes(3, evaluation="three")) == []
    assert len(evaluating(state)) == 2


def test_states_are_for_streams_and_work_that_evaluate():
    assert replies(judging(1), outcomes(1, work="predict")) == []
    state = coordinator(View(leases=RULES))
    replies(state, attach(incarnation=1))
    assert replies(state, outcomes(1)) == []


@pytest.mark.parametrize("world", [1, None])
def test_results_of_two_models_are_never_added(world):
    state = judging(1, 2) if world is None else coordinator(View(evaluation=True))
    if world is not None:
        for one in (1, 2):
            replies(state, attach(incarnation=one))
    for who, loss in ((1, 641.1), (2, 135.6)):
        told = m.Results(
            stream="train", incarnation=who, serial=1, epoch=1, step=11, rows=100, values=(("loss", loss),), ended="",
            aside=False, evaluation=f"model {who}",
        )  # fmt: skip
        replies(state, told)
    shown = state.report(0.0)["streams"]["train"]
    assert [(one["evaluation"], one["rows"], one["values"]) for one in shown["evaluations"]] == [
        ("model 1", 100, {"loss": 641.1}), ("model 2", 100, {"loss": 135.6}),
    ]  # fmt: skip
    assert (shown["results"]["rows"], shown["results"]["values"]) == (100, {"loss": 135.6})
