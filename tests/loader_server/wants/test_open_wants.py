"""What a worker holds of its trainers' wants, without sockets, threads or memory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.wants.open_wants import OpenWants, WantQueue
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


def queue(*wants: tuple[str, int], urgent: tuple[tuple[str, int], ...] = ()) -> WantQueue[str, int]:
    made: WantQueue[str, int] = WantQueue()
    for trainer, want in wants:
        made.put(trainer, want, urgent=False)
    for trainer, want in urgent:
        made.put(trainer, want, urgent=True)
    return made


def taken(some: WantQueue[str, int]) -> list[int]:
    return [some.take() for _ in range(len(some))]


def test_within_a_trainer_wants_keep_their_order():
    assert taken(queue(("a", 1), ("a", 2), ("a", 3))) == [1, 2, 3]


@pytest.mark.fault(18)
def test_trainers_have_their_turns():
    assert taken(queue(("a", 1), ("a", 2), ("a", 3), ("b", 11), ("b", 12))) == [1, 11, 2, 12, 3]


@pytest.mark.fault(18)
def test_a_trainer_with_many_wants_delays_another_by_one_batch_at_most():
    some = queue(*[("a", number) for number in range(50)])
    assert some.take() == 0
    some.put("b", 99, urgent=False)
    assert 99 in (some.take(), some.take())


def test_asked_again_heads_go_before_all():
    assert taken(queue(("a", 1), ("b", 11), urgent=(("b", 12), ("a", 2)))) == [12, 2, 1, 11]


def test_an_empty_queue_has_nothing():
    some = queue()
    assert some.take() is None
    assert len(some) == 0


def test_a_job_is_removed_once_wherever_it_is():
    some = queue(("a", 1), ("a", 2), urgent=(("a", 3),))
    assert some.remove("a", 2)
    assert some.remove("a", 3)
    assert not some.remove("a", 2)
    assert not some.remove("b", 1)
    assert taken(some) == [1]


def test_dropping_a_trainer_leaves_the_others():
    some = queue(("a", 1), ("b", 11), urgent=(("a", 2), ("b", 12)))
    assert sorted(some.drop("a")) == [1, 2]
    assert some.drop("a") == []
    assert taken(some) == [12, 11]


# --- a trainer that has its way ---


@pytest.mark.fault(42)
@given(st.lists(st.booleans(), min_size=40, max_size=40), st.lists(st.booleans(), min_size=40, max_size=40))
def test_urgent_wants_without_end_delay_another_by_two_batches(greedy, other):
    """Whichever of their wants are urgent."""
    some, since = queue(), 0
    for number, urgent in enumerate(other):
        some.put("b", number, urgent=urgent)
    for number, urgent in enumerate(greedy):
        some.put("a", 100 + 2 * number, urgent=True)
        some.put("a", 101 + 2 * number, urgent=urgent)
        since = since + 1 if some.take() >= 100 else 0
        assert since <= 2


@pytest.mark.fault(42)
@given(st.integers(2, 6), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=150))
def test_nobody_waits_longer_than_two_turns_of_all_others(trainers, puts):
    some, waited = queue(), dict.fromkeys(range(trainers), 0)
    for trainer in range(trainers):
        for _ in range(len(puts)):
            some.put(trainer, trainer, urgent=False)
    for trainer, urgent in puts:
        some.put(trainer % trainers, trainer % trainers, urgent=urgent)
        served = some.take()
        waited = {one: 0 if one == served else count + 1 for one, count in waited.items()}
        assert max(waited.values()) <= 2 * (trainers - 1)


def test_an_urgent_want_goes_before_the_others_of_its_trainer_also_in_its_turn():
    some = queue(("a", 1), ("b", 11), ("b", 12), urgent=(("a", 2), ("a", 3), ("a", 4)))
    assert taken(some) == [2, 3, 11, 4, 12, 1]


def test_who_went_before_all_may_do_so_again_once_all_had_their_turn():
    some = queue(("a", 1), ("a", 2), ("b", 11), ("b", 12), urgent=(("a", 3),))
    assert some.take() == 3
    some.put("a", 4, urgent=True)  # too early: it waits for its turn
    assert [some.take(), some.take()] == [4, 11]
    some.put("a", 5, urgent=True)
    assert taken(some) == [5, 1, 12, 2]


# --- who has to wait for itself ---


def not_of(*trainers):
    return lambda trainer, _want: trainer not in trainers


@pytest.mark.fault(42)
def test_who_may_not_be_built_for_holds_up_nobody_else():
    some = queue(("a", 1), ("b", 11), ("a", 2), ("b", 12), urgent=(("a", 3),))
    assert [some.take(not_of("a")) for _ in range(3)] == [11, 12, None]
    assert len(some) == 3
    assert taken(some) == [3, 1, 2], "and has lost nothing"


def test_what_may_not_be_built_yet_keeps_its_turn():
    some = queue(("a", 1), ("b", 11), ("c", 21), ("b", 12))
    assert some.take(not_of("a")) == 11
    assert taken(some) == [1, 21, 12]


def test_it_is_asked_about_the_job_that_is_next():
    some = queue(("a", 1), ("a", 2), urgent=(("a", 3),))
    assert some.take(lambda _trainer, want: want != 3) is None
    assert some.take(lambda _trainer, want: want == 3) == 3
    assert some.take(lambda _trainer, want: want == 2) is None


def test_those_who_wait_for_themselves_are_not_before_others():
    some = queue(("a", 1), ("a", 2), ("b", 11), urgent=(("a", 3),))
    assert some.waiting(not_of("a")) == 1
    assert some.waiting(not_of("b")) == 3
    assert some.waiting(not_of()) == 4


def test_a_removed_urgent_want_leaves_no_place_before_all():
    some = queue(("a", 1), ("b", 11), urgent=(("b", 12),))
    assert some.remove("b", 12)
    assert taken(some) == [1, 11]


def test_who_was_dropped_begins_anew():
    some = queue(("b", 11), ("c", 21), urgent=(("a", 1),))
    assert some.take() == 1
    some.put("a", 2, urgent=True)
    assert some.drop("a") == [2]
    some.put("a", 3, urgent=True)
    assert taken(some) == [3, 11, 21]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from(["put", "take", "remove", "drop"]))))
def test_nothing_is_lost_or_given_twice(script):
    some, inside = queue(), {}
    for number, (trainer, urgent, act) in enumerate(script):
        if act == "put":
            some.put(trainer, number, urgent=urgent)
            inside[number] = trainer
        elif act == "take":
            want = some.take()
            assert (want is None) == (not inside)
            inside.pop(want, None)
        elif act == "drop":
            gone = some.drop(trainer)
            assert sorted(gone) == sorted(want for want, one in inside.items() if one == trainer)
            inside = {want: one for want, one in inside.items() if one != trainer}
        elif inside:
            want, owner = next(iter(inside.items()))
            assert some.remove(owner, want)
            del inside[want]
        assert len(some) == len(inside)
    assert sorted(taken(some)) == sorted(inside)
