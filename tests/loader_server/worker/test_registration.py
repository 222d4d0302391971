"""A worker's talk with the coordinator, over real sockets; the clock is the test's."""

from __future__ import annotations

import contextlib

import pytest
import zmq

from loader_server.building.culprits import culprit_key
from loader_server.worker.registration import Registration
from shared.errors import RefusedError
from shared.wire import messages as m
from tests.shared.wire.examples import EXAMPLES
from tests.support.askers import Desk
from tests.support.exhaustion import no_sockets_left
from tests.support.loaders import wait_until

REGISTER = next(one for one in EXAMPLES if isinstance(one, m.Register))
BEAT = next(one for one in EXAMPLES if isinstance(one, m.Beat))
CULPRIT = next(one for one in EXAMPLES if isinstance(one, m.Culprit))
CULPRITS = next(one for one in EXAMPLES if isinstance(one, m.Culprits))


class Worker:
    """Its registration and a coordinator's desk; time passes when it is let to."""

    def __init__(self, context):
        self.context = context
        self.desk = Desk(context)
        self.registration = Registration(context, self.desk.endpoint, None, REGISTER)
        self.now_s = 100.0

    def turn(self):
        return self.registration.turn(self.now_s, lambda: BEAT, spoken_to=True)

    def turn_until(self, what):
        """Turn, a twentieth of a second at a time, until something holds that others do."""

        def turned():
            self.turn()
            self.now_s += 0.05
            return what()

        wait_until(turned, "it came about")

    def renewal(self):
        """Let time pass until the connection is made anew; how long that took."""
        before, began_s = self.registration.socket, self.now_s
        while self.registration.socket is before:
            assert self.now_s < began_s + 100
            self.now_s += 0.1
            self.turn()
        assert before.closed
        return self.now_s - began_s

    def hear(self):
        """What the worker says next."""
        heard = []

        def came():
            one = self.desk.hear(0)
            heard.extend([one] if one is not None else [])
            return heard

        self.turn_until(came)
        return heard[0]

    def register(self, timeout_ms=2000):
        who, said = self.hear()
        assert said == REGISTER
        self.desk.say(who, m.Registered(heartbeat_timeout_ms=timeout_ms))
        self.turn_until(lambda: self.registration.membership.registered)
        return who

    def quiet(self, seconds):
        """Let time pass, turn, and see that nothing is said."""
        self.now_s += seconds
        self.turn()
        return self.desk.hear(0.05) is None

    def close(self):
        self.registration.close()
        self.desk.close()


@pytest.fixture
def worker():
    with zmq.Context() as context:
        one = Worker(context)
        yield one
        one.close()


def test_it_registers_and_then_says_how_it_is_every_quarter_of_the_timeout(worker):
    who = worker.register(timeout_ms=4000)
    assert worker.registration.heartbeat_timeout_s == 4.0
    assert worker.hear() == (who, BEAT)
    began_s = worker.now_s
    worker.desk.say(who, m.Noted())
    assert worker.hear() == (who, BEAT)
    assert worker.now_s - began_s == pytest.approx(1.0, abs=0.2)


def test_it_registers_until_it_is_answered(worker):
    first, second = worker.hear(), worker.hear()
    assert first == second
    assert first[1] == REGISTER


def test_a_coordinator_that_forgot_it_is_told_who_it_is(worker):
    who = worker.register()
    worker.desk.say(who, m.Refused(code="unknown", expected="a", got="b", remedy="c"))
    worker.turn_until(lambda: not worker.registration.membership.registered)
    heard = [worker.hear()[1] for _ in range(2)]
    assert REGISTER in heard


def test_another_refusal_ends_it(worker):
    who = worker.register()
    worker.desk.say(who, m.Refused(code="builder", expected="a", got="b", remedy="c"))
    with pytest.raises(RefusedError, match="expected a, got b"):
        worker.turn_until(lambda: False)


def test_garbage_is_passed_over_and_culprits_are_told_of(worker):
    who = worker.register()
    worker.desk.router.send_multipart([who, b"garbage"])
    worker.desk.say(who, CULPRITS)
    told = []
    wait_until(lambda: told.extend(worker.turn()) or told, "culprits are told of")
    assert told == [CULPRITS]


