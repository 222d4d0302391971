"""Sealed payloads on their own connection: opened in place, and Pongs that went before them wait for them."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import zmq

from shared.endpoints import port_of
from shared.errors import ProtocolError
from shared.sockets import bind_sealed_router
from shared.wire.batch_layout import Layout, Tensor
from shared.wire.codec import encode
from shared.wire.messages import Pong, Pushed
from shared.wire.payload import PayloadEncoding, encode_payload
from shared.wire.sealing import TAG_BYTES, Sealer
from tests.shared.wire.examples import EXAMPLES
from tests.support.exhaustion import no_sockets_left
from tests.support.open_doors import let_all_in
from trainer_client.network.sealed_connection import SealedConnection

DATA = np.arange(128, dtype=np.uint8)
LAYOUT = Layout((Tensor("audio", "float32", (32,), 0, 128),), 128)
HEADER = replace(next(one for one in EXAMPLES if isinstance(one, Pushed)), in_slot=False)
PATIENCE_S = 2.0


class Line:
    """A worker's sealed socket, and what the trainer reads at its end."""

    def __init__(self, context):
        self.context = context
        let_all_in(context)
        self.router = bind_sealed_router(context, "tcp://127.0.0.1:1")
        self.sealed = SealedConnection(context, "tcp://127.0.0.1:1")
        self.seal = self.sealed.make_seal()
        self.sealer = Sealer(self.seal.key)
        self.port = port_of(self.router.getsockopt_string(zmq.LAST_ENDPOINT))
        self.sealed.expect(self.port)
        self.place = np.zeros(DATA.nbytes, np.uint8)
        self.encoding = PayloadEncoding()

    def push(self, payload=DATA, change=0):
        """Send one, and wait until it came."""
        frame = np.empty(payload.nbytes + TAG_BYTES, np.uint8)
        number = self.sealer.seal_payload(payload.data, frame)
        frame[3] ^= change
        frames = [self.seal.identity, self.sealer.seal_header(number, encode(HEADER)), frame.tobytes()]
        until_s = time.monotonic() + 60
        while True:
            try:
                self.router.send_multipart(frames)
                break
            except zmq.ZMQError:  # not connected yet
                assert time.monotonic() < until_s
                self.sealed.socket.poll(5)
        assert self.sealed.socket.poll(60_000)

    def read(self, now_s=0.0):
        """Headers; the payloads are opened after all of them were read, as the core decides."""
        came = list(self.sealed.read(now_s))
        for _, payload in came:
            payload.decode_into(LAYOUT, self.encoding, self.place)
        return [header for header, _ in came]

    def close(self):
        self.sealed.close()
        self.router.close(0)


@pytest.fixture
def line():
    with zmq.Context() as context:
        one = Line(context)
        yield one
        one.close()


def pong(sealed, number=1):
    return Pong(number=number, tickets=(), sealed=sealed, waiting=0)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_payload_is_opened_where_it_belongs(line, compression):
    line.encoding = PayloadEncoding(compression=compression)
    encoded = np.frombuffer(encode_payload(DATA, LAYOUT, line.encoding), np.uint8)
    line.push(encoded)
    assert line.read() == [HEADER]
    assert (line.place == DATA).all()
    assert not line.sealed.garbage


def test_a_changed_payload_is_refused(line):
    line.push(change=1)
    with pytest.raises(ProtocolError) as caught:
        line.read()
    assert str(caught.value) == (
        "sealed payload: expected the payload that was sealed for its header, got another, or changed bytes. "
        "It was dropped and is asked for again; see PROTOCOL.md."
    )


def test_what_does_not_open_is_counted(line):
    line.sealer = Sealer(bytes(32))
    line.push()
    assert line.read() == []
    assert line.sealed.garbage == 1


def test_a_pong_with_nothing_before_it_counts_at_once(line):
    assert not line.sealed.put_off(pong(0), 0.0)
    line.push()
    line.read()
    assert not line.sealed.put_off(pong(1), 0.0)
    assert line.sealed.take_due(9.0, PATIENCE_S) is None


def test_a_pong_waits_for_the_payloads_before_it(line):
    assert line.sealed.put_off(pong(2), 0.0)
    line.push()
    line.read(now_s=0.1)
    assert line.sealed.take_due(0.1, PATIENCE_S) is None
    line.push()
    line.read(now_s=0.2)
    assert line.sealed.take_due(0.2, PATIENCE_S) == (pong(2), False)
    assert line.sealed.take_due(0.2, PATIENCE_S) is None


