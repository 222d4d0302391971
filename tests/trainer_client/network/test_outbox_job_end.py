"""The end of a job by order, where receive thread and consumers meet: all stand still and stop after one round."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from shared.errors import EndedError
from tests.support.loaders import wait_until
from tests.support.outboxes import offer, serve
from trainer_client.core.upcoming import Position, UpcomingBatch
from trainer_client.network.outbox import Outbox, Reader


def of_round(seq, epoch, number, replica=0, *, last=False):
    one = offer(seq)
    batch = UpcomingBatch(Position(epoch, number, 4), replica, epoch, number + replica, empty=False, last=last)
    return replace(one, batch=batch)


def ended():
    return EndedError(expected="more", got="the end", where="job", remedy="Nothing is wrong.")


def serve_two_replicas(*rounds):
    outbox = Outbox(lambda: None, replicas=2)
    reader = Reader(Position(3, 8, 4))
    serve(outbox, reader)
    outbox.offer([of_round(2 * at + replica, *one, replica) for at, one in enumerate(rounds) for replica in range(2)])
    return outbox, reader


def test_standing_still_it_says_what_was_begun_and_hands_out_nothing_until_it_is_told_the_last_round():
    outbox, reader = serve_two_replicas((3, 8), (3, 12), (3, 16), (3, 20))
    assert Outbox(lambda: None).stand_still() == (0, 0)
    assert outbox.stand_still() == (3, 8)
    got = []
    taking = threading.Thread(target=lambda: got.append(outbox.take(reader)))
    taking.start()
    wait_until(lambda: outbox._waiting.readers, "it waits")
    outbox.end(ended(), at_once=False, last=(3, 13), parted=False)
    taking.join(60)
    assert [one.seq for one in (*got, *outbox.take_alike(reader, got[0], 9))] == [0, 1, 2, 3]
    for _ in range(2):
        with pytest.raises(EndedError):
            outbox.take(reader)
    assert not outbox.parted


def test_a_round_is_handed_out_to_all_replicas_or_to_none():
    outbox, reader = serve_two_replicas((3, 8), (3, 12))
    outbox.take(reader)
    assert outbox.stand_still() == (3, 9)
    outbox.end(ended(), at_once=False, last=(3, 9))
    assert outbox.take(reader).batch.replica == 1
    with pytest.raises(EndedError):
        outbox.take(reader)


def test_a_batch_of_an_agreed_round_that_is_not_here_yet_is_waited_for():
    outbox, reader = serve_two_replicas()
    outbox.stand_still()
    outbox.end(ended(), at_once=False, last=(3, 9))
    got = []
    taking = threading.Thread(target=lambda: got.append(outbox.take(reader)))
    taking.start()
    wait_until(lambda: outbox._waiting.readers, "it waits")
    outbox.offer([of_round(0, 3, 8)])
    taking.join(60)
    assert [one.seq for one in got] == [0]


@pytest.mark.parametrize("last", [(3, 9), (4, 1)])
def test_the_end_of_the_epoch_comes_before_that_of_the_job(last):
    outbox = Outbox(lambda: None)
    reader = Reader(Position(3, 8, 1))
    serve(outbox, reader)
    outbox.offer([of_round(0, 3, 8, last=True)])
    assert outbox.take(reader).seq == 0
    outbox.stand_still()
    outbox.end(ended(), at_once=False, last=last)
    assert outbox.take(reader) is None
    following = Reader(Position(4, 0, 1))
    serve(outbox, following, head=1)
    outbox.offer([of_round(1, 4, 0), of_round(2, 4, 1)])
    if last == (4, 1):
        assert outbox.take(following).seq == 1
    with pytest.raises(EndedError):
        outbox.take(following)


def test_whoever_begins_anew_meanwhile_says_where():
    outbox, reader = serve_two_replicas((3, 8))
    outbox.take(reader)
    outbox.leave(reader)
    again = Reader(Position(1, 4, 4))
    serve(outbox, again)
    assert outbox.stand_still() == (1, 4)
    outbox.end(ended(), at_once=True)
    with pytest.raises(EndedError):
        outbox.take(again)
