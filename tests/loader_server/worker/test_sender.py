"""What leaves a worker: in order, once, and never more than its trainer reads."""

from __future__ import annotations

import pytest
import zmq

from loader_server.building.build_thread import Build, Outcome
from loader_server.building.send_buffers import SendBuffers
from loader_server.machine.doors import Doors
from loader_server.wants.session import Session
from loader_server.worker.sender import Sender
from shared.endpoints import at_port
from shared.fairness.budget import Budget
from shared.hashing import digest64
from shared.huge_pages import HUGE_PAGE
from shared.keys import ServerKeys, make_keys
from shared.logs import Log
from shared.wire import messages as m
from shared.wire.batch_layout import BucketShape, Field, fields_of_batch, layout_of
from shared.wire.codec import decode, encode
from shared.wire.message_parts import Seal, Ticket
from shared.wire.payload import PayloadEncoding
from shared.wire.sealing import Opener, Sealer
from tests.shared.wire.examples import EXAMPLES
from tests.support.loaders import wait_until
from tests.support.open_doors import let_all_in


def layout(steps):
    return layout_of(
        fields_of_batch((Field(key="audio", dtype="float32", shape=(None, 80)),)),
        BucketShape(rows=8, lengths={"audio": steps}),
    )


LARGE, SMALL = layout(2000), layout(5)
WANT = next(one for one in EXAMPLES if isinstance(one, m.Want))
HEADER = next(one for one in EXAMPLES if isinstance(one, m.Pushed))
TRAINER = b"trainer"
LOG = Log("worker")


def hello(seal=None):
    return m.Hello(job="j", stream="s", incarnation=7, shared=None, verify=False, seal=seal)


class SenderEnd:
    """A worker's sender half, and a trainer that hears it, if it is let to."""

    def kept_bytes(self):
        return sum(one.nbytes for one in self.buffers._free)

    def __init__(self, context, encoding, keys=None):
        self.context = context
        self.buffers = SendBuffers(encoding, 8 * HUGE_PAGE)
        self.batches = Budget(100 * LARGE.nbytes)
        self.sender = Sender(context, "tcp://127.0.0.1:*", keys, self.buffers, self.batches)
        self.session = Session(TRAINER, hello(), self.buffers.take)
        self.dealers = []

    def dealer(self, identity=TRAINER, endpoint="", **options):
        dealer = self.context.socket(zmq.DEALER)
        self.dealers.append(dealer)
        for name, value in {"ROUTING_ID": identity, "LINGER": 0, "RCVTIMEO": 60_000, **options}.items():
            dealer.setsockopt(getattr(zmq, name), value)
        dealer.connect(endpoint or self.sender.endpoint)
        return dealer

    def deaf(self, identity=TRAINER):
        """Takes in what it cannot help, and reads nothing of it."""
        return self.said_hello(self.dealer(identity, RCVHWM=1, RCVBUF=4096))

    def said_hello(self, dealer):
        dealer.send(b"")
        assert self.sender.router.poll(60_000)
        self.sender.router.recv_multipart()
        return dealer

    def outcome(self, size, sealer=None):
        payload = self.buffers.take(size.nbytes)
        payload[:] = 1
        sent = self.buffers.encode(payload, size)
        sealed = self.buffers.seal(sealer, sent) if sealer is not None else None
        return Outcome(Build(7, WANT, self.buffers.take, sealer=sealer), payload=payload, sent=sent, sealed=sealed)

    def push(self, size=LARGE, header=HEADER):
        self.sender.push(self.outcome(size), header, self.session, LOG)

    def settle(self):
        def settled():
            self.sender.take_back()
            return not self.sender.is_behind()

        wait_until(settled, "libzmq is through")

    def close(self):
        for dealer in self.dealers:
            dealer.close()
        self.sender.close()


@pytest.fixture(params=[PayloadEncoding(), PayloadEncoding(float32="bfloat16")], ids=["plain", "encoded"])
def end(request):
    with zmq.Context() as context:
        one = SenderEnd(context, request.param)
        yield one
        one.close()


@pytest.fixture
def plain():
    with zmq.Context() as context:
        one = SenderEnd(context, PayloadEncoding())
        yield one
        one.close()


def pong(number):
    return m.Pong(number=number, tickets=(), sealed=0, waiting=0)


def heard(dealer, times):
    """The messages of so many arrivals; of each batch only its header."""
    return [decode(frame) for _ in range(times) for frame in dealer.recv_multipart() if frame[:1] == b"\x93"]


# --- order ---


