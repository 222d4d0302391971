"""Who may say what, and what those are told who may not."""

from __future__ import annotations

import pytest

from loader_server.coordinator.state import CoordinatorState
from loader_server.worker.reception import Reception
from shared.wire import messages as m
from shared.wire.permissions import TO_COORDINATOR, TO_WORKER, refusal
from tests.shared.wire.examples import EXAMPLES

ATTACH = next(one for one in EXAMPLES if isinstance(one, m.Attach))


def said_by(role, table):
    return {message.kind for message, roles in table.items() if role in roles}


def test_who_says_what_to_the_coordinator():
    assert said_by("trainer", TO_COORDINATOR) == {
        *("Attach", "Progress", "Detach", "Outcomes", "Results", "StandsStill"),
        *("GraphOffer", "GraphPiece", "Join", "StatusQuery"),
    }
    assert said_by("worker", TO_COORDINATOR) == {
        *("Register", "BuilderParts", "Beat", "Culprit", "Leave", "Failing", "BundleWanted", "Forgive"),
        "StatusQuery",
    }
    assert said_by("coordinator", TO_COORDINATOR) == {"Forgive", "StatusQuery"}


def test_who_says_what_to_a_worker():
    assert said_by("trainer", TO_WORKER) == {"Hello", "Want", "Cancel", "Ping", "EpochQuery", "NameQuery"}
    assert said_by("worker", TO_WORKER) == said_by("coordinator", TO_WORKER) == set()


def test_whatever_a_server_understands_has_its_roles():
    assert set(CoordinatorState._doors) <= set(TO_COORDINATOR)
    assert set(Reception._doors) == set(TO_WORKER)


def test_a_refusal_names_both_roles_and_what_to_do():
    assert refusal(m.StatusQuery(), ("worker", "trainer"), ("coordinator",)) == m.Refused(
        code="role",
        expected="a key in allowed/worker or allowed/trainer",
        got="StatusQuery with a key in allowed/coordinator",
        remedy="Use the pair of that role (`loader-server keys` says which machine needs which files), or put the "
        "key's public half there.",
    )


def test_a_key_that_was_taken_out_is_told_so():
    got = refusal(m.StatusQuery(), ("trainer",), ()).got
    assert got == "StatusQuery with a key that is not allowed, or no longer"


@pytest.mark.parametrize("held", [("worker",), ()])
def test_the_refusal_of_an_attach_names_its_request(held):
    answer = refusal(ATTACH, ("trainer",), held)
    assert isinstance(answer, m.NotAttached)
    assert (answer.serial, answer.code, answer.expected) == (ATTACH.serial, "role", "a key in allowed/trainer")
    assert answer.got.startswith("Attach with a key ")
    assert answer.remedy.startswith("Use the pair of that role")
