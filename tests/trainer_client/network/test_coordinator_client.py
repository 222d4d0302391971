"""A trainer's connection to the coordinator, over real sockets."""

from __future__ import annotations

import pytest
import zmq

from shared.wire import messages as m
from tests.support.exhaustion import no_sockets_left
from tests.support.worker_end import PATIENCE_MS, WorkerEnd, nobody
from trainer_client.network.coordinator_client import CoordinatorClient

DETACH = m.Detach(stream="train", rank=0, incarnation=1)


@pytest.fixture
def far(context):
    """The coordinator's end: it speaks as a worker's does."""
    end = WorkerEnd(context)
    yield end
    end.close()


@pytest.fixture
def near(context, far):
    client = CoordinatorClient(context, far.endpoint, None)
    yield client
    client.close()


def say(near, far, number=0):
    """Say something once the connection is up, and be heard."""
    detach = m.Detach(stream="train", rank=number, incarnation=1)
    assert near.socket.poll(PATIENCE_MS, zmq.POLLOUT)
    assert near.send(detach)
    assert far.hear() == [detach]


def test_garbage_is_dropped_and_counted(near, far):
    say(near, far)
    far.say(b"nonsense")
    far.say(m.Noted())
    came = []
    while not came:
        assert near.socket.poll(PATIENCE_MS)
        came += near.read()
    assert came == [m.Noted()]
    assert near.garbage == 1


def test_what_cannot_be_sent_now_is_lost(context):
    with nobody() as endpoint:
        client = CoordinatorClient(context, endpoint, None)
        assert not client.send(DETACH)
        client.close()


def test_made_anew_it_is_the_same_trainer_to_the_coordinator(near, far):
    say(near, far, 1)
    identity, before = far.identity, near.socket
    near.renew()
    assert before.closed
    say(near, far, 2)
    assert far.identity == identity
    assert len(identity) == 16
    far.say(m.Noted())
    assert near.socket.poll(PATIENCE_MS)
    assert list(near.read()) == [m.Noted()]


@pytest.mark.fault(38)
def test_where_no_socket_is_left_the_former_connection_stays(near, far, context):
    say(near, far, 1)
    before = near.socket
    with no_sockets_left(context), pytest.raises(zmq.ZMQError):
        near.renew()
    assert near.socket is before
    say(near, far, 2)
    near.renew()
    assert before.closed
    say(near, far, 3)


def test_two_trainers_are_told_apart(near, far, context):
    say(near, far)
    first, other = far.identity, CoordinatorClient(context, far.endpoint, None)
    say(other, far)
    assert far.identity != first
    other.close()


def test_nothing_is_open_after_closing(near):
    near.close()
    assert near.socket.closed
