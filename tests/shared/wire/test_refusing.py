"""Who may send what, and messages that refuse: cut to what a message carries, tied to their request, made an error."""

from __future__ import annotations

import pytest

from loader_server.coordinator.state import CoordinatorState
from loader_server.worker.reception import Reception
from shared.errors import DataError, RefusedError
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.message_parts import Ticket
from shared.wire.refusing import TO_COORDINATOR, TO_WORKER, error_of, not_attached, refusal_of_role, refused, unbuilt
from tests.shared.wire.examples import EXAMPLES

ATTACH = next(one for one in EXAMPLES if isinstance(one, m.Attach))


def said_by(role, table):
    return {message.kind for message, roles in table.items() if role in roles}


def test_who_says_what_to_the_coordinator():
    assert said_by("trainer", TO_COORDINATOR) == {
        *("Attach", "Progress", "Detach", "Outcomes", "Results", "StandsStill"),
        *("GraphOffer", "GraphPiece", "Join", "StatusQuery", "TraceQuery", "TracePage"),
    }
    assert said_by("worker", TO_COORDINATOR) == {
        *("Register", "BuilderParts", "Beat", "Culprit", "Leave", "Failing", "BundleWanted", "Forgive"),
        *("StatusQuery", "TraceQuery", "TracePage"),
    }
    assert said_by("coordinator", TO_COORDINATOR) == {"Forgive", "StatusQuery", "TraceQuery"}


def test_who_says_what_to_a_worker():
    assert said_by("trainer", TO_WORKER) == {"Hello", "Want", "Cancel", "Ping", "EpochQuery", "NameQuery"}
    assert said_by("worker", TO_WORKER) == said_by("coordinator", TO_WORKER) == set()


def test_whatever_a_server_understands_has_its_roles():
    assert set(CoordinatorState._doors) <= set(TO_COORDINATOR)
    assert set(Reception._doors) == set(TO_WORKER)


def test_a_refusal_names_both_roles_and_what_to_do():
    assert refusal_of_role(m.StatusQuery(), ("worker", "trainer"), ("coordinator",)) == m.Refused(
        code="role",
        expected="a key in allowed/worker or allowed/trainer",
        got="StatusQuery with a key in allowed/coordinator",
        remedy="Use the pair of that role (`loader-server keys` says which machine needs which files), or put the "
        "key's public half there.",
    )


def test_a_key_that_was_taken_out_is_told_so():
    got = refusal_of_role(m.StatusQuery(), ("trainer",), ()).got
    assert got == "StatusQuery with a key that is not allowed, or no longer"


@pytest.mark.parametrize("held", [("worker",), ()])
def test_the_refusal_of_an_attach_names_its_request(held):
    answer = refusal_of_role(ATTACH, ("trainer",), held)
    assert isinstance(answer, m.NotAttached)
    assert (answer.serial, answer.code, answer.expected) == (ATTACH.serial, "role", "a key in allowed/trainer")
    assert answer.got.startswith("Attach with a key ")
    assert answer.remedy.startswith("Use the pair of that role")


LONG = "x" * 5000


def test_what_is_too_long_is_cut_to_what_a_message_carries():
    for message in (refused("c", LONG, LONG, LONG), unbuilt(Ticket(1, 2), "c", LONG, LONG, LONG, LONG)):
        assert decode(encode(message)) == message
        assert {len(getattr(message, name)) for name in ("expected", "got", "remedy")} == {4000}
    assert len(message.where) == 4000


def test_any_refusal_of_an_attach_names_its_request():
    assert not_attached(7, refused("role", "a", "b", "c")) == m.NotAttached(
        serial=7, code="role", expected="a", got="b", remedy="c"
    )


@pytest.mark.parametrize(
    "said", [refused("c", "a", "b", "Do."), not_attached(1, refused("c", "a", "b", "Do."))], ids=lambda said: said.kind
)
def test_a_refusal_becomes_an_error(said):
    error = error_of(said, "there")
    assert isinstance(error, RefusedError)
    assert (error.code, str(error)) == ("c", "there: expected a, got b. Do.")


def test_a_batch_that_cannot_be_built_is_an_error_of_the_data():
    error = error_of(unbuilt(Ticket(1, 2), "failed", "a", "b", "", "Do."), "there")
    assert (type(error), error.exit_code, str(error)) == (DataError, 1, "there: expected a, got b. Do.")
