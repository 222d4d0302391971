"""Rows of tables, in a server's decisions: given before a share, pulled as values are, saved out of one cut."""

from __future__ import annotations

import pytest

from shared.wire.topics import server_messages as m
from tests.trainer_client.training.servers.test_server_state import (
    TABLES,
    Server,
    code,
    look,
    pull,
    push,
    save,
    serve,
    serving,
)


def pull_rows(at_least=0, cut=0, generation=7, table=0):
    return m.PullRows(
        serial=9, trainer=pull().trainer, generation=generation, at_least=at_least, table=table, cut=cut, ids=bytes(8)
    )


def save_rows(cut, generation=7):
    return m.SaveRows(serial=9, generation=generation, cut=cut, table=0, array=0, start=0)


def give(generation=7):
    return m.GiveRows(serial=9, generation=generation, table=0, form=TABLES[0], rows=0, nbytes=0)


def test_rows_are_taken_before_the_share_and_as_often_as_they_are_sent():
    server = Server()
    assert [code(server.say(give())) for _ in range(2)] == ["given"] * 2
    server.say(serve())
    assert code(server.say(give())) == "given", "the answer was lost"
    assert code(server.say(give(generation=8))) == "moved", "the share that is served was not withdrawn"
    server.say(m.Withdraw(serial=1))
    assert code(server.say(give(generation=8))) == "given"


def test_rows_that_are_asked_for_are_answered_with_what_asked():
    server = serving()
    answer = server.say(pull_rows())
    assert (answer.asked, answer.message) == (pull_rows(), m.Values(serial=9, version=0, done=None, nbytes=0))


@pytest.mark.parametrize("is_looked", [True, False])
def test_rows_are_given_only_to_who_goes_by_this_generation(is_looked):
    server = Server()
    server.say(serve())
    if is_looked:
        server.say(look())
    assert code(server.say(pull_rows(generation=8 if is_looked else 7))) == "moved"


def test_rows_wait_for_the_orders_that_their_trainer_knows_of_and_each_table_waits_by_itself():
    first, other = Server(), Server(is_first=False)
    for server in (first, other):
        server.say(serve())
        server.say(look())
    other.say(push(0))
    first.say(push(0))
    assert other.say(pull_rows(at_least=1)) is None
    assert other.say(pull_rows(at_least=1, table=1)) is None
    assert other.say(pull(at_least=1)) is None
    assert other.say(first.told.popleft()).values
    assert [answer.asked.table for answer in other.answers] == [0, 1]


def test_rows_of_a_cut_are_given_as_long_as_it_is_the_last():
    server = serving()
    assert code(server.say(pull_rows(cut=1))) == "moved"
    server.say(save())
    cut = server.copy[0]
    server.say(push(0))
    assert server.say(pull_rows(cut=cut)).asked.cut == cut
    assert code(server.say(pull_rows(cut=cut + 1))) == "moved"
    assert server.say(save_rows(cut)).asked == save_rows(cut)
    assert code(server.say(save_rows(cut + 1))) == "moved"
    assert code(server.say(save_rows(cut, generation=8))) == "moved"
    server.say(m.Withdraw(serial=1))
    assert code(server.say(save_rows(cut))) == "moved"
