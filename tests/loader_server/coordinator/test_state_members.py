"""The coordinator's decisions on workers, culprits, and lists that grow past what a message takes."""

from __future__ import annotations

import json

import pytest

from loader_server.coordinator import objections
from loader_server.coordinator.events import (
    CulpritFound,
    Forgot,
    Keep,
    Received,
    Send,
    Ticked,
    Warn,
)
from loader_server.coordinator.state import CoordinatorState
from shared.wire import messages as m
from shared.wire.codec import MAX_FRAME, decode, encode
from tests.support.coordinator import (
    SETTINGS,
    View,
    address,
    attach,
    beat,
    coordinator,
    culprit,
    failing,
    forgive,
    kept,
    keys,
    progress,
    refused,
    register,
    replies,
)


def with_worker(*peers: bytes) -> CoordinatorState:
    """A coordinator at which a worker is registered on each of these connections."""
    state = coordinator()
    for number, peer in enumerate(peers, 100):
        replies(state, register(f"w{number}", number), peer=peer)
    return state


class TestWorkers:
    def test_trainers_are_told_of_workers_that_come_and_leave(self):
        state = coordinator()
        replies(state, attach(), peer=b"trainer")
        out = state.handle(Received(b"worker", register()), 0.0)
        assert [(one.peer, type(one.message)) for one in out] == [
            (b"worker", m.Registered),
            (b"worker", m.Culprits),
            (b"trainer", m.Members),
        ]
        assert out[0].message == m.Registered(heartbeat_timeout_ms=2000)
        assert out[-1].message == m.Members(version=2, workers=(address(),))
        out = state.handle(Received(b"worker", m.Leave(worker="w0", incarnation=1)), 0.0)
        assert [(one.peer, one.message) for one in out] == [(b"trainer", m.Members(version=3, workers=()))]
        assert state.handle(Received(b"worker", m.Leave(worker="w0", incarnation=1)), 0.0) == []

    def test_a_loopback_endpoint_is_taken_from_loopback_only(self):
        state = coordinator()
        local = register(endpoint="tcp://127.0.0.1:7411")
        (out,) = state.handle(Received(b"worker", local, "10.0.0.7"), 0.0)
        assert (out.peer, out.message.code) == (b"worker", "endpoint")
        assert out.message.expected == "an endpoint on 10.0.0.7, where the worker w0 connects from"
        assert out.message.got == "the loopback endpoint tcp://127.0.0.1:7411"
        assert "--listen tcp://0.0.0.0:PORT" in out.message.remedy
        assert state.report(0.0)["workers"] == []
        out = state.handle(Received(b"worker", local, "127.0.0.1"), 0.0)
        assert out[0].message == m.Registered(heartbeat_timeout_ms=2000)

    def test_trainers_are_told_why_a_worker_does_not_come_and_those_that_attach_later_too(self):
        state = coordinator()
        replies(state, attach(), peer=b"trainer")
        out = state.handle(Received(b"worker", failing()), 0.0)
        assert [type(one) for one in out] == [Warn, Send]
        assert "another one (8 bytes)" in out[0].fields["got"]
        assert (out[1].peer, out[1].message) == (b"trainer", failing())
        again = state.handle(Received(b"worker", failing()), 1.0)
        assert [type(one) for one in again] == [Send], "logged once, told again"
        state.handle(Received(b"worker", failing("w1", got="no file")), 2.0)
        state.handle(Received(b"worker", failing("w0", got="no file either")), 3.0)
        told = state.handle(Received(b"late", attach(stream="dev", incarnation=5)), 4.0)
        assert [one.message for one in told if one.peer == b"late"][1:] == [failing("w0", got="no file either")]
        assert [one["worker"] for one in state.report(4.0)["failing"]] == ["w1", "w0"]

    def test_a_worker_that_serves_all_the_same_does_so_in_part_and_a_new_one_of_its_name_does_not(self):
        """The one before it may be dead, and nobody knows yet."""
        state = coordinator()
        replies(state, register("w0"), peer=b"w0")
        state.handle(Received(b"another", failing("w0")), 0.0)
        state.handle(Received(b"w0", failing("w0")), 1.0)
        assert [one["in_part"] for one in state.report(1.0)["failing"]] == [True]
        state.handle(Received(b"another", failing("w0")), 2.0)
        assert [one["in_part"] for one in state.report(2.0)["failing"]] == [False]

    def test_a_worker_that_comes_or_is_no_longer_started_does_not_fail(self):
        state = coordinator()
        state.handle(Received(b"worker", failing()), 0.0)
        state.handle(Received(b"worker", failing("w1")), 10.0)
        replies(state, register("w0"))
        assert [one["worker"] for one in state.report(10.0)["failing"]] == ["w1"]
        state.handle(Ticked(), 70.0)
        assert len(state.report(70.0)["failing"]) == 1
        state.handle(Ticked(), 70.1)
        assert state.report(70.1)["failing"] == []
        told = replies(state, attach(stream="dev", incarnation=5))
        assert not any(isinstance(one, m.Failing) for one in told)

    def test_they_are_not_told_of_a_registration_that_came_again(self):
        state = coordinator()
        replies(state, register())
        replies(state, attach(), peer=b"trainer")
        again = state.handle(Received(b"anew", register()), 1.0)
        assert {one.peer for one in again} == {b"anew"}
        assert isinstance(again[0].message, m.Registered)

    @pytest.mark.fault(58)
    def test_of_a_flood_of_workers_that_cannot_serve_few_are_told(self):
        """Anybody may say so; each word would go to every trainer, and into the log."""
        state = coordinator()
        replies(state, attach(), peer=b"trainer")
        out = [one for number in range(600) for one in state.handle(Received(b"x", failing(f"w{number}")), 1.0)]
        assert sum(isinstance(one, Send) for one in out) == sum(isinstance(one, Warn) for one in out) == 256
        assert len(state.report(1.0)["failing"]) == 256
        assert [state.handle(Received(b"x", failing("w3", f"got {now}")), 1.0) for now in range(50)] == [[]] * 50
        assert len(state.handle(Received(b"x", failing("w3", "another")), 1.6)) == 2
        assert len(state.handle(Received(b"x", failing("w3", "another")), 2.2)) == 1, "trainers hear it again"

    def test_nor_by_heartbeats_which_are_noted(self):
        state = coordinator()
        replies(state, register(), peer=b"worker")
        replies(state, attach(), peer=b"trainer")
        assert state.handle(Received(b"worker", beat()), 1.0) == [Send(b"worker", m.Noted())]

    @pytest.mark.fault(39)
    @pytest.mark.parametrize("endpoint", ["bogus", "tcp://0.0.0.0:7410", "ipc:///tmp/x"])
    def test_a_worker_that_nobody_can_connect_to_is_refused(self, endpoint):
        state = coordinator()
        code, expected, got, remedy = refused(state, register(endpoint=endpoint))
        assert (code, expected) == ("endpoint", "an endpoint like tcp://10.0.0.7:7410")
        assert got == f"{endpoint!r} from w0"
        assert "--listen" in remedy
        assert replies(state, attach())[0].workers == ()
        assert state.counts.refusals == 1

    @pytest.mark.fault(40)
    def test_a_worker_that_builds_other_bytes_is_refused_and_told_no_fingerprint(self):
        state = coordinator()
        code, expected, got, remedy = refused(state, register(builder="builder-2"))
        assert code == "builder"
        assert expected == "a worker that builds the same bytes as the coordinator's machine would"
        assert got == "another builder fingerprint from w0"
        assert "same job file" in remedy
        assert "builder-" not in expected + got + remedy
        (warning,) = [one for one in state.handle(Received(b"w", register(builder="b-2")), 0.0) if type(one) is Warn]
        assert warning.event == "worker builds other bytes"
        assert warning.fields == {"worker": "w0", "endpoint": "tcp://127.0.0.1:11"}

    @pytest.mark.fault(68)
    def test_the_log_says_once_that_a_worker_builds_other_bytes_though_it_asks_again(self):
        state = coordinator()

        def warnings(builder):
            told = state.handle(Received(b"w", register(builder=builder)), 0.0)
            assert (len([one for one in told if type(one) is Send]) > 0) == (builder != "")
            return len([one for one in told if type(one) is Warn])

        assert [warnings("b-2") for _ in range(3)] == [1, 0, 0]
        assert warnings("b-3") == 1, "another build of it"
        assert warnings("builder-1") == 0
        assert warnings("b-2") == 1, "it was taken in meanwhile"

    @pytest.mark.fault(47)
    def test_two_of_one_name_are_both_there(self):
        state = coordinator()
        replies(state, register(incarnation=1))
        replies(state, register(incarnation=2))
        assert replies(state, attach())[0].workers == (address(incarnation=1), address(incarnation=2))
        for incarnation in (1, 2):
            assert replies(state, beat(incarnation=incarnation)) == [m.Noted()]
        replies(state, m.Leave(worker="w0", incarnation=1))
        assert replies(state, progress(0, 0, 0))[0].workers == (address(incarnation=2),)

    @pytest.mark.fault(47)
    def test_a_worker_that_starts_again_at_its_endpoint_replaces_itself(self):
        state = coordinator()
        replies(state, register(incarnation=1, endpoint="tcp://h:1"))
        replies(state, register(incarnation=2, endpoint="tcp://h:1"))
        replies(state, m.Leave(worker="w0", incarnation=1))
        (answer,) = replies(state, attach())
        assert [one.incarnation for one in answer.workers] == [2]
        assert refused(state, beat(incarnation=1))[0] == "unknown"
        assert (state.counts.workers_replaced, state.counts.workers_gone) == (1, 0)

    def test_one_that_left_or_moves_or_repeats_itself_was_not_replaced(self):
        state = coordinator()
        for endpoint in ("tcp://h:1", "tcp://h:1", "tcp://h:2"):
            replies(state, register(incarnation=1, endpoint=endpoint))
        replies(state, m.Leave(worker="w0", incarnation=1))
        replies(state, register(incarnation=2, endpoint="tcp://h:2"))
        assert state.counts.workers_replaced == 0

    def test_a_trainer_that_is_silent_for_long_is_counted_and_one_that_leaves_is_not(self):
        state = coordinator()
        replies(state, attach(), now_s=0.0, peer=b"trainer")
        state.handle(Ticked(), 10.0)
        assert state.counts.trainers_gone == 0
        state.handle(Ticked(), 10.1)
        assert state.counts.trainers_gone == 1
        replies(state, attach(incarnation=8), now_s=11.0, peer=b"other")
        replies(state, m.Detach(stream="train", rank=0, incarnation=8), now_s=12.0, peer=b"other")
        state.handle(Ticked(), 40.0)
        assert state.counts.trainers_gone == 1

    def test_a_worker_that_nobody_knows_is_asked_to_register(self):
        code, _, _, remedy = refused(coordinator(), beat())
        assert (code, remedy) == ("unknown", "Register again.")

    def test_one_that_is_silent_for_long_is_gone_and_trainers_are_told(self):
        state = coordinator()
        replies(state, register(), peer=b"worker")
        replies(state, attach(), now_s=9.0, peer=b"trainer")
        assert state.handle(Ticked(), 10.0) == []
        assert state.handle(Ticked(), 10.1) == [Send(b"trainer", m.Members(version=3, workers=()))]
        assert state.counts.workers_gone == 1


