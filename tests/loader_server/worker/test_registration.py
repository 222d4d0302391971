"""A worker's talk with the coordinator, over real sockets; the clock is the test's."""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import replace

import pytest
import zmq

from loader_server.building.culprits import culprit_key
from loader_server.machine import reachable
from loader_server.machine.reachable import find_reachable_endpoint
from loader_server.worker import registration
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
    """Its registration and a coordinator's desk. Time passes when it is let to, and never while a message is on its
    way.
    """

    def __init__(self, context, register=REGISTER):
        self.context = context
        self.desk = Desk(context)
        self.registration = Registration(context, self.desk.endpoint, None, register)
        self.now_s = 100.0
        self.arrived = []
        self._underway = 0
        self._send, self.registration._send = self.registration._send, self._count

    def _count(self, message):
        sent = self._send(message)
        self._underway += sent
        return sent

    def turn(self):
        """Whatever was said arrives at the desk."""
        told = self.registration.turn(self.now_s, lambda: BEAT, spoken_to=True)
        while self._underway:
            self.arrived.append(self.desk.hear())
            self._underway -= 1
        return told

    def tell(self, who, message):
        """Have the desk say something; it arrives if the worker has not connected anew."""
        with contextlib.suppress(zmq.ZMQError):  # its connection is no more
            self.desk.say(who, message)
        if who == self.registration.socket.getsockopt(zmq.ROUTING_ID):
            assert self.registration.socket.poll(60_000)

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
        """What the worker says next, a twentieth of a second or more after it could have."""
        while not self.arrived:
            assert self.registration.socket.poll(60_000, zmq.POLLOUT), "no connection"
            self.turn()
            self.now_s += 0.0 if self.arrived else 0.05
        return self.arrived.pop(0)

    def register(self, timeout_ms=2000):
        who, said = self.hear()
        assert said == REGISTER
        self.tell(who, m.Registered(heartbeat_timeout_ms=timeout_ms))
        self.turn()
        assert self.registration.membership.registered
        return who

    def quiet(self, seconds):
        """Let time pass, turn, and see that nothing is said."""
        self.now_s += seconds
        self.turn()
        return not self.arrived and self.desk.hear(0.05) is None

    def close(self):
        self.registration.close()
        self.desk.close()


@pytest.fixture
def context():
    with zmq.Context() as opened:
        yield opened


@pytest.fixture
def worker(context):
    made = Worker(context)
    yield made
    made.close()


def test_it_registers_and_then_says_how_it_is_every_quarter_of_the_timeout(worker):
    who = worker.register(timeout_ms=4000)
    assert worker.registration.membership.heartbeat_timeout_s == 4.0
    assert worker.hear() == (who, BEAT)
    began_s = worker.now_s
    worker.tell(who, m.Noted())
    assert worker.hear() == (who, BEAT)
    assert worker.now_s - began_s == pytest.approx(1.0, abs=0.1)


def test_it_registers_until_it_is_answered(worker):
    first, second = worker.hear(), worker.hear()
    assert first == second
    assert first[1] == REGISTER


def test_a_machine_whose_address_changes_registers_anew_and_one_whose_address_stays_does_not(worker, monkeypatch):
    now = {"endpoint": "tcp://10.0.0.7:7411"}
    monkeypatch.setattr(registration, "find_reachable_endpoint", lambda _bound, _coordinator: now["endpoint"])
    who, heard = worker.hear()
    assert heard == replace(REGISTER, endpoint="tcp://10.0.0.7:7411")
    worker.tell(who, m.Registered(heartbeat_timeout_ms=2000))
    worker.turn()
    assert worker.hear() == (who, BEAT)
    worker.tell(who, m.Noted())
    now["endpoint"] = "tcp://10.0.0.9:7411"
    assert worker.hear() == (who, replace(REGISTER, endpoint="tcp://10.0.0.9:7411"))


def test_before_there_is_a_route_it_does_not_register_and_without_one_it_keeps_its_address(context, monkeypatch):
    routes = {"address": None}
    monkeypatch.setattr(reachable, "_find_address_towards", lambda _host: routes["address"])
    monkeypatch.setattr(registration, "look_up", lambda _endpoint: "tcp://10.0.0.1:7400")
    worker = Worker(context, replace(REGISTER, endpoint="tcp://0.0.0.0:7411"))
    assert worker.registration.socket.poll(60_000, zmq.POLLOUT)
    worker.turn()
    assert worker.quiet(1.0), "nobody could reach it"
    routes["address"] = "10.0.0.7"
    who, heard = worker.hear()
    assert heard.endpoint == "tcp://10.0.0.7:7411"
    worker.tell(who, m.Registered(heartbeat_timeout_ms=2000))
    worker.turn()
    routes["address"] = None
    worker.now_s += 1.0
    worker.turn()
    assert worker.hear() == (who, BEAT)
    assert worker.registration.membership.registered
    worker.close()


