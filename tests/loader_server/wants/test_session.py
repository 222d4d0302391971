"""Trainers as a worker knows them: by incarnation, and where they spoke last."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from loader_server.building.build_thread import Build
from loader_server.wants.session import Session
from loader_server.wants.sessions import Sessions
from loader_server.wants.tickets import MOST_SLOTS
from shared.memory import SlotMemory
from shared.wire import messages as m
from shared.wire.message_parts import Seal, Ticket
from tests.shared.wire.examples import EXAMPLES
from tests.support.descriptors import open_descriptors

WANT = next(one for one in EXAMPLES if isinstance(one, m.Want))


def fresh(nbytes):
    return np.zeros(nbytes, np.uint8)


def no_sessions():
    return Sessions(lambda address, hello: Session(address, hello, fresh))


@pytest.fixture
def sessions():
    sessions = no_sessions()
    yield sessions
    sessions.close()


@pytest.fixture
def memory():
    memory = SlotMemory(3, 100)
    yield memory
    memory.close()


def hello(incarnation=7, *, offer=None, seal=None, stream="train", verify=False):
    return m.Hello(job="j", stream=stream, incarnation=incarnation, shared=offer, verify=verify, seal=seal)


def build(session, slot=1):
    want = dataclasses.replace(WANT, ticket=Ticket(slot, 1), in_slot=True)
    session.tickets.accept(want.ticket)
    made = session.builds[want.ticket] = Build(session.incarnation, want, session.buffer(want))
    return made


def test_a_trainer_is_known_by_incarnation_and_by_connection(sessions):
    session = sessions.welcome(b"one", hello())
    assert sessions.at(b"one") is sessions.of(7) is session
    assert (sessions.at(b"two"), sessions.of(8)) == (None, None)
    assert list(sessions) == [session]
    assert len(sessions) == 1
    assert (session.stream, session.incarnation, session.address) == ("train", 7, b"one")


@pytest.mark.fault(43)
@pytest.mark.parametrize("again", [b"one", b"two"])
def test_a_trainer_that_connects_anew_keeps_its_session(sessions, memory, again):
    session = sessions.welcome(b"one", hello(offer=memory.offer(16)))
    open_build = build(session)
    shared = session.shared
    assert sessions.welcome(again, hello(offer=memory.offer(17), verify=True, stream="dev")) is session
    assert sessions.at(again) is session
    assert session.address == again
    assert (sessions.at(b"one") is None) == (again != b"one"), "what comes late on the old connection is nobody's"
    assert session.builds == {Ticket(1, 1): open_build}
    assert session.tickets.held() == (Ticket(1, 1),)
    assert session.shared is shared
    assert memory.is_locked(16), "the lock that its slots are proved by stays"
    assert not memory.is_locked(17)
    assert (session.verify, session.stream) == (True, "dev")


def test_slots_that_could_not_be_had_are_tried_again_with_each_hello(sessions, memory):
    other = no_sessions()
    other.welcome(b"one", hello(offer=memory.offer(16)))
    session = sessions.welcome(b"one", hello(offer=memory.offer(16)))
    assert session.shared is None
    assert session.why_not_shared.startswith("shared memory cannot be had: lock byte 16 is held")
    assert session.tickets.slots == MOST_SLOTS
    other.close()
    sessions.welcome(b"one", hello(offer=memory.offer(16)))
    assert session.shared is not None
    assert session.why_not_shared == ""
    assert session.tickets.slots == 3


def test_a_trainer_that_offers_nothing_says_why_it_is_fed_by_tcp(sessions):
    assert sessions.welcome(b"one", hello()).why_not_shared == "the trainer does not offer its slots"


def test_each_hello_has_a_key_of_its_own(sessions):
    session = sessions.welcome(b"one", hello(seal=Seal(bytes(32), b"side")))
    first = session.sealer
    session.sealed_number = 5
    sessions.welcome(b"one", hello(seal=Seal(b"\1" * 32, b"other side")))
    assert session.sealer is not first
    assert (session.sealed_identity, session.sealed_number) == (b"other side", 0)
    sessions.welcome(b"one", hello(seal=Seal(b"short", b"side")))
    assert session.sealer is None
    sessions.welcome(b"one", hello())
    assert (session.sealer, session.sealed_identity) == (None, b"")


# --- the end ---


def test_a_trainer_that_is_gone_is_forgotten_and_its_memory_let_go(sessions, memory):
    session = sessions.welcome(b"one", hello(offer=memory.offer(16)))
    sessions.leave(session)
    assert (sessions.at(b"one"), sessions.of(7), len(sessions)) == (None, None, 0)
    assert not memory.is_locked(16)


def test_not_before_its_last_job_has_ended(sessions, memory):
    session = sessions.welcome(b"one", hello(offer=memory.offer(16)))
    last = build(session)
    sessions.leave(session)
    assert sessions.at(b"one") is session, "a Pong there has to list what is still being written"
    assert sessions.of(7) is session
    assert memory.is_locked(16)
    last.buffer(10)[:] = 3
    del session.builds[last.want.ticket]
    sessions.tidy(session)
    assert (sessions.at(b"one"), sessions.of(7)) == (None, None)
    assert not memory.is_locked(16)
    assert memory.slot(1)[9] == 3


def test_a_trainer_that_comes_back_before_that_has_never_been_away(sessions, memory):
    session = sessions.welcome(b"one", hello(offer=memory.offer(16)))
    last = build(session)
    sessions.leave(session)
    assert sessions.welcome(b"two", hello(offer=memory.offer(17))) is session
    del session.builds[last.want.ticket]
    sessions.tidy(session)
    assert sessions.of(7) is session
    assert memory.is_locked(16)


def test_who_leaves_takes_nobody_elses_connection_along(sessions):
    former = sessions.welcome(b"one", hello(7))
    session = sessions.welcome(b"one", hello(8))
    assert sessions.at(b"one") is session
    sessions.leave(former)
    assert sessions.at(b"one") is session
    assert sessions.of(7) is None


def test_what_was_let_go_of_is_not_written(sessions, memory):
    session = sessions.welcome(b"one", hello(offer=memory.offer(16)))
    late = build(session)
    session.close()
    with pytest.raises(ValueError, match="these slots were let go of"):
        late.buffer(10)
    session.close()


def test_batches_by_tcp_get_memory_of_the_workers_own(sessions, memory):
    session = sessions.welcome(b"one", hello(offer=memory.offer(16)))
    session.buffer(dataclasses.replace(WANT, in_slot=False))(10)[:] = 3
    assert not memory.slot(WANT.ticket.slot % 3).any()


def test_sessions_cost_no_descriptors(sessions, memory):
    before = open_descriptors()
    for incarnation in range(50):
        assert sessions.welcome(b"%d" % incarnation, hello(incarnation, offer=memory.offer(16 + incarnation))).shared
    assert not open_descriptors() - before
