"""Data sets that trainers send to the coordinator, with the sender's own half in the same memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loader_server.coordinator.events import GraphFailed, GraphRuns, Received, RunGraph, Send
from loader_server.coordinator.state import CoordinatorState
from shared.errors import RefusedError
from shared.pipelines.element_values import MOST_BYTES, digest_of_graph
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from tests.support.coordinator import SETTINGS, TIMEOUT_S, View, attach, replies
from trainer_client.network.graph_sender import Sending

CONTENT = bytes(range(256)) * 300  # three pieces
OTHER = b"another"


@pytest.fixture
def state():
    return CoordinatorState(replace(SETTINGS, graphs={"sent": ""}), {"train": View()})


def talk(state, sending, peer=b"trainer", now_s=0.0, most=99):
    """Say what there is to say until there is nothing; what else the coordinator ordered."""
    message, orders = sending.offer, []
    while message is not None and most:
        most -= 1
        out = state.handle(Received(peer, decode(encode(message))), now_s)
        orders += [one for one in out if not isinstance(one, Send)]
        answers = [sending.answer(decode(encode(one.message))) for one in out if isinstance(one, Send)]
        message = next(filter(None, answers), None)
    return orders


def sending(content=CONTENT, **other):
    return Sending(other.get("job", ""), other.get("stream", "sent"), content)


def test_a_data_set_comes_in_pieces_and_is_kept_once(state):
    one = sending()
    assert talk(state, one) == [RunGraph("sent", CONTENT)]
    assert not one.kept
    assert talk(state, one) == []
    assert (one.kept, one.runs) == (True, False)
    assert isinstance(replies(state, attach(stream="sent"))[0], m.Wait)
    again = sending()
    assert talk(state, again, peer=b"rank 1") == []
    assert again.kept
    told = state.handle(GraphRuns("sent", View(digest="plan-2")), 1.0)
    runs = m.GraphKept(stream="sent", digest=digest_of_graph(CONTENT), runs=True)
    assert sorted(told, key=lambda one: one.peer) == [Send(b"rank 1", runs), Send(b"trainer", runs)]
    assert isinstance(replies(state, attach(stream="sent"))[0], m.Attached)
    late = sending()
    talk(state, late, peer=b"rank 2")
    assert late.runs


def test_another_one_is_refused_naming_both(state):
    talk(state, sending())
    with pytest.raises(RefusedError) as caught:
        talk(state, sending(OTHER))
    assert f"{digest_of_graph(CONTENT)[:16]}, got {digest_of_graph(OTHER)[:16]}" in str(caught.value)
    assert "remove graphs/sent.graph" in str(caught.value)


def test_one_that_arrives_holds_others_up_until_its_sender_is_silent(state):
    talk(state, sending(), most=2)
    with pytest.raises(RefusedError):
        talk(state, sending(OTHER), now_s=5 * TIMEOUT_S)
    assert talk(state, sending(OTHER), now_s=5 * TIMEOUT_S + 0.1) == [RunGraph("sent", OTHER)]


def test_two_ranks_may_send_the_same_one_side_by_side(state):
    talk(state, sending(), most=2)
    assert talk(state, sending(), peer=b"rank 1") == [RunGraph("sent", CONTENT)]


def test_a_piece_out_of_place_changes_nothing(state):
    one = sending()
    digest = one.offer.digest
    stray = {"stream": "sent", "digest": digest, "nbytes": len(CONTENT), "content": b"x"}
    assert state.handle(Received(b"a", m.GraphPiece(offset=0, **stray)), 0.0) == [], "nothing was offered"
    talk(state, one, most=2)
    wanted = m.GraphWanted(stream="sent", digest=digest, offset=32768)
    assert state.handle(Received(b"a", m.GraphPiece(offset=7, **stray)), 0.0) == [Send(b"a", wanted)]
    assert talk(state, one) == [RunGraph("sent", CONTENT)]


def test_one_that_does_not_match_its_digest_is_forgotten(state):
    one = sending()
    one._content = bytes(len(CONTENT))
    assert talk(state, one) == []
    assert talk(state, sending()) == [RunGraph("sent", CONTENT)]


def test_one_that_cannot_be_run_is_forgotten_and_those_who_wait_are_told(state):
    one = sending()
    talk(state, one)
    talk(state, one)
    warned, (told) = state.handle(GraphFailed("sent", "no such file"), 1.0)
    assert warned.fields["reason"] == "no such file"
    with pytest.raises(RefusedError, match=r'the first epoch of "sent" to be run, .* got no such file'):
        one.answer(told.message)
    assert talk(state, sending(OTHER)) == [RunGraph("sent", OTHER)]


@pytest.mark.parametrize(
    ("offered", "message"),
    [
        ({"stream": "train"}, 'expected a stream that takes a graph: "sent", got "train".*accept_graphs = true'),
        ({"job": "words"}, "expected a trainer of job digits, got job words"),
    ],
)
def test_what_the_job_does_not_take_is_refused(state, offered, message):
    with pytest.raises(RefusedError, match=message):
        talk(state, sending(**offered))


def test_one_that_is_too_large_is_refused_before_it_is_sent(state):
    one = sending()
    one.offer = replace(one.offer, nbytes=MOST_BYTES + 1)
    with pytest.raises(RefusedError, match=f"at most {MOST_BYTES} bytes, got {MOST_BYTES + 1}"):
        talk(state, one)


def test_one_on_disk_is_known_after_a_restart_whether_or_not_it_was_run():
    kept = replace(SETTINGS, graphs={"sent": digest_of_graph(CONTENT)})
    runs, lacks = sending(), sending()
    talk(CoordinatorState(kept, {"sent": View()}), runs)
    talk(CoordinatorState(kept, {}), lacks)
    assert (runs.runs, lacks.kept, lacks.runs) == (True, True, False)


def test_answers_to_others_are_no_answers():
    one = sending()
    assert one.answer(m.GraphKept(stream="sent", digest="another", runs=True)) is None
    assert one.answer(m.Noted()) is None
    assert not one.runs