def test_it_waits_as_long_as_payloads_come_and_no_longer(line):
    line.sealed.put_off(pong(3), 0.0)
    line.push()
    line.read(now_s=1.5)
    assert line.sealed.take_due(3.4, PATIENCE_S) is None
    assert line.sealed.take_due(3.5, PATIENCE_S) == (pong(3), True)


def test_later_pongs_do_not_put_off_the_first(line):
    line.sealed.put_off(pong(1, number=1), 0.0)
    assert line.sealed.put_off(pong(2, number=2), 0.5)
    line.push()
    line.read(now_s=0.6)
    assert line.sealed.take_due(0.6, PATIENCE_S) == (pong(1, number=1), False)


def test_a_pong_that_is_whole_replaces_one_that_waits(line):
    line.sealed.put_off(pong(1, number=1), 0.0)
    line.push()
    line.read(now_s=0.1)
    assert not line.sealed.put_off(pong(1, number=2), 0.1)
    assert line.sealed.take_due(0.1, PATIENCE_S) is None


def test_what_waits_is_forgotten_with_its_worker(line):
    line.sealed.put_off(pong(1), 0.0)
    line.sealed.forget()
    assert line.sealed.take_due(9.0, PATIENCE_S) is None


def test_what_waits_is_forgotten_with_its_key(line):
    line.sealed.put_off(pong(1), 0.0)
    line.sealed.make_seal()
    assert line.sealed.take_due(9.0, PATIENCE_S) is None


def test_two_that_were_read_before_either_is_opened_are_told_apart(line):
    line.push()
    line.push(payload=DATA[::-1].copy())
    came = []
    while len(came) < 2:
        assert line.sealed.socket.poll(60_000)
        came += line.sealed.read(0.0)
    first, second = came
    second[1].decode_into(LAYOUT, line.encoding, line.place)
    assert (line.place == DATA[::-1]).all()
    first[1].decode_into(LAYOUT, line.encoding, line.place)
    assert (line.place == DATA).all()


@pytest.mark.fault(38)
def test_where_no_socket_is_left_it_connects_at_a_later_pong(line, caplog):
    line.push()
    before = line.sealed.socket
    with no_sockets_left(line.context):
        line.sealed.renew()
        assert line.sealed.socket is before
        assert "no connection for payloads yet" in caplog.text
        line.sealed.put_off(pong(0), 1.0)
        assert line.sealed.socket is before
    line.sealed.put_off(pong(0), 2.0)
    assert line.sealed.socket is not before
    assert before.closed


@pytest.mark.fault(38)
def test_without_a_first_connection_there_is_one_later(line):
    other = SealedConnection(line.context, "tcp://127.0.0.1:1")
    with no_sockets_left(line.context):
        other.expect(line.port)
        assert other.socket is None
    other.put_off(pong(0), 1.0)
    assert other.socket is not None
    other.close()
    assert other.socket is None


def test_batches_that_keep_coming_by_the_other_connection_are_counted_and_told_once(line, caplog):
    for now_s in (0.0, 1.9):
        line.sealed.note_fallback(now_s)
    assert caplog.text == ""
    line.push()
    line.read(2.0)
    for now_s in (3.0, 4.9):
        line.sealed.note_fallback(now_s)
    assert caplog.text == "", "payloads came in between"
    for now_s in (5.0, 6.0, 20.0):
        line.sealed.note_fallback(now_s)
    assert line.sealed.fallbacks == 7
    (record,) = caplog.records
    assert "payloads come by the connection for messages" in record.getMessage()
    assert f"port={line.port}" in record.getMessage()


def test_a_worker_that_seals_nothing_is_no_fallback(line):
    line.sealed.expect(0)
    line.sealed.note_fallback(0.0)
    assert line.sealed.fallbacks == 0


def test_after_a_connection_that_could_not_be_renewed_nothing_stays_open(line):
    """The context would wait for the former socket when it ends."""
    former = line.sealed.socket
    with no_sockets_left(line.context):
        line.sealed.renew()
    assert line.sealed.socket is former
    line.sealed.close()
    assert former.closed