def test_a_worker_without_a_descriptor_to_look_for_its_address_keeps_the_one_it_has(context, monkeypatch, caplog):
    worker = Worker(context, replace(REGISTER, endpoint="tcp://0.0.0.0:7411"))

    def refuse(_host):
        raise OSError(errno.EMFILE, "Too many open files")

    who, _ = worker.hear()
    worker.tell(who, m.Registered(heartbeat_timeout_ms=2000))
    worker.turn()
    monkeypatch.setattr(reachable, "_find_address_towards", refuse)
    for _ in range(2):
        worker.now_s += 1.0
        worker.turn()
    assert worker.hear() == (who, BEAT)
    assert worker.registration.membership.registered
    assert caplog.text.count("this worker's address cannot be looked for yet") == 1
    assert "Allow more open files" in caplog.text
    worker.close()


def test_the_coordinators_name_is_looked_up_once_it_can_be_and_then_no_more(worker, monkeypatch):
    answers = [None, "tcp://10.0.0.1:7400"]
    asked = []
    monkeypatch.setattr(registration, "look_up", lambda endpoint: asked.append(endpoint) or answers.pop(0))
    for _ in range(5):
        worker.hear()
    assert asked == [worker.desk.endpoint] * 2


def test_a_coordinator_whose_name_has_another_address_when_it_is_back_is_told_our_address_on_the_way_there(
    context, monkeypatch
):
    where, asked = {"coordinator": "10.0.0.1"}, []
    monkeypatch.setattr(
        registration, "look_up", lambda _endpoint: asked.append(1) or f"tcp://{where['coordinator']}:7400"
    )
    monkeypatch.setattr(reachable, "_find_address_towards", lambda host: host.replace("0.1", "0.7"))
    worker = Worker(context, replace(REGISTER, endpoint="tcp://0.0.0.0:7411"))

    def register():
        who, heard = worker.hear()
        while not isinstance(heard, m.Register):
            who, heard = worker.hear()
        worker.tell(who, m.Registered(heartbeat_timeout_ms=2000))
        worker.turn()
        return heard.endpoint

    assert register() == "tcp://10.0.0.7:7411"
    for _ in range(3):
        worker.hear()
    assert len(asked) == 2, "nor does it look up with each heartbeat"
    where["coordinator"] = "10.9.0.1"
    worker.renewal()
    assert [register(), register()] == ["tcp://10.0.0.7:7411", "tcp://10.9.0.7:7411"]
    worker.close()


@pytest.mark.parametrize(
    ("bound", "coordinator", "route", "endpoint"),
    [
        ("tcp://10.0.0.7:7411", "tcp://10.0.0.1:7400", None, "tcp://10.0.0.7:7411"),
        ("tcp://0.0.0.0:7411", "tcp://10.0.0.1:7400", "10.0.0.7", "tcp://10.0.0.7:7411"),
        ("tcp://0.0.0.0:7411", "tcp://10.0.0.1:7400", None, None),
        ("tcp://*:7411", "tcp://127.0.0.1:7400", "10.0.0.7", "tcp://10.0.0.7:7411"),
        ("tcp://0.0.0.0:7411", "tcp://localhost:7400", None, "tcp://127.0.0.1:7411"),
    ],
)
def test_who_listens_everywhere_names_the_address_on_the_route(bound, coordinator, route, endpoint, monkeypatch):
    monkeypatch.setattr(reachable, "_find_address_towards", lambda _host: route)
    monkeypatch.setattr(reachable, "_find_address_of_interface", lambda: None)
    assert find_reachable_endpoint(bound, coordinator) == endpoint


@pytest.mark.parametrize(
    ("coordinator", "interface", "endpoint"),
    [
        ("tcp://127.0.0.1:7400", "10.0.0.7", "tcp://10.0.0.7:7411"),
        ("tcp://127.0.0.1:7400", None, "tcp://127.0.0.1:7411"),
        ("tcp://10.0.0.1:7400", "10.0.0.7", None),
    ],
)
def test_in_a_closed_network_without_a_route_to_the_world_the_address_is_that_of_an_interface(
    coordinator, interface, endpoint, monkeypatch
):
    monkeypatch.setattr(reachable, "_find_address_towards", lambda _host: None)
    monkeypatch.setattr(reachable, "_find_address_of_interface", lambda: interface)
    assert find_reachable_endpoint("tcp://0.0.0.0:7411", coordinator) == endpoint


