"""What a worker holds of its trainers' wants, without sockets, threads or memory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest

from loader_server.wants.open_wants import OpenWants
from loader_server.wants.sessions import Sessions
from loader_server.wants.tickets import Tickets, Verdict
from shared.fairness.budget import Budget
from shared.wire import messages as m
from shared.wire.message_parts import Ticket
from tests.shared.wire.examples import EXAMPLES

WANT = next(one for one in EXAMPLES if isinstance(one, m.Want))
HELLO = next(one for one in EXAMPLES if isinstance(one, m.Hello))


@dataclass(eq=False)
class Session:
    address: bytes
    incarnation: int
    yields: bool = False
    gone: bool = False
    closed: bool = False
    tickets: Tickets = field(default_factory=Tickets)
    builds: dict = field(default_factory=dict)

    def greet(self, address, _hello):
        self.address, self.gone = address, False

    def close(self):
        self.closed = True


@dataclass(eq=False)
class Build:
    trainer: int
    want: m.Want
    cancelled: bool = False


class Desk:
    """Open wants, their sessions, and who does not read."""

    def __init__(self):
        self.sessions = Sessions(lambda address, hello: Session(address, hello.incarnation, hello.yields))
        self.deaf = set()
        self.batches = Budget(400)
        self.wants = OpenWants(self.sessions, self.batches, {"train": 100}, lambda one: one not in self.deaf)

    def welcome(self, number, *, yields=False):
        hello = dataclasses.replace(HELLO, incarnation=number, yields=yields)
        return self.sessions.welcome(f"{number}".encode(), hello)

    def put(self, session, slot, *, in_slot=True, urgent=False):
        ticket = Ticket(slot, 1)
        want = dataclasses.replace(WANT, stream="train", ticket=ticket, in_slot=in_slot, urgent=urgent)
        assert self.wants.judge(session, ticket) is Verdict.NEW
        build = Build(session.incarnation, want)
        self.wants.put(session, build)
        return build


@pytest.fixture
def desk():
    return Desk()


def test_a_want_is_open_until_it_is_finished(desk):
    one = desk.welcome(1)
    build = desk.put(one, 3)
    assert (len(desk.wants), desk.wants.waiting(), one.builds) == (1, 1, {Ticket(3, 1): build})
    assert desk.wants.take() is build
    assert (len(desk.wants), desk.wants.take()) == (0, None)
    assert one.tickets.held() == (Ticket(3, 1),)
    assert desk.wants.finish(build) is one
    assert (one.tickets.held(), one.builds) == ((), {})
    assert desk.wants.finish(build) is None


def test_what_is_not_new_cannot_be_put(desk):
    one = desk.welcome(1)
    build = desk.put(one, 3)
    assert desk.wants.judge(one, Ticket(3, 1)) is Verdict.STALE
    with pytest.raises(KeyError):
        desk.wants.put(one, build)


@pytest.mark.fault(42)
def test_who_does_not_read_is_refused_and_waits_alone(desk):
    one, other = desk.welcome(1), desk.welcome(2)
    desk.put(one, 0)
    build = desk.put(other, 0)
    desk.deaf.add(b"1")
    assert desk.wants.judge(one, Ticket(1, 1)) is Verdict.BUSY
    assert desk.wants.judge(one, Ticket(0, 1)) is Verdict.STALE, "a copy is passed over, not refused"
    assert desk.wants.waiting() == 1
    assert desk.wants.take() is build
    assert desk.wants.take() is None


@pytest.mark.fault(42)
def test_open_tickets_are_bounded_and_come_back(desk, monkeypatch):
    monkeypatch.setattr("loader_server.wants.open_wants._MOST_OPEN", 4)
    desk = Desk()
    one = desk.welcome(1)
    builds = [desk.put(one, slot) for slot in range(2)]
    assert desk.wants.judge(one, Ticket(2, 1)) is Verdict.BUSY
    assert desk.wants.judge(desk.welcome(2), Ticket(2, 1)) is Verdict.NEW, "there is room for another"
    assert desk.wants.cancel(one, builds[0].want.ticket)
    assert desk.wants.judge(one, Ticket(2, 1)) is Verdict.NEW


@pytest.mark.fault(42)
def test_bytes_by_tcp_are_held_from_the_beginning_to_the_end_of_a_build(desk):
    one = desk.welcome(1)
    builds = [desk.put(one, slot, in_slot=False) for slot in range(3)]
    assert [desk.wants.take(), desk.wants.take()] == builds[:2]
    assert desk.batches.held(1) == 200
    assert desk.wants.take() is None, "one alone may have half"
    assert desk.wants.waiting() == 0
    in_place = desk.put(one, 9, urgent=True)
    assert desk.wants.take() is in_place, "what lies in a slot takes no memory here"
    desk.wants.finish(in_place)
    assert desk.batches.held(1) == 200
    desk.wants.finish(builds[0])
    assert desk.wants.take() is builds[2]


def test_what_is_begun_cannot_be_cancelled_but_is_void(desk):
    one = desk.welcome(1)
    begun, waiting = desk.put(one, 0), desk.put(one, 1)
    assert desk.wants.take() is begun
    assert not desk.wants.cancel(one, begun.want.ticket)
    assert begun.cancelled
    assert desk.wants.cancel(one, waiting.want.ticket)
    assert waiting.cancelled
    assert not desk.wants.cancel(one, waiting.want.ticket)
    assert one.tickets.held() == (begun.want.ticket,)
    assert len(desk.wants) == 0


def test_what_is_not_begun_can_be_given_up(desk):
    one = desk.welcome(1)
    begun, waiting = desk.put(one, 0), desk.put(one, 1)
    assert desk.wants.take() is begun
    desk.deaf.add(b"1")
    assert desk.wants.give_up() == (one, waiting)
    assert desk.wants.give_up() is None
    assert one.tickets.held() == (begun.want.ticket,)


@pytest.mark.fault(11)
def test_a_trainer_that_is_gone_is_told_what_may_still_be_written_until_that_has_ended(desk):
    """It was stopped for long, and is back: a Pong that listed nothing would say that its slots are free."""
    one = desk.welcome(1)
    begun, waiting = desk.put(one, 0), desk.put(one, 1)
    assert desk.wants.take() is begun
    assert desk.wants.forget(one) == [waiting]
    assert begun.cancelled
    assert waiting.want.ticket not in one.builds
    assert desk.sessions.at(b"1").tickets.held() == (begun.want.ticket,)
    assert not one.closed
    assert desk.wants.finish(begun) is one
    desk.sessions.tidy(one)
    assert desk.sessions.at(b"1") is desk.sessions.of(1) is None
    assert one.closed
    assert desk.wants.finish(begun) is None


def test_wants_that_yield_are_built_only_while_no_others_may_be(desk):
    verifier, trainer = desk.welcome(1, yields=True), desk.welcome(2)
    first, second = desk.put(verifier, 0), desk.put(verifier, 1, urgent=True)
    theirs = [desk.put(trainer, slot) for slot in range(3)]
    assert (len(desk.wants), desk.wants.of_trainers, desk.wants.waiting()) == (5, 3, 3)
    assert [desk.wants.take() for _ in range(4)] == [*theirs, None]
    for build in theirs:
        assert desk.wants.take() is None, "a trainer's is under way"
        desk.wants.finish(build)
    assert desk.wants.take() is first, "none of them is urgent"
    late = desk.put(trainer, 3)
    assert [desk.wants.take(), desk.wants.take()] == [late, None]
    desk.wants.forget(trainer)
    desk.wants.finish(late)
    assert desk.wants.take() is second


def test_one_that_yields_is_served_while_a_trainer_does_not_read(desk):
    verifier, trainer = desk.welcome(1, yields=True), desk.welcome(2)
    desk.put(trainer, 0)
    build = desk.put(verifier, 0)
    desk.deaf.add(b"2")
    assert desk.wants.take() is build


def test_wants_that_yield_are_cancelled_given_up_and_forgotten_like_others(desk):
    verifier = desk.welcome(1, yields=True)
    builds = [desk.put(verifier, slot) for slot in range(3)]
    assert desk.wants.cancel(verifier, builds[0].want.ticket)
    assert desk.wants.give_up() == (verifier, builds[1])
    assert desk.wants.forget(verifier) == [builds[2]]
    assert (len(desk.wants), verifier.closed) == (0, True)