@pytest.mark.parametrize("size", [LARGE, SMALL])
def test_answers_and_batches_keep_their_order(plain, size):
    dealer = plain.said_hello(plain.dealer())
    plain.sender.say(TRAINER, pong(1))
    plain.push(size)
    plain.sender.answer(TRAINER, m.Cancelled(ticket=Ticket(1, 1)))
    plain.sender.say(TRAINER, pong(2))
    assert plain.sender.flush()
    said = []
    while len(said) < 4:
        said += heard(dealer, 1)
    assert said == [pong(1), HEADER, m.Cancelled(ticket=Ticket(1, 1)), pong(2)]


def test_answers_of_a_turn_go_at_once_and_to_whom_they_are_for(plain):
    one, other = plain.said_hello(plain.dealer()), plain.said_hello(plain.dealer(b"other"))
    for number in (1, 2):
        plain.sender.say(TRAINER, pong(number))
        plain.sender.say(b"other", pong(10 * number))
    assert plain.sender.flush()
    assert heard(one, 1) == [pong(1), pong(2)]
    assert heard(other, 1) == [pong(10), pong(20)]
    assert plain.sender.flush()
    assert not one.poll(50)


def test_a_small_batch_goes_with_the_answers(plain):
    dealer = plain.said_hello(plain.dealer())
    plain.sender.say(TRAINER, pong(1))
    plain.push(SMALL)
    assert not dealer.poll(50)
    plain.sender.flush()
    first, header, payload = dealer.recv_multipart()
    assert (decode(first), decode(header)) == (pong(1), HEADER)
    assert payload == b"\1" * SMALL.nbytes
    assert plain.batches.total == plain.sender.unsent_bytes() == 0


def test_a_peer_that_is_gone_is_told_nothing(plain):
    dealer = plain.said_hello(plain.dealer())
    plain.sender.say(b"gone", pong(1))
    plain.sender.say(TRAINER, pong(2))
    assert not plain.sender.flush()
    assert heard(dealer, 1) == [pong(2)]
    plain.session.address = b"gone"
    plain.push()
    assert plain.batches.total == plain.sender.unsent_bytes() == 0
    assert list(plain.sender._peers) == [TRAINER]


# --- memory ---


def test_memory_is_used_again_once_nothing_looks_into_it(end):
    dealer = end.said_hello(end.dealer())
    end.push()
    nbytes = end.sender.unsent_bytes()
    assert nbytes == end.batches.held(7) == (LARGE.nbytes if not end.buffers.encodes else nbytes)
    whole = end.buffers.encodes  # what is encoded lies elsewhere: its plain form is free at once
    assert (end.kept_bytes() > 0) == whole
    assert len(dealer.recv_multipart()[1]) == nbytes
    end.settle()
    assert end.kept_bytes() >= LARGE.nbytes
    assert end.batches.total == end.sender.unsent_bytes() == 0


def test_a_digest_that_was_left_out_is_made_up_for(plain):
    """It was to be sealed, and now cannot be."""
    dealer = plain.said_hello(plain.dealer())
    sealer = Sealer(bytes(32))
    header = m.Pushed(**{**{name: getattr(HEADER, name) for name in HEADER.checks}, "digest": 0})
    plain.sender.push(plain.outcome(LARGE, sealer), header, plain.session, LOG)
    first, payload = dealer.recv_multipart()
    assert decode(first).digest == digest64(payload) != 0


# --- a peer that does not read ---


@pytest.mark.fault(42)
def test_who_does_not_read_is_told_only_what_it_is_owed(plain):
    plain.deaf()
    reader = plain.said_hello(plain.dealer(b"reader"))
    long = m.Status(report="x" * 60_000)
    for _ in range(200):
        plain.sender.say(TRAINER, long)
        plain.sender.flush()
        plain.sender.take_back()
    assert not plain.sender.reads(TRAINER)
    left_out = plain.sender.left_out
    assert 50 < left_out < 200 - 4 * 2**20 / 60_000
    plain.sender.say(TRAINER, long)
    plain.sender.say_frame(TRAINER, encode(long))
    assert plain.sender.left_out == left_out + 2
    plain.sender.answer(TRAINER, m.Cancelled(ticket=Ticket(1, 1)))
    assert plain.sender._peers[TRAINER].frames == [encode(m.Cancelled(ticket=Ticket(1, 1)))]
    assert plain.sender.reads(b"reader"), "others are told everything"
    plain.sender.say(b"reader", pong(5))
    assert plain.sender.flush()
    assert heard(reader, 1) == [pong(5)]


@pytest.mark.fault(42)
def test_who_reads_again_is_told_everything_again(plain):
    deaf = plain.deaf()
    long = m.Status(report="x" * 60_000)
    while plain.sender.reads(TRAINER):
        plain.sender.say(TRAINER, long)
        plain.sender.flush()
        plain.sender.take_back()

    def all_is_read():
        while deaf.poll(0):
            deaf.recv_multipart()
        plain.sender.take_back()
        return not plain.sender.is_behind()

    wait_until(all_is_read, "all was read")
    assert plain.sender.reads(TRAINER)
    assert plain.sender._answers._unread.total == 0