class TestCulprits:
    @pytest.mark.fault(8)
    def test_a_culprit_is_kept_first_and_told_to_all_workers(self):
        state = coordinator()
        replies(state, register("w0", 1), peer=b"w0")
        replies(state, register("w1", 2), peer=b"w1")
        keep, warn, *told = state.handle(Received(b"w0", culprit()), 0.0)
        assert keep == Keep(CulpritFound("train", "a.flac 7 1", "SIGSEGV, SIGSEGV"))
        assert warn.fields == {
            "stream": "train", "identity": "a.flac 7 1", "ends": "SIGSEGV, SIGSEGV", "worker": "w0",
        }  # fmt: skip
        assert told == [Send(peer, m.Culprits(version=2, keys=keys("a.flac 7 1"))) for peer in (b"w0", b"w1")]
        assert state.handle(Received(b"w1", culprit()), 0.0) == []

    @pytest.mark.fault(58)
    @pytest.mark.parametrize("registers", [None, register("w0", 1, builder="another")])
    def test_a_strangers_culprit_is_not_kept(self, registers):
        """Nor that of one who knows a worker's name and incarnation, which all trainers are told."""
        state = coordinator()
        replies(state, register("w0", 1), peer=b"w0")
        if registers is not None:
            replies(state, registers, peer=b"stranger")
        assert replies(state, beat("w0", 1), peer=b"stranger") == [objections.unknown_worker()]
        assert state.handle(Received(b"stranger", culprit()), 0.0) == [Send(b"stranger", objections.unknown_worker())]
        replies(state, m.Leave(worker="w0", incarnation=1), peer=b"stranger")
        assert len(state.report(0.0)["workers"]) == 1
        assert state.report(0.0)["culprits"] == []

    @pytest.mark.fault(36)
    def test_a_worker_that_registers_is_told_of_those_of_every_stream(self):
        state = with_worker(b"w0")
        replies(state, culprit(), peer=b"w0")
        replies(state, culprit("b", "dev"), peer=b"w0")
        _, told = replies(state, register())
        assert told == m.Culprits(version=3, keys=tuple(sorted((*keys("a.flac 7 1"), *keys("b", stream="dev")))))

    @pytest.mark.fault(36)
    @pytest.mark.fault(43)
    def test_a_worker_that_missed_a_list_is_told_again_when_it_says_so(self):
        state = coordinator()
        assert replies(state, register())[1] == m.Culprits(version=1, keys=())
        assert replies(state, beat(culprits=1)) == [m.Noted()]
        replies(state, culprit("a"), peer=b"1")
        assert replies(state, beat(culprits=1)) == [m.Culprits(version=2, keys=keys("a"))]
        assert replies(state, beat(culprits=2)) == [m.Noted()]
        replies(state, forgive("a"))
        assert replies(state, beat(culprits=2)) == [m.Culprits(version=3, keys=())]

    def test_a_culprit_of_no_stream_of_ours_is_not_kept(self):
        assert kept(with_worker(b"me"), culprit(stream="other")) == []

    @pytest.mark.fault(52)
    def test_they_are_bounded_and_that_is_logged(self, monkeypatch):
        monkeypatch.setattr("loader_server.coordinator.convictions._MOST", 2)
        state = with_worker(b"w0", b"me")
        for identity in "ab":
            replies(state, culprit(identity), peer=b"w0")
        (warn,) = state.handle(Received(b"w0", culprit("c")), 0.0)
        assert warn.event == "too many samples kill decoders: from here on they are not kept"
        assert state.handle(Received(b"w0", culprit("c")), 0.0) == []  # they are said with every heartbeat
        assert replies(state, register())[1].keys == keys("a", "b")
        replies(state, forgive("a"))
        assert kept(state, culprit("c")) != []
        assert len(state.handle(Received(b"w0", culprit("d")), 0.0)) == 1, "it is full anew, and that is said anew"

    @pytest.mark.fault(36)
    def test_forgiven_ones_are_forgotten_and_workers_are_told_what_is_left(self):
        state = coordinator()
        replies(state, register(), peer=b"w0")
        for identity in "ab":
            replies(state, culprit(identity), peer=b"w0")
        out = state.handle(Received(b"me", forgive("a")), 0.0)
        assert out == [
            Keep(Forgot("train", "a")),
            Send(b"me", m.Forgiven(count=1)),
            Send(b"w0", m.Culprits(version=4, keys=keys("b"))),
        ]
        assert state.handle(Received(b"me", forgive("b")), 0.0)[-1].message == m.Culprits(version=5, keys=())
        assert state.handle(Received(b"me", forgive("b")), 0.0) == [Send(b"me", m.Forgiven(count=0))]
        assert isinstance(state.handle(Received(b"w0", culprit("a")), 0.0)[0], Keep), "it may be convicted anew"

    @pytest.mark.fault(36)
    @pytest.mark.parametrize(
        ("asked", "forgotten"),
        [
            (forgive(), ["dev a", "train a", "train b"]),
            (forgive(stream="train"), ["train a", "train b"]),
            (forgive("a"), ["dev a", "train a"]),
            (forgive("a", "dev"), ["dev a"]),
            (forgive("c", "train"), []),
        ],
    )
    def test_one_or_all_of_one_stream_or_of_all(self, asked, forgotten):
        state = with_worker(b"w0")
        for found in (culprit("a"), culprit("b"), culprit("a", "dev")):
            replies(state, found, peer=b"w0")
        assert [f"{fact.stream} {fact.identity}" for fact in kept(state, asked)] == forgotten
        assert len(state.report(0.0)["culprits"]) == 3 - len(forgotten)


