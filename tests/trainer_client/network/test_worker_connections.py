"""All connections of a trainer, over real sockets and slots: orders are carried out, and what came of each is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import zmq

from shared.errors import StokerError
from shared.hashing import digest64
from shared.memory import OpenedSlots, SlotMemory
from shared.wire import messages as m
from shared.wire.message_parts import Ticket
from tests.support.exhaustion import no_sockets_left
from tests.support.lone_core import NBYTES, SHAPE, attached
from tests.support.worker_end import PATIENCE_MS, WorkerEnd, nobody, welcome
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.settings import CoreSettings
from trainer_client.core.stream_spec import StreamSpec
from trainer_client.core.upcoming import Ranks
from trainer_client.network.coordinator_client import ReceiverSettings
from trainer_client.network.worker_connections import WorkerConnections

SETTINGS = CoreSettings(
    job="", stream="train", ranks=Ranks(rank=0, replicas=1, world=1), incarnation=77, name="here:1", boot_id="here",
    verify=True,
)  # fmt: skip
SPEC = StreamSpec.of(attached())
PAYLOAD = np.arange(NBYTES, dtype=np.uint64).astype(np.uint8)
HEADER = m.Pushed(
    ticket=Ticket(1, 1), epoch=0, number=3, empty=False, in_slot=False, shape=SHAPE, nbytes=NBYTES,
    digest=digest64(PAYLOAD.data), rows=2, masked=0, reason="", reasons=(), build_us=1, read_us=0, held_us=1, waiting=0,
)  # fmt: skip
LINK = 5
BLANK = "tcp://a b:1"


def pong(number=1, sealed=0):
    return m.Pong(number=number, tickets=(), sealed=sealed, waiting=0)


class Ends:
    """Connections with nobody at the other end yet."""

    def __init__(self, context, keys=(None, None), **settings):
        self.context, self.keys = context, keys
        self.memory = SlotMemory(3, SPEC.largest_bytes())
        self.poller = zmq.Poller()
        used = ReceiverSettings(
            core=replace(SETTINGS, **settings), endpoint="", coordinator_keys=None, worker_keys=keys[1],
            connect_timeout_s=1.0,
        )  # fmt: skip
        self.parts = used, SPEC, self.memory, context, self.poller
        self.connections = WorkerConnections(*self.parts)
        self.workers = {}

    def open(self, connection_id=LINK):
        """Connect to a worker of its own."""
        worker = self.workers[connection_id] = WorkerEnd(self.context, self.keys[0])
        assert list(self.connections.open(i.Open(connection_id, worker.endpoint))) == []
        return worker

    def polled(self):
        return [socket for socket, _ in self.poller.sockets]

    def ready(self):
        return {socket for socket, _ in self.poller.poll(PATIENCE_MS)}

    def read(self, now_s=0.0):
        """What comes next, waiting for it."""
        ready = self.ready()
        assert ready, "nothing came"
        return list(self.connections.read(ready, now_s))

    def greet(self, connection_id=LINK, lock_byte=2):
        """Up and greeted; what the worker heard."""
        assert self.read() == [e.ConnectionUp(connection_id)]
        assert list(self.connections.greet(i.Greet(connection_id, lock_byte))) == []
        [hello] = self.workers[connection_id].hear()
        return hello

    def close(self):
        self.connections.close_all()
        for worker in self.workers.values():
            worker.close()
        self.memory.close()


@pytest.fixture
def ends(context):
    made = Ends(context)
    yield made
    made.close()


# --- making and ending ---


def test_sockets_are_polled_as_long_as_they_are_open(ends):
    ends.open(1)
    ends.open(2)
    first = ends.polled()[:2]
    assert len(ends.connections._connections) == 2
    assert len(ends.polled()) == 4
    assert list(ends.connections.close(i.Close(1))) == []
    assert all(socket.closed for socket in first)
    assert len(ends.polled()) == 2
    assert len(ends.connections._connections) == 1
    assert list(ends.connections.close(i.Close(1))) == []  # nobody there
    assert list(ends.connections.close(i.Close(2))) == []
    assert ends.polled() == []


def test_made_anew_other_sockets_are_polled(ends):
    worker = ends.open()
    ends.greet()
    before = ends.polled()
    assert list(ends.connections.renew(i.Renew(LINK))) == []
    assert len(ends.polled()) == 2
    assert not set(before) & set(ends.polled())
    identity = worker.identity
    ends.greet()
    assert worker.identity == identity


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        (
            "bogus",
            "endpoint: expected an endpoint like tcp://127.0.0.1:7400, got 'bogus'. Write scheme, host and port.",
        ),
        (
            BLANK,
            f"trainer: expected a connection to the worker at {BLANK}, got Invalid argument (addr='{BLANK}'). "
            "Look at that worker's endpoint, and at this machine's limit of open files.",
        ),
    ],
)
def test_nonsense_for_an_endpoint_is_told_and_leaves_nothing(ends, context, endpoint, words):
    """A socket was left, for the error keeps what made it: the receive thread never ended."""
    [failed] = ends.connections.open(i.Open(LINK, endpoint))
    assert failed.connection_id == LINK
    assert isinstance(failed.error, StokerError)
    assert str(failed.error) == words
    assert len(ends.connections._connections) == 0
    assert ends.polled() == []
    assert all(socket.closed for socket in context._sockets)


def test_a_connection_that_cannot_be_made_anew_fails_alone(sealed_ends, context):
    """It ended the receive thread, and with it the feed."""
    ends = sealed_ends
    worker = ends.open()
    ends.greet()
    worker.say(b"nonsense", b"")
    assert ends.read() == []
    assert list(ends.connections.send(i.ToWorker(LINK, m.Ping(number=1)))) == []
    ends.connections._connections[LINK].endpoint = "bogus"  # as good a reason as a limit of open files
    [failed] = ends.connections.renew(i.Renew(LINK))
    assert failed.connection_id == LINK
    assert isinstance(failed.error, StokerError)
    assert ends.polled() == []
    assert len(ends.connections._connections) == 0
    assert ends.connections.count_garbage() == 1
    assert list(ends.connections.flush()) == []
    assert list(ends.connections.close(i.Close(LINK))) == []


@pytest.mark.fault(38)
def test_where_no_socket_is_left_a_connection_stays_until_it_can_be_made_anew(sealed_ends, context, caplog):
    ends = sealed_ends
    ends.open()
    ends.greet()
    before = ends.polled()
    with no_sockets_left(context):
        assert list(ends.connections.renew(i.Renew(LINK))) == []
    assert ends.polled() == before
    assert "connection to a worker cannot be made anew" in caplog.text
    assert list(ends.connections.renew(i.Renew(LINK))) == []
    assert not set(before) & set(ends.polled())


def test_nothing_is_open_after_the_end(ends):
    ends.open(1)
    ends.open(2)
    sockets = ends.polled()
    ends.connections.close_all()
    assert all(socket.closed for socket in sockets)
    ends.connections = WorkerConnections(*ends.parts)


# --- what is said ---


def test_hello_says_who_we_are_and_offers_the_slots(ends):
    ends.open()
    hello = ends.greet(lock_byte=2)
    assert hello == m.Hello(
        job=SPEC.job, stream="train", incarnation=77, name="here:1", rank=0, shared=ends.memory.offer(2), verify=True,
        seal=None,
    )  # fmt: skip
    assert hello.shared.lock_byte == 2


@pytest.mark.parametrize(("work", "yields"), [("", False), ("measure", False), ("verify", True)])
def test_only_a_verifier_yields(context, work, yields):
    ends = Ends(context, work=work)
    ends.open()
    assert ends.greet().yields is yields
    ends.close()


def test_slots_are_offered_only_if_they_are_to_be_shared(context):
    ends = Ends(context, shared_memory=False, verify=False)
    ends.open()
    hello = ends.greet()
    assert hello.shared is None
    assert not hello.verify
    ends.close()


def test_a_greeting_before_the_connection_is_up_has_failed(ends):
    with nobody() as endpoint:
        assert list(ends.connections.open(i.Open(9, endpoint))) == []
        assert list(ends.connections.greet(i.Greet(9, 1))) == [e.GreetingFailed(9)]


def test_what_is_ordered_in_a_turn_goes_at_once(ends):
    first, second = ends.open(1), ends.open(2)
    came = ends.read()
    while len(came) < 2:
        came += ends.read()
    assert sorted(event.connection_id for event in came) == [1, 2]
    for connection_id, number in ((1, 10), (2, 20), (1, 11)):
        assert list(ends.connections.send(i.ToWorker(connection_id, m.Ping(number=number)))) == []
    assert list(ends.connections.flush()) == []
    assert first.hear() == [m.Ping(number=10), m.Ping(number=11)]
    assert second.hear() == [m.Ping(number=20)]
    assert list(ends.connections.flush()) == []


def test_what_cannot_be_sent_tells_that_the_connection_is_down(ends):
    with nobody() as endpoint:
        assert list(ends.connections.open(i.Open(9, endpoint))) == []
        list(ends.connections.send(i.ToWorker(9, m.Ping(number=1))))
        assert list(ends.connections.flush()) == [e.ConnectionDown(9)]
        assert list(ends.connections.flush()) == []


def test_what_was_ordered_for_a_connection_that_is_closed_is_forgotten(ends):
    ends.open()
    list(ends.connections.send(i.ToWorker(LINK, m.Ping(number=1))))
    list(ends.connections.close(i.Close(LINK)))
    assert list(ends.connections.flush()) == []


# --- what comes ---


def test_a_connection_that_goes_is_told(ends):
    worker = ends.open()
    ends.greet()
    worker.close()
    assert ends.read() == [e.ConnectionDown(LINK)]


def test_what_workers_say_comes_in_the_order_of_their_connections(ends):
    workers = {connection_id: ends.open(connection_id) for connection_id in (8, 1, 2)}  # a set of these begins with 8
    came = []
    while len(came) < 3:
        came += ends.read()
    for connection_id, worker in workers.items():
        list(ends.connections.greet(i.Greet(connection_id, connection_id % 3)))
        worker.hear()
        worker.say(pong(connection_id))
    for socket in [one for one in ends.polled() if one.type == zmq.DEALER]:
        assert socket.poll(PATIENCE_MS)
    assert ends.read() == [e.WorkerSent(connection_id, pong(connection_id)) for connection_id in (1, 2, 8)]


def test_that_a_connection_came_is_told_before_what_came_on_it(ends):
    worker = ends.open()
    ends.greet()
    assert list(ends.connections.renew(i.Renew(LINK))) == []
    socket, monitor = ends.polled()
    assert monitor.poll(PATIENCE_MS)
    socket.send(b"a greeting")
    worker.identity = worker.router.recv_multipart()[0]
    worker.say(pong(1))
    assert socket.poll(PATIENCE_MS)
    assert ends.read() == [e.ConnectionUp(LINK), e.WorkerSent(LINK, pong(1))]


def test_only_what_is_ready_is_read(ends):
    worker = ends.open()
    ends.greet()
    worker.say(pong(1))
    assert ends.ready()
    assert list(ends.connections.read({"something else"}, 0.0)) == []
    assert ends.read() == [e.WorkerSent(LINK, pong(1))]


@pytest.mark.parametrize(("said", "held", "seen"), [(True, 2, True), (True, 1, False), (False, 2, False)])
def test_a_welcome_is_not_taken_at_its_word(ends, said, held, seen):
    """Whether the worker holds the lock byte that it was offered."""
    worker = ends.open()
    ends.greet(lock_byte=2)
    lock = OpenedSlots(ends.memory.offer(held))
    worker.say(welcome(shared=said))
    assert ends.read() == [e.WorkerSent(LINK, welcome(shared=said), seen)]
    lock.close()


# --- payloads ---


def push(ends, header=HEADER, payload=PAYLOAD):
    """A worker pushes by TCP; what was ordered of it."""
    worker = ends.open()
    ends.greet()
    worker.say(header, payload.tobytes())
    [came] = ends.read()
    assert (came.connection_id, came.message) == (LINK, header)
    return list(ends.connections.write(i.Write(LINK, header, came.payload)))


def test_a_payload_lies_in_its_slot_and_nowhere_else(ends):
    for slot in range(3):
        ends.memory.slot(slot)[:] = 99
    assert push(ends) == [e.Checked(LINK, HEADER, valid=True)]
    assert (ends.memory.slot(1)[:NBYTES] == PAYLOAD).all()
    assert (ends.memory.slot(1)[NBYTES:] == 99).all()
    assert (ends.memory.slot(0) == 99).all()
    assert (ends.memory.slot(2) == 99).all()
    assert ends.connections.count_garbage() == 0


def test_a_payload_with_another_digest_is_not_valid(ends):
    header = replace(HEADER, digest=HEADER.digest ^ 1)
    assert push(ends, header) == [e.Checked(LINK, header, valid=False)]
    assert ends.connections.count_garbage() == 0


def test_a_payload_of_another_size_is_garbage(ends):
    assert push(ends, payload=PAYLOAD[:-1]) == [e.Checked(LINK, HEADER, valid=False)]
    assert ends.connections.count_garbage() == 1
    list(ends.connections.close(i.Close(LINK)))
    assert ends.connections.count_garbage() == 1  # the count outlives the connection


def test_garbage_of_all_connections_counts(ends):
    for connection_id in (1, 2):
        worker = ends.open(connection_id)
        ends.greet(connection_id)
        worker.say(b"nonsense")
        assert ends.read() == []
    assert ends.connections.count_garbage() == 2
    list(ends.connections.close(i.Close(1)))
    assert ends.connections.count_garbage() == 2


def test_what_a_worker_wrote_in_place_is_looked_at(ends):
    ends.memory.slot(1)[:NBYTES] = PAYLOAD
    ends.memory.slot(1)[NBYTES:] = 1  # what lies behind it is no part of it
    assert list(ends.connections.check(i.Check(LINK, HEADER))) == [e.Checked(LINK, HEADER, valid=True)]
    ends.memory.slot(1)[0] ^= 1
    assert list(ends.connections.check(i.Check(LINK, HEADER))) == [e.Checked(LINK, HEADER, valid=False)]


def test_a_lock_proves_the_life_of_its_holder(ends):
    lock = OpenedSlots(ends.memory.offer(2))
    assert list(ends.connections.probe(i.Probe(7, 2))) == []
    assert list(ends.connections.probe(i.Probe(7, 1))) == [e.LockGone(7)]
    lock.close()
    assert list(ends.connections.probe(i.Probe(7, 2))) == [e.LockGone(7)]


# --- under keys ---


@pytest.fixture
def sealed_ends(context, keys):
    made = Ends(context, keys)
    yield made
    made.close()


def test_under_keys_where_sealed_payloads_come_from_is_polled(sealed_ends):
    worker = sealed_ends.open()
    hello = sealed_ends.greet()
    assert hello.seal is not None
    assert len(sealed_ends.polled()) == 2
    worker.say(welcome(sealed_port=worker.sealed_port))
    [came] = sealed_ends.read()
    assert isinstance(came.message, m.Welcome)
    assert len(sealed_ends.polled()) == 3
    list(sealed_ends.connections.close(i.Close(LINK)))
    assert sealed_ends.polled() == []


def test_a_pong_that_waited_in_vain_has_other_sockets_polled(sealed_ends):
    worker = sealed_ends.open()
    sealed_ends.greet()
    worker.say(welcome(sealed_port=worker.sealed_port))
    sealed_ends.read()
    before = sealed_ends.polled()
    worker.say(pong(1, sealed=1))
    assert sealed_ends.read(now_s=0.0) == []
    patience_s = SPEC.heartbeat_timeout_s
    assert list(sealed_ends.connections.read(set(), patience_s - 0.1)) == []
    assert sealed_ends.polled() == before
    assert list(sealed_ends.connections.read(set(), patience_s)) == [e.WorkerSent(LINK, pong(1, sealed=1))]
    assert len(set(sealed_ends.polled()) - set(before)) == 1
    assert len(sealed_ends.polled()) == 3
