"""The guard: who comes in, what each may say, and what happens to a key that is taken out."""

from __future__ import annotations

import threading

import pytest
import zmq
import zmq.utils.monitor

from shared.guard import Guard
from shared.keys import ClientKeys, ServerKeys, make_keys
from shared.sockets import bind_sealed_router, connect_dealer, connect_sealed_dealer
from shared.wire.message_parts import ROLES
from shared.wire.messages import Attach, Beat, NotAttached, Ping, Refused, StatusQuery
from shared.wire.refusing import TO_COORDINATOR
from tests.shared.wire.examples import EXAMPLES

ATTACH = next(one for one in EXAMPLES if isinstance(one, Attach))
BEAT = next(one for one in EXAMPLES if isinstance(one, Beat))
QUERY = StatusQuery()


@pytest.fixture
def folder(tmp_path):
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


class Coordinator:
    """A guarded ROUTER, and those who talk to it."""

    def __init__(self, folder):
        context = self.context = zmq.Context()
        keys = ServerKeys.read(folder, "coordinator") if folder else None
        self.guard = Guard(context, keys, TO_COORDINATOR)
        self.router = context.socket(zmq.ROUTER)
        if keys is not None:
            self.router.setsockopt(zmq.HANDSHAKE_IVL, 300)  # then whoever was refused tries again
            keys.serve(self.router)
        self.router.bind("tcp://127.0.0.1:*")
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        events = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_SUCCEEDED
        self.monitor = self.router.get_monitor_socket(events)
        self.sockets = [self.router, self.monitor]

    def dealer(self, keys):
        dealer = connect_dealer(self.context, self.endpoint, keys, b"%d" % len(self.sockets))
        dealer.setsockopt(zmq.SNDTIMEO, 60_000)
        self.sockets.append(dealer)
        return dealer

    def close(self):
        for socket in self.sockets:
            socket.close(linger=0)
        self.context.term()

    def handshake(self):
        assert self.monitor.poll(60_000)
        return zmq.utils.monitor.recv_monitor_message(self.monitor)["event"]

    def key_of_next(self):
        assert self.router.poll(60_000)
        frames = self.router.recv_multipart(copy=False)
        assert len({self.guard.key_of(frame) for frame in frames}) == 1
        return self.guard.key_of(frames[0])


@pytest.fixture
def server(folder):
    server = Coordinator(folder)
    yield server
    server.close()


@pytest.fixture
def speak(server, folder):
    """The key that the server sees of somebody of a role who speaks."""

    def speak_as(role):
        dealer = server.dealer(ClientKeys.read(folder, role, to="coordinator"))
        dealer.send_multipart([b"hello", b"again"])
        return server.key_of_next()

    return speak_as


def test_its_thread_holds_up_no_process_that_ends(server):
    assert {one.daemon for one in threading.enumerate() if one.name == "stoker-guard"} == {True}


@pytest.mark.fault(26)
def test_a_key_that_is_not_allowed_stays_outside(server, folder, tmp_path):
    """Although the stranger knows the server's public key, which is no secret."""
    make_keys(tmp_path / "stranger")
    (tmp_path / "stranger/coordinator.key").write_bytes((folder / "coordinator.key").read_bytes())
    server.dealer(ClientKeys.read(tmp_path / "stranger", "trainer", to="coordinator"))
    assert server.handshake() == zmq.EVENT_HANDSHAKE_FAILED_AUTH


def test_whose_key_is_put_in_later_comes_in_without_a_restart(server, folder, tmp_path):
    make_keys(tmp_path / "late")
    (tmp_path / "late/coordinator.key").write_bytes((folder / "coordinator.key").read_bytes())
    server.dealer(ClientKeys.read(tmp_path / "late", "trainer", to="coordinator"))
    assert server.handshake() == zmq.EVENT_HANDSHAKE_FAILED_AUTH
    (folder / "allowed/trainer/late.key").write_bytes((tmp_path / "late/trainer.key").read_bytes())
    assert server.guard.look(0.0)
    while server.handshake() != zmq.EVENT_HANDSHAKE_SUCCEEDED:
        pass