def test_the_address_of_an_interface_is_one_of_this_host_and_not_loopback():
    address = reachable._find_address_of_interface()
    if address is None:
        pytest.skip("this host has no network")
    with socket.socket() as bound:
        bound.bind((address, 0))
    assert not address.startswith("127.")


def test_a_coordinator_that_forgot_it_is_told_who_it_is(worker):
    who = worker.register()
    worker.tell(who, m.Refused(code="unknown", expected="a", got="b", remedy="c"))
    worker.turn()
    assert not worker.registration.membership.registered
    heard = [worker.hear()[1] for _ in range(2)]
    assert REGISTER in heard


def test_another_refusal_ends_it(worker):
    who = worker.register()
    worker.tell(who, m.Refused(code="endpoint", expected="a", got="b", remedy="c"))
    with pytest.raises(RefusedError, match="expected a, got b"):
        worker.turn()


def test_garbage_is_passed_over_and_culprits_are_told_of(worker):
    who = worker.register()
    worker.desk.router.send_multipart([who, b"garbage"])
    worker.tell(who, CULPRITS)
    told = []
    wait_until(lambda: told.extend(worker.turn()) or told, "culprits are told of")
    assert told == [CULPRITS]


@pytest.mark.fault(43)
def test_a_found_culprit_is_said_at_once_and_with_every_heartbeat_until_it_is_on_the_list(worker):
    who = worker.register()
    worker.hear()
    worker.tell(who, m.Noted())
    began_s = worker.now_s
    worker.registration.membership.convict(CULPRIT)
    assert [worker.hear()[1] for _ in range(2)] == [BEAT, CULPRIT]
    assert worker.now_s - began_s < 0.3
    assert [worker.hear()[1] for _ in range(4)] == [BEAT, CULPRIT] * 2
    worker.tell(who, m.Culprits(version=8, keys=(5, culprit_key(CULPRIT.stream, CULPRIT.identity))))
    worker.turn()
    assert worker.registration.membership.culprits == 8
    worker.arrived.clear()
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


def test_a_coordinator_that_falls_silent_is_a_line_and_its_answer_another(worker, caplog):
    def lines(event):
        return [record.fields for record in caplog.records if record.event == event]

    caplog.set_level("INFO", "stoker")
    worker.register(timeout_ms=2000)
    worker.renewal()
    (silent,) = lines("the coordinator is silent")
    assert silent.keys() == {"worker", "coordinator"}
    heard = worker.hear()
    while heard[1] != REGISTER:
        heard = worker.hear()
    worker.tell(heard[0], m.Noted())
    wait_until(lambda: (worker.turn(), lines("the coordinator answers again"))[1], "its answer is noted")
    assert [answer["seconds"] > 1.9 for answer in lines("the coordinator answers again")] == [True]
    for _ in range(3):
        worker.renewal()
    assert len(lines("the coordinator is silent")) == 2, "once for each silence"


@pytest.mark.fault(43)
def test_whoever_answers_is_kept(worker):
    who = worker.register(timeout_ms=2000)
    before = worker.registration.socket
    for _ in range(10):
        assert worker.hear() == (who, BEAT)
        worker.tell(who, m.Noted())
    assert worker.registration.socket is before
    worker.tell(who, CULPRITS)
    wait_until(worker.turn, "it has heard that")
    assert worker.renewal() == pytest.approx(2.0, abs=0.2)


@pytest.mark.fault(43)
def test_to_be_heard_ends_the_growing_of_pauses(worker):
    worker.register(timeout_ms=2000)
    for _ in range(3):
        worker.renewal()
    while not worker.registration.membership.registered:
        who, _ = worker.hear()
        worker.tell(who, m.Registered(heartbeat_timeout_ms=2000))
    while worker.registration.socket.poll(0):  # it may have been said more than once
        worker.turn()
    assert worker.renewal() == pytest.approx(2.0, abs=0.2)


# --- leaving ---


def test_who_left_says_nothing_more(worker):
    """A heartbeat would register it anew."""
    who = worker.register()
    worker.hear()
    worker.registration.leave()
    assert worker.hear() == (who, m.Leave(worker=REGISTER.worker, incarnation=REGISTER.incarnation))
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


# --- a builder that differs ---

BUILDER = m.Refused(code="builder", expected="the same bytes", got="another fingerprint", remedy="Give it the same.")
NUMPY = replace(BUILDER, got="w0, which differs: package numpy")
SOXR = replace(BUILDER, got="w0, which differs: package soxr")


