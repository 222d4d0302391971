"""A trainer's connection to one worker, over real sockets: what goes out and in, what becomes of it when it is cut."""

from __future__ import annotations

import numpy as np
import pytest
import zmq

from shared.endpoints import port_of
from shared.hashing import digest64
from shared.sockets import bind_router, bind_sealed_router
from shared.wire import messages as m
from shared.wire.batch_layout import Layout, Tensor
from shared.wire.codec import encode
from shared.wire.message_parts import Ticket, WireShape
from shared.wire.payload import PayloadEncoding, encode_payload
from shared.wire.sealing import TAG_BYTES, Sealer
from tests.support.worker_end import PATIENCE_MS, WorkerEnd, nobody, welcome
from trainer_client.network.worker_connection import WorkerConnection

DATA = np.arange(128, dtype=np.uint8)
LAYOUT = Layout((Tensor("audio", "float32", (32,), 0, 128),), 128)
PUSHED = m.Pushed(
    ticket=Ticket(0, 1), epoch=0, number=3, empty=False, in_slot=False, shape=WireShape(2, (("audio", 8),)),
    nbytes=128, digest=0, rows=2, masked=0, reason="", reasons=(), build_us=1, read_us=0, held_us=1, waiting=0,
)  # fmt: skip


def ping(number=1):
    return m.Ping(number=number)


def pong(number=1, sealed=0):
    return m.Pong(number=number, tickets=(), sealed=sealed, waiting=0)


def cancelled(number=1):
    return m.Cancelled(ticket=Ticket(0, number))


class Ends:
    """Both ends, and nothing said yet."""

    def __init__(self, context, server_keys=None, client_keys=None):
        self.worker = WorkerEnd(context, server_keys)
        self.trainer = WorkerConnection(context, self.worker.endpoint, client_keys)
        self.wait_for_change(up=True)

    def wait_for_change(self, *, up):
        assert self.trainer.monitor.poll(PATIENCE_MS)
        assert next(self.trainer.read_changes()) is up

    def greet(self, *, number=1):
        self.trainer.queue(ping(number))
        assert self.trainer.flush()
        assert self.worker.hear() == [ping(number)]

    def read(self, now_s=0.0):
        assert self.trainer.socket.poll(PATIENCE_MS)
        return list(self.trainer.read(now_s))

    def say(self, *frames):
        self.worker.say(*frames)
        return self.read()

    def close(self):
        self.trainer.close()
        self.worker.close()


@pytest.fixture
def ends(context):
    both = Ends(context)
    both.greet()
    yield both
    both.close()


class SealedEnds(Ends):
    """The same under keys; the worker has told where sealed payloads come from."""

    def __init__(self, context, keys):
        super().__init__(context, *keys)
        self.seal = self.trainer.sealed.make_seal()
        self.sealer = Sealer(self.seal.key)
        self.greet()
        self.say(welcome(sealed_port=self.worker.sealed_port))

    def push_sealed(self, header=PUSHED, data=DATA):
        frame = np.empty(data.nbytes + TAG_BYTES, np.uint8)
        number = self.sealer.seal_payload(data.data, frame)
        frames = [self.seal.identity, self.sealer.seal_header(number, encode(header)), frame.tobytes()]
        self.trainer.sealed.socket.send(b"here")  # what was sent before the worker knows the connection would be lost
        assert self.worker.sealed.poll(PATIENCE_MS), "the connection was not let in"
        self.worker.sealed.recv_multipart()
        self.worker.sealed.send_multipart(frames)
        assert self.trainer.sealed.socket.poll(PATIENCE_MS)


@pytest.fixture
def sealed_ends(context, keys):
    both = SealedEnds(context, keys)
    yield both
    both.close()


# --- out ---


def test_what_is_queued_goes_at_once_and_in_order(ends):
    for number in (5, 6, 7):
        ends.trainer.queue(ping(number))
    assert ends.trainer.flush()
    assert ends.worker.hear() == [ping(5), ping(6), ping(7)]


def test_what_was_flushed_is_not_sent_again(ends):
    ends.greet(number=5)
    assert ends.trainer.flush()
    ends.greet(number=6)


def test_a_connection_that_is_not_up_takes_nothing_and_keeps_nothing(context):
    with nobody() as endpoint:
        connection = WorkerConnection(context, endpoint, None)
        assert connection.flush()  # nothing to say, nothing lost
        connection.queue(ping())
        assert not connection.flush()
        assert connection.flush()
        connection.close()


# --- in ---


def test_it_tells_that_the_connection_went_and_came(ends, context):
    ends.worker.close()
    ends.wait_for_change(up=False)
    router = bind_router(context, ends.trainer.endpoint, None)
    ends.wait_for_change(up=True)
    router.close(0)