@pytest.mark.fault(26)
def test_each_says_what_its_role_entitles_it_to(server, speak):
    guard, trainer, worker, coordinator = server.guard, *(speak(role) for role in ("trainer", "worker", "coordinator"))
    for key, message in ((trainer, ATTACH), (worker, BEAT), (trainer, QUERY), (worker, QUERY), (coordinator, QUERY)):
        assert guard.turn_away(key, message) is None
    assert guard.wrong_roles == 0
    refused = guard.turn_away(trainer, BEAT)
    assert isinstance(refused, Refused)
    assert (refused.code, refused.got) == ("role", "Beat with a key in allowed/trainer")
    assert guard.wrong_roles == 1
    assert isinstance(guard.turn_away(worker, ATTACH), NotAttached)
    assert isinstance(guard.turn_away(coordinator, ATTACH), NotAttached)
    assert guard.wrong_roles == 3


@pytest.mark.fault(38)
def test_only_expected_identities_come_in_where_sealed_payloads_are_sent(server):
    with bind_sealed_router(server.context, server.endpoint) as router:
        monitor = router.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        server.sockets.append(monitor)

        def knock(identity):
            endpoint = router.getsockopt_string(zmq.LAST_ENDPOINT)
            with connect_sealed_dealer(server.context, endpoint, identity):
                assert monitor.poll(60_000)
                answer = zmq.utils.monitor.recv_monitor_message(monitor)["event"]
            return answer == zmq.EVENT_HANDSHAKE_SUCCEEDED

        assert not knock(b"a")
        server.guard.expect(b"a")
        assert knock(b"a")
        assert not knock(b"b")
        server.guard.expect(b"b")
        server.guard.expect_no_longer(b"a")
        assert knock(b"b")
        assert not knock(b"a")
        router.disable_monitor()


@pytest.mark.fault(38)
@pytest.mark.parametrize("name", [b"", b"no hexadecimal", b"\xff"])
def test_nonsense_for_an_identity_is_a_strangers(server, name):
    server.guard.expect(b"")  # of a trainer that wants nothing sealed
    assert server.guard._answer_to([b"1.0", b"7", b"", b"", b"", b"PLAIN", name, b""])[:3] == [b"1.0", b"7", b"300"]


def test_what_the_server_does_not_understand_is_not_the_guards_business(server, speak):
    assert server.guard.turn_away(speak("worker"), Ping(number=1)) is None
    assert server.guard.wrong_roles == 0


@pytest.mark.fault(26)
def test_a_key_that_is_taken_out_is_refused_on_the_open_connection(server, folder, speak):
    key = speak("trainer")
    assert server.guard.look(10.0) is False
    assert server.guard.has_role(key, "trainer")
    (folder / "allowed/trainer/trainer.key").unlink()
    assert server.guard.look(10.19) is False
    assert server.guard.turn_away(key, ATTACH) is None
    assert server.guard.look(10.2) is True
    assert isinstance(server.guard.turn_away(key, ATTACH), NotAttached)
    assert isinstance(server.guard.turn_away(key, QUERY), Refused)
    assert not server.guard.has_role(key, "trainer")
    assert server.guard.wrong_roles == 2


def test_without_keys_everybody_may_say_everything():
    server = Coordinator(None)
    server.dealer(None).send(b"hello")
    key = server.key_of_next()
    assert server.guard.look(0.0) is False
    assert all(server.guard.turn_away(key, message) is None for message in (ATTACH, BEAT, QUERY))
    assert all(server.guard.has_role(key, role) for role in ROLES)
    assert server.guard.wrong_roles == 0
    server.close()


def test_its_thread_ends_with_the_context(folder):
    before = set(threading.enumerate())
    server = Coordinator(folder)
    (guard,) = set(threading.enumerate()) - before
    server.close()
    guard.join(60)
    assert not guard.is_alive()