@pytest.mark.fault(42)
def test_in_one_turn_nobody_is_told_without_end(plain):
    """Nothing of it was sent yet, so nothing is on an account."""
    plain.said_hello(plain.dealer())
    for number in range(100_000):
        plain.sender.say(TRAINER, pong(number))
    assert plain.sender._peers[TRAINER].waiting < 2 * 64 * 1024
    assert plain.sender.left_out > 90_000
    plain.sender.flush()
    plain.sender.say(TRAINER, pong(1))
    assert plain.sender._peers[TRAINER].frames


@pytest.mark.fault(42)
def test_batches_that_are_not_read_are_on_the_trainers_account(plain):
    plain.deaf()
    plain.session.address = TRAINER
    for _ in range(5):
        plain.push()
    plain.sender.take_back()
    assert plain.batches.held(7) == plain.sender.unsent_bytes() >= 4 * LARGE.nbytes
    assert plain.sender.is_behind()


@pytest.mark.fault(42)
def test_small_batches_that_are_not_read_count_as_answers(plain):
    plain.deaf()
    while plain.sender.reads(TRAINER):
        plain.push(SMALL)
        plain.sender.flush()
        plain.sender.take_back()
    assert plain.sender._answers.held(TRAINER) >= 4 * 2**20


def test_connections_that_were_quiet_for_long_are_forgotten(plain):
    for name in (b"quiet", b"loud", b"waiting"):
        plain.said_hello(plain.dealer(name))
        plain.sender.say(name, pong(1))
    plain.sender.flush()
    plain.sender.forget_quiet()
    assert set(plain.sender._peers) == {b"quiet", b"loud", b"waiting"}
    plain.sender.say(b"loud", pong(2))
    plain.sender.flush()
    plain.sender.say(b"waiting", pong(2))
    plain.sender.forget_quiet()
    assert set(plain.sender._peers) == {b"loud", b"waiting"}
    plain.sender.forget_quiet()
    assert set(plain.sender._peers) == {b"waiting"}, "what is to be said is not forgotten"
    plain.sender.flush()


# --- sealed ---


@pytest.fixture
def sealed(tmp_path):
    make_keys(tmp_path / "keys")
    with zmq.Context() as context:
        let_all_in(context)
        one = SenderEnd(context, PayloadEncoding(), ServerKeys.read(tmp_path / "keys", "worker"))
        yield one
        one.close()


def test_sealed_batches_go_their_own_way(sealed):
    opener = Opener()
    sealed.session.greet(TRAINER, hello(Seal(opener.key, b"side door")))
    port = sealed.sender.sealed_port
    assert sealed.sender.ports == [int(sealed.sender.endpoint.rpartition(":")[2]), port]
    dealer = sealed.dealer(
        b"side door", at_port(sealed.sender.endpoint, port), PLAIN_USERNAME=b"side door".hex().encode()
    )
    sealer = sealed.session.sealer

    def pushed():
        sealed.sender.push(sealed.outcome(LARGE, sealer), HEADER, sealed.session, LOG)
        return sealed.session.sealed_number > 0

    wait_until(pushed, "the side door is open")
    nbytes = LARGE.nbytes + 16
    assert sealed.batches.held(7) == nbytes
    head, payload = dealer.recv_multipart()
    assert decode(opener.open_header(head)) == HEADER
    assert opener.number == sealed.session.sealed_number
    assert opener.open_payload(opener.number, memoryview(payload)) == b"\1" * LARGE.nbytes
    sealed.settle()
    assert sealed.batches.total == 0


def test_what_was_sealed_under_an_earlier_key_is_not_sent_sealed(sealed):
    sealed.session.greet(TRAINER, hello(Seal(bytes(32), b"side door")))
    outcome = sealed.outcome(LARGE, sealed.session.sealer)
    sealed.session.greet(TRAINER, hello(Seal(b"\1" * 32, b"side door")))
    dealer = sealed.dealer(b"side door", at_port(sealed.sender.endpoint, sealed.sender.sealed_port))
    sealed.sender.push(outcome, HEADER, sealed.session, LOG)
    assert not dealer.poll(100)
    assert sealed.session.sealed_number == 0


def test_connections_to_every_port_are_counted(plain, sealed):
    for one, ports in ((plain, {"messages"}), (sealed, {"messages", "sealed"})):
        doors = Doors(LOG)
        one.sender.watch(doors)
        assert doors.changes.keys() == ports
        doors.close()
