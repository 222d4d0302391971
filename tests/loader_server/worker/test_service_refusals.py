"""What a worker refuses, and how much it takes on: answers over real sockets, in this process."""

from __future__ import annotations

import msgpack
import pytest
import zmq

from loader_server.wants.tickets import MOST_OPEN, MOST_SLOTS
from shared.wire import messages as m
from shared.wire.codec import VERSION, encode
from shared.wire.message_parts import Ticket
from tests.support.askers import Asker, a_worker, digest_of, refused, wait_until_begun, welcomed
from tests.support.loaders import wait_until


def test_strangers_wants_are_refused(ask, memory):
    one = ask()
    assert refused(one, one.want(3)) == [(Ticket(3, 1), "unknown")]
    one.hello()
    assert refused(
        one,
        one.want(3, worker=1),
        one.want(3, trainer=1),
        one.want(3, in_slot=True),
        one.want(3, 2, plan_digest="another"),
        one.want(3, 3, stream="another"),
    ) == [(Ticket(3, generation), code) for generation, code in (
        (1, "unknown"), (1, "unknown"), (1, "unknown"), (2, "plan"), (3, "plan"),
    )]  # fmt: skip
    assert one.ping().tickets == ()


def test_strangers_are_refused(ask):
    one = ask(job="another")
    one.say(one.greeting())
    assert one.hear(m.Refused).code == "job"
    other = ask()
    other.say(other.greeting(stream="another"))
    assert other.hear(m.Refused).code == "stream"


def test_what_nobody_says_to_a_worker_is_counted_and_not_answered(ask, worker):
    one = welcomed(ask())
    one.say(m.Noted())
    one.dealer.send(b"nonsense")
    one.say(m.Ping(number=3))
    assert one.listen() == m.Pong(number=3, tickets=(), sealed=0, waiting=0)
    assert worker.counts.garbage == 2


@pytest.mark.fault(42)
def test_who_says_much_in_vain_at_once_is_heard_again_a_moment_later(ask, worker):
    one = ask()
    one.dealer.send_multipart([b"nonsense"] * 300)
    wait_until(lambda: worker.counts.garbage == 264, "the first ones are taken in")

    def is_heard() -> bool:
        one.dealer.send(b"nonsense")
        return worker.counts.garbage > 264

    wait_until(is_heard, "it is heard again")


@pytest.mark.fault(28)
def test_whoever_speaks_another_version_is_told_which_one_is_spoken_here(ask, worker):
    one = ask()
    version, *rest = msgpack.unpackb(encode(m.Ping(number=1)))
    one.dealer.send(msgpack.packb([version + 1, *rest]))
    refused = one.hear(m.Refused)
    assert (refused.code, refused.expected) == ("version", f"protocol version {VERSION}")
    assert worker.counts.garbage == 0


@pytest.mark.fault(42)
def test_more_trainers_than_a_worker_can_bear_are_refused(ask, monkeypatch):
    monkeypatch.setattr("loader_server.worker.reception.MOST_SESSIONS", 2)
    one, other, third = ask(), ask(), ask()
    one.hello()
    other.hello()
    third.say(third.greeting())
    assert third.hear(m.Refused).code == "busy"
    assert one.hello().worker, "who is known comes back"


@pytest.mark.fault(42)
@pytest.mark.parametrize("by", ["TCP", "shared memory"])
def test_a_slot_has_one_open_want_and_copies_are_passed_over(ask, worker, memory, closed, by):
    one = welcomed(ask(memory=memory if by == "shared memory" else None))
    one.say(one.want(3))
    wait_until_begun(worker, 1)
    one.say(one.want(3))  # a copy: to answer it would free the slot under the builder
    assert refused(one, one.want(3, 2)) == [(Ticket(3, 2), "busy")]
    assert one.ping().tickets == (Ticket(3, 1),)
    assert worker.counts.stale == 1
    one.say(one.want(3, 2))  # a copy of what was refused: the trainer may have lent the slot to another
    closed.set()
    assert one.hear(m.Pushed).ticket == Ticket(3, 1)
    one.say(one.want(3, 2), one.want(3, 3))
    assert one.hear(m.Pushed).ticket == Ticket(3, 3)


@pytest.mark.fault(42)
def test_slots_that_were_not_offered_are_refused(ask, memory):
    by_tcp, in_place = welcomed(ask()), welcomed(ask(memory=memory))
    assert refused(by_tcp, by_tcp.want(MOST_SLOTS)) == [(Ticket(MOST_SLOTS, 1), "busy")]
    assert refused(in_place, in_place.want(8), in_place.want(8, in_slot=False)) == [(Ticket(8, 1), "busy")] * 2


@pytest.mark.fault(42)
def test_so_many_wants_are_open_and_no_more(ask, worker, closed):
    one, other = welcomed(ask()), welcomed(ask())
    one.say(*(one.want(slot) for slot in range(MOST_OPEN)))
    assert refused(one, one.want(MOST_OPEN)) == [(Ticket(MOST_OPEN, 1), "busy")]
    assert len(one.ping().tickets) == MOST_OPEN
    other.say(other.want(MOST_OPEN))
    assert other.ping().tickets == (Ticket(MOST_OPEN, 1),)


@pytest.mark.fault(42)
def test_all_trainers_together_have_a_bounded_number_of_open_wants(job, closed, monkeypatch):
    monkeypatch.setattr("loader_server.wants.open_wants._MOST_OPEN", 24)
    with a_worker(job) as worker, zmq.Context() as context:
        one, other = (welcomed(Asker(context, worker.endpoint, digest_of(job))) for _ in range(2))
        for asker in (one, other):
            asker.say(*(asker.want(slot) for slot in range(24)))
            asker.ping()
        assert len(one.ping().tickets) == 12
        assert len(other.ping().tickets) == 6
        one.say(m.Cancel(ticket=Ticket(11, 1)))
        one.hear(m.Cancelled)
        other.say(other.want(6, 2))
        assert len(other.ping().tickets) == 7
        closed.set()
        one.close()
        other.close()
