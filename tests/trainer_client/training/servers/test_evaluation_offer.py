"""The chief's evaluation in which others may take part: offered, asked for, and over, as a server decides it."""

from __future__ import annotations

import pytest

from shared.wire.topics import server_messages as m
from tests.trainer_client.training.servers.test_server_state import Server, code, save, serve
from trainer_client.training.servers.server_instructions import KeepOffered

CHIEF, WORKER = 1, 2


@pytest.fixture
def server():
    """It serves, knows chief and worker, and has cut 4."""
    server = Server()
    server.say(serve())
    for trainer in (CHIEF, WORKER):
        server.say(m.Look(serial=1, trainer=trainer))
    server.say(save(4))
    return server


def offer(cut=4, serial=10, generation=7, trainer=CHIEF):
    return m.OfferEvaluation(
        serial=serial, trainer=trainer, generation=generation, cut=cut, epoch=3, step=18, label="words",
        streams=("dev",), nbytes=64,
    )  # fmt: skip


def ask(known=0, generation=7, trainer=WORKER):
    return m.AskEvaluation(serial=20, trainer=trainer, generation=generation, known=known)


def pull(cut=4, generation=7):
    return m.PullCut(serial=30, trainer=WORKER, generation=generation, cut=cut)


def offered(server, known=0):
    return server.say(ask(known)).message


def test_an_offer_is_given_with_its_frame_until_the_worker_knows_it(server):
    assert code(server.say(offer())) == "set"
    want = m.OfferedEvaluation(serial=20, cut=4, epoch=3, step=18, label="words", streams=("dev",), over="", nbytes=64)
    assert offered(server) == want
    assert offered(server, known=3) == want
    assert (offered(server, known=4).cut, offered(server, known=4).nbytes) == (4, 0)


def test_without_an_offer_or_after_its_end_there_is_none_and_over_is_passed_on(server):
    assert (offered(server).cut, offered(server).over) == (0, "")
    server.say(offer())
    assert code(server.say(offer(cut=0, serial=11))) == "set"
    assert offered(server).cut == 0
    server.say(m.Finish(serial=12, generation=7, why="3 epochs are reached"))
    assert (offered(server).cut, offered(server).over) == (0, "3 epochs are reached")


def test_what_was_asked_twice_and_comes_late_offers_nothing_again_and_its_frame_is_not_kept(server):
    kept = [instruction for message in (offer(serial=10), offer(cut=0, serial=11), offer(serial=10))
            for instruction in server.state.handle(b"me", message, 0.0)]  # fmt: skip
    assert [type(each) for each in kept].count(KeepOffered) == 2
    assert offered(server).cut == 0
    server.say(offer(serial=3, trainer=9))
    assert offered(server).cut == 0, "a trainer that never looked"
    server.say(m.Look(serial=1, trainer=9))
    server.say(offer(serial=3, trainer=9))
    assert offered(server).cut == 4, "another chief counts its own serials"


@pytest.mark.parametrize(
    "ends",
    [lambda: save(5), lambda: serve(generation=8), lambda: m.Withdraw(serial=40)],
    ids=["a later cut", "another share", "withdrawn"],
)
def test_an_offer_ends_with_the_values_of_its_cut(server, ends):
    server.say(offer())
    server.say(ends())
    generation = server.state.generation
    answer = server.say(ask(generation=generation)).message
    assert getattr(answer, "cut", 0) == 0
    assert code(server.say(pull(generation=generation))) in ("over", "moved")


def test_values_of_the_cut_are_given_and_no_others(server):
    answer = server.say(pull())
    assert (type(answer.message), answer.values, answer.cut) == (m.Values, True, 4)
    assert code(server.say(pull(cut=5))) == "over"
    assert server.copy[0] == 4, "no cut is made by a pull"


def test_who_has_moved_is_sent_to_look(server):
    for message in (offer(generation=6), ask(generation=6), pull(generation=6), ask(trainer=77)):
        assert code(server.say(message)) == "moved"
    assert offered(server).cut == 0


def test_values_of_the_cut_come_from_other_servers_too():
    other = Server(is_first=False)
    other.say(serve())
    other.say(m.Look(serial=1, trainer=WORKER))
    assert code(other.say(pull())) == "over"
    other.say(m.Order(generation=7, what="cut", version=0, trainer=0, lease=None, cut=4, rate=None))
    assert other.say(pull()).cut == 4