def test_several_messages_of_one_arrival(ends):
    assert ends.say(pong(1), cancelled(2), pong(3)) == [(pong(1), None), (cancelled(2), None), (pong(3), None)]


def test_a_payload_follows_its_header(ends):
    (header, payload), (after, nothing) = ends.say(PUSHED, DATA.tobytes(), pong())
    assert (header, after, nothing) == (PUSHED, pong(), None)
    place = np.zeros(128, np.uint8)
    assert ends.trainer.write(payload, digest64(DATA), LAYOUT, place)
    assert (place == DATA).all()


def test_a_payload_with_another_digest_is_not_valid(ends):
    place = np.zeros(128, np.uint8)
    assert not ends.trainer.write(memoryview(DATA.tobytes()), digest64(DATA) ^ 1, LAYOUT, place)
    assert ends.trainer.count_garbage() == 0, "it is a payload, though not this one"


@pytest.mark.parametrize("nbytes", [0, 127, 129])
def test_a_payload_of_another_length_is_garbage(ends, nbytes):
    data = bytes(nbytes)
    assert not ends.trainer.write(memoryview(data), digest64(data), LAYOUT, np.zeros(128, np.uint8))
    assert ends.trainer.count_garbage() == 1


def test_a_header_whose_batch_lies_in_its_slot_has_no_payload(ends):
    in_slot = m.Pushed(**{name: getattr(PUSHED, name) for name in PUSHED.checks} | {"in_slot": True})
    assert ends.say(in_slot, pong()) == [(in_slot, None), (pong(), None)]


def test_a_header_without_its_payload(ends):
    assert ends.say(PUSHED) == [(PUSHED, None)]


def test_what_follows_garbage_is_not_looked_into(ends):
    assert ends.say(pong(1), b"nonsense", pong(2)) == [(pong(1), None)]
    assert ends.trainer.count_garbage() == 1
    assert ends.say(pong(3)) == [(pong(3), None)]
    assert ends.trainer.count_garbage() == 1


def test_a_worker_that_says_much_leaves_the_others_their_turn(ends):
    for number in range(65):
        ends.worker.say(pong(number))
    reading = ends.trainer.read(0.0)
    for number in range(64):
        assert ends.trainer.socket.poll(PATIENCE_MS)
        assert next(reading) == (pong(number), None)
    assert ends.trainer.socket.poll(PATIENCE_MS)
    assert next(reading, None) is None
    assert ends.read() == [(pong(64), None)]


def test_the_welcome_tells_how_payloads_are_packed(ends):
    assert ends.trainer.encoding.plain
    said = welcome(float32="bfloat16", compression="lz4")
    assert ends.say(said) == [(said, None)]
    encoding = PayloadEncoding(float32="bfloat16", compression="lz4")
    assert ends.trainer.encoding == encoding
    place = np.ones(128, np.uint8)
    zeros = np.zeros(128, np.uint8)
    encoded = memoryview(encode_payload(zeros, LAYOUT, encoding))
    assert not ends.trainer.write(encoded, digest64(zeros) ^ 1, LAYOUT, place)
    assert ends.trainer.write(encoded, digest64(zeros), LAYOUT, place)
    assert not place.any()


# --- made anew ---


def test_made_anew_it_is_the_same_trainer_to_the_worker(ends):
    before, before_monitor, before_identity = ends.trainer.socket, ends.trainer.monitor, ends.worker.identity
    ends.trainer.queue(ping(8))
    ends.trainer.renew()
    assert before.closed
    assert before_monitor.closed
    assert ends.trainer.sockets() == [ends.trainer.socket, ends.trainer.monitor]
    ends.wait_for_change(up=True)
    ends.greet(number=9)  # and what was queued before is lost
    assert ends.worker.identity == before_identity
    assert ends.say(pong(9)) == [(pong(9), None)]


def test_each_connection_is_another_trainer(ends, context):
    first = ends.worker.identity
    other = WorkerConnection(context, ends.worker.endpoint, None)
    assert other.monitor.poll(PATIENCE_MS)
    other.queue(ping())
    assert other.flush()
    ends.worker.hear()
    assert len({first, ends.worker.identity}) == 2
    assert len(first) == 16
    other.close()


def test_nothing_is_open_after_closing(context, keys):
    ends = SealedEnds(context, keys)
    sockets = ends.trainer.sockets()
    assert len(sockets) == 3
    ends.close()
    assert all(socket.closed for socket in sockets)


# --- sealed ---


def test_without_keys_nothing_is_sealed(ends):
    ends.say(welcome(sealed_port=7411))
    assert ends.trainer.sealed.socket is None, "whatever port the worker names"
    assert ends.trainer.sockets() == [ends.trainer.socket, ends.trainer.monitor]
    assert list(ends.trainer.read_late(9.0, 1.0)) == []