@pytest.mark.fault(43)
def test_a_found_culprit_is_said_at_once_and_with_every_heartbeat_until_it_is_on_the_list(worker):
    who = worker.register()
    worker.hear()
    worker.desk.say(who, m.Noted())
    began_s = worker.now_s
    worker.registration.membership.convict(CULPRIT)
    assert [worker.hear()[1] for _ in range(2)] == [BEAT, CULPRIT]
    assert worker.now_s - began_s < 0.3
    assert [worker.hear()[1] for _ in range(4)] == [BEAT, CULPRIT] * 2
    worker.desk.say(who, m.Culprits(version=8, keys=(5, culprit_key(CULPRIT.stream, CULPRIT.identity))))
    worker.turn_until(lambda: worker.registration.membership.culprits == 8)
    while worker.desk.hear(0.05) is not None:
        pass
    assert [worker.hear()[1] for _ in range(2)] == [BEAT, BEAT]


# --- silence ---


@pytest.mark.fault(43)
def test_a_silent_connection_is_made_anew_and_it_registers_on_that(worker):
    who = worker.register(timeout_ms=2000)
    worker.renewal()
    assert not worker.registration.membership.registered
    heard = [worker.hear()]
    while heard[-1][1] != REGISTER:
        heard.append(worker.hear())
    assert heard[-1][0] != who


@pytest.mark.fault(43)
def test_silence_is_borne_for_a_heartbeat_timeout_and_then_for_longer_each_time(worker):
    worker.register(timeout_ms=2000)
    assert [worker.renewal() for _ in range(6)] == pytest.approx([2.0, 4.0, 8.0, 16.0, 16.0, 16.0], abs=0.2)


@pytest.mark.fault(43)
def test_whoever_answers_is_kept(worker):
    who = worker.register(timeout_ms=2000)
    before = worker.registration.socket
    for _ in range(10):
        assert worker.hear() == (who, BEAT)
        worker.desk.say(who, m.Noted())
    assert worker.registration.socket is before
    worker.desk.say(who, CULPRITS)
    wait_until(worker.turn, "it has heard that")
    assert worker.renewal() == pytest.approx(2.0, abs=0.2)


@pytest.mark.fault(43)
def test_to_be_heard_ends_the_growing_of_pauses(worker):
    worker.register(timeout_ms=2000)
    for _ in range(3):
        worker.renewal()
    while not worker.registration.membership.registered:
        who, _ = worker.hear()
        with contextlib.suppress(zmq.ZMQError):  # said on a connection that is no more
            worker.desk.say(who, m.Registered(heartbeat_timeout_ms=2000))
    while worker.registration.socket.poll(100):  # it may have been said more than once
        worker.turn()
    assert worker.renewal() == pytest.approx(2.0, abs=0.2)


# --- leaving ---


def test_who_left_says_nothing_more(worker):
    """A heartbeat would register it anew."""
    who = worker.register()
    worker.hear()
    worker.registration.leave()
    assert worker.desk.hear() == (who, m.Leave(worker=REGISTER.worker, incarnation=REGISTER.incarnation))
    worker.registration.leave()
    socket = worker.registration.socket
    for seconds in (0.0, 0.6, 1.0, 10.0, 100.0):
        assert worker.quiet(seconds)
    assert worker.registration.socket is socket


def test_leaving_is_said_when_it_can_be(worker):
    """Nobody is there to hear it yet."""
    worker.desk.close()
    with zmq.Context() as context:
        lonely = Registration(context, "tcp://127.0.0.1:9", None, REGISTER)
        lonely.leave()
        lonely.turn(1.0, lambda: BEAT, spoken_to=False)
        assert not lonely.membership.left
        lonely.close()


@pytest.mark.fault(38)
def test_where_no_socket_is_left_the_connection_is_made_anew_later(worker):
    worker.register()
    before = worker.registration.socket
    with no_sockets_left(worker.context):
        worker.now_s += 3.0
        worker.turn()
    assert worker.registration.socket is before
    assert not before.closed
    worker.renewal()
    while worker.hear()[1] != REGISTER:  # heartbeats from before
        pass