def hear_kinds(worker, seconds):
    """What is said in so much time, and to whom."""
    began_s, heard = worker.now_s, []
    while worker.now_s < began_s + seconds:
        worker.now_s += 0.05
        worker.turn()
        heard += worker.arrived
        worker.arrived.clear()
    return heard


def refuse(worker, *answers):
    """Answer the next Register so."""
    heard = worker.hear()
    while heard[1] != REGISTER:
        heard = worker.hear()
    for answer in answers:
        worker.tell(heard[0], answer)
        worker.turn()


@pytest.mark.fault(68)
def test_a_worker_with_another_builder_asks_what_differs_and_waits(worker, caplog):
    worker.register()
    worker.registration._parts = lambda: (("package numpy", "2.1.0"),)
    worker.registration.membership.move(worker.now_s)
    refuse(worker, BUILDER, BUILDER, NUMPY)
    asked = [said for _, said in worker.arrived if isinstance(said, m.BuilderParts)]
    assert asked == [m.BuilderParts(worker=REGISTER.worker, parts=(("package numpy", "2.1.0"),))]
    assert worker.registration.refusal == NUMPY
    assert worker.registration.membership.is_refused
    assert not worker.registration.membership.registered
    refuse(worker, BUILDER, NUMPY)
    refuse(worker, BUILDER, NUMPY)
    waits = [one.fields["got"] for one in caplog.records if one.event.startswith("this worker waits")]
    assert waits == [NUMPY.got], "the log has it once"
    refuse(worker, BUILDER, SOXR)
    assert worker.registration.refusal == SOXR, "another coordinator may differ in another part"


@pytest.mark.fault(68)
def test_while_it_is_refused_it_asks_again_and_tells_people_what_for(worker):
    failing = m.Failing(
        worker=REGISTER.worker, expected="the same bytes", got=NUMPY.got,
        where=f"coordinator at {worker.desk.endpoint}", remedy="Give it the same.",
    )  # fmt: skip
    began_s, heard = worker.now_s, []
    for _ in range(7):
        refuse(worker, BUILDER, NUMPY)
        heard += [said for _, said in worker.arrived if not isinstance(said, m.Register)]
        worker.arrived.clear()
    assert 6 <= worker.now_s - began_s <= 8, "once a second"
    assert {said.kind for said in heard} == {"BuilderParts", "Failing"}
    assert 3 <= heard.count(failing) <= 4, "and this every other second"


@pytest.mark.fault(68)
def test_a_word_that_it_cannot_serve_never_follows_the_register_that_lets_it_in(worker):
    for _ in range(3):
        refuse(worker, BUILDER, NUMPY)
    worker.arrived.clear()
    said = [said for _, said in hear_kinds(worker, 4.0)]
    assert set(said) == {REGISTER}


@pytest.mark.fault(68)
def test_it_is_back_as_soon_as_it_is_taken_in(worker, caplog):
    caplog.set_level("INFO")
    refuse(worker, BUILDER, NUMPY)
    refuse(worker, m.Registered(heartbeat_timeout_ms=2000))
    assert worker.registration.refusal is None
    assert not worker.registration.membership.is_refused
    assert "the coordinator takes this worker in again" in [one.event for one in caplog.records]
    worker.arrived.clear()
    said = [said for _, said in hear_kinds(worker, 1.0)]
    assert BEAT in said
    assert not [one for one in said if isinstance(one, m.Failing)]


@pytest.mark.fault(68)
def test_a_coordinator_that_does_not_say_what_differs_is_waited_for_as_well(worker):
    refuse(worker, BUILDER)
    assert worker.registration.refusal is None
    hear_kinds(worker, 1.1)
    assert worker.registration.refusal == BUILDER
    hear_kinds(worker, 100.0)  # for ever: it would have given up one that never answers
    assert worker.registration.refusal == BUILDER


@pytest.mark.fault(68)
def test_a_coordinator_of_another_protocol_is_waited_for_and_told_nothing_that_it_cannot_read(worker, caplog):
    version = m.Refused(code="version", expected="protocol version 9", got="version 8", remedy="Install the same.")
    for _ in range(3):
        refuse(worker, version)
    assert worker.registration.refusal == version
    worker.arrived.clear()
    assert {said for _, said in hear_kinds(worker, 4.0)} == {REGISTER}
    assert len([one for one in caplog.records if one.event.startswith("this worker waits")]) == 1
    refuse(worker, m.Registered(heartbeat_timeout_ms=2000))
    assert worker.registration.refusal is None
