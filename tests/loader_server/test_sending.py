"""Batches on their way out by TCP: what is counted, and when the memory they lie in may be used again."""

from __future__ import annotations

import time

import pytest
import zmq

from loader_server.build_thread import Job, Outcome
from loader_server.outgoing import Outgoing
from loader_server.sending import Sending
from shared.layout import BucketShape, Field, fields_of_batch, layout_of
from shared.logs import Log
from shared.mapping import HUGE_PAGE
from shared.messages import Pushed, Want
from shared.packing import Packing
from shared.sockets import connect_dealer
from tests.shared.examples import EXAMPLES

LAYOUT = layout_of(
    fields_of_batch((Field(key="audio", dtype="float32", shape=(None, 80)),)),
    BucketShape(rows=8, lengths={"audio": 2000}),
)
WANT = next(one for one in EXAMPLES if isinstance(one, Want))
HEADER = next(one for one in EXAMPLES if isinstance(one, Pushed))
TRAINER = b"trainer"


class Line:
    """A worker's sending half, and a trainer that hears it."""

    def __init__(self, context, packing):
        self.outgoing = Outgoing(packing, 8 * HUGE_PAGE)
        self.sending = Sending(context, "tcp://127.0.0.1:*", None, self.outgoing)
        self.dealer = connect_dealer(context, self.sending.endpoint, None, TRAINER)
        self.dealer.setsockopt(zmq.SNDTIMEO, 20_000)
        self.dealer.send(b"")
        assert self.sending.router.poll(20_000)

    def push(self, trainer=TRAINER):
        payload = self.outgoing.take(LAYOUT.nbytes)
        payload[:] = 1
        sent = self.outgoing.packed(payload, LAYOUT)
        job = Job(trainer, WANT, self.outgoing.take)
        self.sending.push(Outcome(job, payload=payload, sent=sent), HEADER, None, Log("worker"))
        return sent.nbytes

    def close(self):
        self.dealer.close(0)
        self.sending.close()


@pytest.fixture(params=[Packing(), Packing(float32="bfloat16")], ids=["plain", "packed"])
def line(request):
    with zmq.Context() as context:
        one = Line(context, request.param)
        yield one
        one.close()


def test_memory_is_used_again_once_nothing_looks_into_it(line):
    nbytes = line.push()
    assert line.sending.unsent_bytes() == nbytes
    whole = line.outgoing.packs  # what is packed lies elsewhere: its plain form is free at once
    assert (line.outgoing.kept_bytes > 0) == whole
    assert line.dealer.poll(20_000)
    assert len(line.dealer.recv_multipart()[1]) == nbytes
    until_s = time.monotonic() + 20
    while line.sending.unsent_bytes():
        line.sending.take_back()
        line.dealer.poll(1)
        assert time.monotonic() < until_s
    assert line.outgoing.kept_bytes >= LAYOUT.nbytes


def test_nothing_is_on_its_way_to_a_trainer_that_is_gone(line):
    line.push(trainer=b"another")
    assert line.sending.unsent_bytes() == 0
    assert not line.dealer.poll(50)