@pytest.mark.fault(52)
class TestWhatGrows:
    def test_a_status_of_thousands_is_cut_and_says_so(self):
        state = coordinator()
        for number in range(4200):
            peer = b"reader %d" % number
            state.handle(Received(peer, attach(stream="dev", incarnation=number, name="é" * 200)), 0.0)
        state.handle(Received(b"w", register()), 0.0)
        state.handle(Received(b"t", attach(name="the one that trains")), 0.0)
        frame = encode(state.handle(Received(b"me", m.StatusQuery()), 0.0)[0].message)
        report = json.loads(decode(frame).report)
        dev = report["streams"]["dev"]
        assert dev["attached"] == 4200 == len(dev["trainers"]) + report["cut"]["trainers"]
        assert len(dev["trainers"]) > 100
        assert len(report["streams"]["train"]["trainers"]) == len(report["workers"]) == 1

    def test_a_list_of_workers_that_no_message_takes_is_cut_and_that_is_logged_once(self):
        state, warnings = coordinator(), []
        for number in range(900):
            name = f"{number:03d}" + "𝄞" * 197
            out = state.handle(Received(b"w", register(name, number, endpoint=f"tcp://{'h' * 60}:{number + 1}")), 0.0)
            warnings += [one.fields for one in out if isinstance(one, Warn)]
        (answer,) = state.handle(Received(b"me", attach()), 0.0)[-1:]
        frame = encode(answer.message)
        listed = decode(frame).workers
        assert len(frame) < MAX_FRAME
        assert listed == answer.message.workers == tuple(sorted(listed, key=lambda one: one.worker))
        assert 800 < len(listed) < 900
        assert [one["workers"] - one["without"] for one in warnings] == [len(listed)]

    def test_a_refusal_that_lists_too_much_is_cut(self):
        streams = {"s" * 190 + str(number): View() for number in range(1000)}
        state = CoordinatorState(SETTINGS, streams)
        assert len(refused(state, attach())[1]) == 4000
