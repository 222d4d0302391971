"""What a parameter server decides about the learning rate, and about shares that are withdrawn."""

from __future__ import annotations

from shared.wire.topics import server_messages as m
from tests.trainer_client.training.servers.test_server_state import (
    Server,
    code,
    look,
    pull,
    push,
    save,
    serve,
    serving,
    set_rate,
)


def test_a_rate_holds_for_all_that_is_applied_after_it_on_every_server():
    first, other = serving(), Server(is_first=False)
    for said in (serve(), look(), push(0), push(1)):
        other.say(said)
    first.say(push(0, 0))
    assert code(first.say(set_rate(0.5))) == "set"
    first.say(push(1, 1))
    for told in first.told:
        other.say(told)
    assert first.rates == other.rates == [None, 0.5]


def test_a_checkpoint_has_the_rate_that_was_set_before_it_on_every_server():
    first, other = serving(), Server(is_first=False)
    for said in (serve(), look(), save(4)):
        other.say(said)
    first.say(set_rate(0.5))
    first.say(save(4))
    other.say(first.told[-1])
    assert (other.rate, other.copy) == (0.5, (4, []))


def test_a_rate_that_comes_late_changes_nothing():
    server = serving()
    server.say(look(2))
    rates = []
    for rate, serial, trainer in ((0.5, 4, 1), (0.25, 3, 1), (0.5, 4, 1), (0.1, 1, 2)):
        assert code(server.say(set_rate(rate, serial=serial, trainer=trainer))) == "set"
        rates.append(server.rate)
    assert rates == [0.5, 0.5, 0.5, 0.1]


def test_a_stranger_and_another_generation_set_no_rate_and_a_new_share_has_its_own():
    server = serving()
    assert code(server.say(set_rate(0.5, generation=6))) == "moved"
    assert code(server.say(set_rate(0.5, trainer=99))) == "moved"
    assert server.rate is None
    server.say(set_rate(0.5))
    server.say(serve(8))
    server.say(push(0, generation=8))
    assert (server.rates, server.told[-1].rate) == ([None], None)
    server.say(set_rate(0.5, serial=2, generation=8))
    assert server.rate == 0.5


def test_what_was_withdrawn_is_served_to_nobody_until_a_share_is_given():
    server, waiting = serving(), Server(is_first=False)
    for said in (serve(), look(), push(0), pull(at_least=1)):
        waiting.say(said)
    for one in (server, waiting):
        assert code(one.say(m.Withdraw(serial=4))) == "withdrawn"
        assert [code(one.say(said)) for said in (pull(), push(1), save(), set_rate(0.5))] == ["moved"] * 4
    assert (waiting.held, code(waiting.answers.pop())) == (set(), "moved")
    server.say(serve(8))
    assert server.say(pull(generation=8)).values