def test_sealed_payloads_come_on_their_own_connection(sealed_ends):
    trainer = sealed_ends.trainer
    assert trainer.sockets() == [trainer.socket, trainer.monitor, trainer.sealed.socket]
    sealed_ends.push_sealed()
    [(header, payload)] = trainer.sealed.read(0.0)
    place = np.zeros(128, np.uint8)
    assert trainer.write(payload, header.digest, LAYOUT, place)
    assert header == PUSHED
    assert (place == DATA).all()


def test_a_sealed_payload_is_packed_as_the_welcome_says(sealed_ends):
    sealed_ends.say(welcome(compression="lz4", sealed_port=sealed_ends.worker.sealed_port))
    encoded = encode_payload(DATA, LAYOUT, PayloadEncoding(compression="lz4"))
    sealed_ends.push_sealed(data=np.frombuffer(encoded, np.uint8))
    [(_, payload)] = sealed_ends.trainer.sealed.read(0.0)
    place = np.zeros(128, np.uint8)
    assert sealed_ends.trainer.write(payload, 0, LAYOUT, place)
    assert (place == DATA).all()


def test_garbage_of_both_connections_counts(sealed_ends):
    sealed_ends.say(b"nonsense")
    sealed_ends.sealer = Sealer(bytes(32))
    sealed_ends.push_sealed()
    assert list(sealed_ends.trainer.sealed.read(0.0)) == []
    assert sealed_ends.trainer.count_garbage() == 2


def test_a_pong_waits_for_the_payloads_that_were_sent_before_it(sealed_ends):
    trainer = sealed_ends.trainer
    assert sealed_ends.say(pong(1, sealed=1), cancelled(2)) == [(cancelled(2), None)]
    assert list(trainer.read_late(0.5, 2.0)) == []
    sealed_ends.push_sealed()
    before = trainer.sealed.socket
    assert len(list(trainer.sealed.read(0.5))) == 1
    assert list(trainer.read_late(0.5, 2.0)) == [(pong(1, sealed=1), None)]
    assert trainer.sealed.socket is before
    assert sealed_ends.say(pong(2, sealed=1)) == [(pong(2, sealed=1), None)]


def test_where_payloads_are_lost_their_connection_is_made_anew(sealed_ends):
    trainer = sealed_ends.trainer
    before = trainer.sealed.socket
    sealed_ends.say(pong(1, sealed=1), cancelled(2))
    assert list(trainer.read_late(1.9, 2.0)) == []
    assert trainer.sealed.socket is before
    assert list(trainer.read_late(2.0, 2.0)) == [(pong(1, sealed=1), None)]
    assert before.closed
    assert trainer.sockets()[2] is trainer.sealed.socket
    sealed_ends.push_sealed()
    assert len(list(trainer.sealed.read(2.0))) == 1


def test_a_pong_that_waits_is_forgotten_when_the_connection_goes(sealed_ends):
    sealed_ends.say(pong(1, sealed=1), cancelled(2))
    sealed_ends.worker.router.close(0)
    sealed_ends.wait_for_change(up=False)
    assert list(sealed_ends.trainer.read_changes()) == []
    assert list(sealed_ends.trainer.read_late(9.0, 2.0)) == []


def test_a_pong_that_waits_outlives_a_connection_that_comes(sealed_ends):
    sealed_ends.say(pong(1, sealed=1), cancelled(2))
    sealed_ends.trainer.renew()
    sealed_ends.wait_for_change(up=True)
    assert list(sealed_ends.trainer.read_late(9.0, 2.0)) == [(pong(1, sealed=1), None)]


def test_made_anew_both_connections_are(sealed_ends):
    trainer = sealed_ends.trainer
    before = trainer.sealed.socket
    trainer.renew()
    assert before.closed
    assert not trainer.sealed.socket.closed


def test_a_worker_that_sends_from_elsewhere_is_followed(sealed_ends, context):
    before, trainer = sealed_ends.trainer.sealed.socket, sealed_ends.trainer
    sealed_ends.say(welcome(sealed_port=sealed_ends.worker.sealed_port))
    assert trainer.sealed.socket is before  # the same port: nothing is made anew
    other = bind_sealed_router(context, sealed_ends.worker.endpoint)
    sealed_ends.worker.sealed.close(0)
    sealed_ends.worker.sealed = other
    sealed_ends.say(welcome(sealed_port=port_of(other.getsockopt_string(zmq.LAST_ENDPOINT))))
    sealed_ends.push_sealed()
    assert len(list(trainer.sealed.read(0.0))) == 1
    sealed_ends.say(welcome(sealed_port=0))
    assert trainer.sealed.socket is None
