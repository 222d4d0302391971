"""A worker alone: what it answers to trainers that speak to it over real sockets, in this process."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import zmq

from loader_server.building.build_thread import Build
from loader_server.building.crash_trial import CrashTrial
from loader_server.machine.processes import NurseryEndedError
from loader_server.machine.room import Room
from loader_server.worker import service as module
from loader_server.worker.service import Worker, WorkerSettings
from shared.errors import MachineError, ReadError
from shared.events.trainer_fields import run_name
from shared.hashing import digest64
from shared.silence import GONE_AFTER
from shared.wire import messages as m
from shared.wire.message_parts import Ticket
from tests.support import transforms
from tests.support.askers import Asker, Desk, a_worker, digest_of, refused, wait_until_begun, welcomed
from tests.support.forked import TrialNursery
from tests.support.loaders import wait_until

# --- batches ---


def test_a_want_is_answered_once(ask, worker):
    one = ask()
    assert not one.hello().shared
    one.say(one.want(3, number=1))
    pushed = one.hear(m.Pushed)
    assert (pushed.ticket, pushed.number, pushed.waiting) == (Ticket(3, 1), 1, 0)
    assert digest64(one.payloads[0]) == pushed.digest
    assert one.ping().tickets == ()
    counts = worker.counts
    assert (counts.built, counts.masked, counts.refused, counts.garbage) == (1, 0, 0, 0)


def test_the_same_batch_comes_by_shared_memory(ask, memory):
    one, other = welcomed(ask()), ask(memory=memory)
    assert other.hello().shared
    one.say(one.want(0, number=2))
    one.hear(m.Pushed)
    other.say(other.want(5, number=2))
    pushed = other.hear(m.Pushed)
    assert pushed.in_slot
    assert bytes(memory.slot(5)[: pushed.nbytes]) == one.payloads[0]


def test_what_fails_is_the_wants_answer_and_the_next_one_is_built(ask):
    one = welcomed(ask())
    one.say(one.want(0, number=10**6), one.want(1, number=1))
    unbuilt = one.hear(m.Unbuilt)
    assert (unbuilt.ticket, unbuilt.code) == (Ticket(0, 1), "failed")
    assert unbuilt.got == "1000000"
    assert one.hear(m.Pushed).ticket == Ticket(1, 1)


def test_a_trainers_name_and_number_are_told(ask):
    one = welcomed(ask())
    plan = one.want(0).plan_digest
    one.say(m.NameQuery(stream="train", plan_digest=plan, sample=7))
    assert one.hear(m.NameAnswer).name == "synthetic 7"


def test_a_defect_of_ours_is_told_from_what_is_wrong_with_the_data(ask, worker, caplog):
    """Both end the want alone; only a defect is for us to read of."""
    asker = welcomed(ask())
    build, session = Build(7, asker.want(3, number=5), bytearray), worker._reception._sessions.of(asker.incarnation)
    for error in (ReadError(expected="a", got="b", where="c", remedy="d"), ZeroDivisionError("by us")):
        caplog.clear()
        assert worker._reception._report(build, session, error).ticket == Ticket(3, 1)
        told = [(one.event, one.fields["number"], one.fields["error"]) for one in caplog.records]
        assert {one.fields["run"] for one in caplog.records} <= {run_name(asker.incarnation)}
        is_ours = isinstance(error, ZeroDivisionError)
        assert told == ([("defect while building", 5, "ZeroDivisionError('by us')")] if is_ours else [])
    assert worker.counts.refused == 2


def test_a_cancelled_want_is_answered_at_once_if_it_was_not_begun(ask, worker, closed):
    one = welcomed(ask())
    one.say(*(one.want(slot) for slot in range(6)))
    wait_until_begun(worker, 4)
    one.say(m.Cancel(ticket=Ticket(5, 1)), m.Cancel(ticket=Ticket(0, 1)), m.Cancel(ticket=Ticket(9, 1)))
    assert one.hear(m.Cancelled).ticket == Ticket(5, 1)
    assert one.ping().tickets == tuple(Ticket(slot, 1) for slot in range(5))
    closed.set()
    assert one.hear(m.Cancelled).ticket == Ticket(0, 1)
    assert [one.hear(m.Pushed).ticket.slot for _ in range(4)] == [1, 2, 3, 4]
    assert one.ping().tickets == ()


def test_a_heartbeat_says_what_has_to_be_built_before_another_want(ask, worker, closed):
    one, other = welcomed(ask()), welcomed(ask())
    one.say(*(one.want(slot) for slot in range(6)))
    other.say(other.want(0))
    wait_until_begun(worker, 4)
    pong = other.ping(5)
    assert (pong.number, pong.waiting, pong.tickets) == (5, 7, (Ticket(0, 1),))
    closed.set()
    waiting = [one.hear(m.Pushed).waiting for _ in range(6)]
    assert waiting == sorted(waiting, reverse=True)
    assert waiting[-1] <= 1
    other.hear(m.Pushed)
    assert other.ping().waiting == 0


def test_a_verifier_comes_after_all_trainers_and_is_not_told_as_work_that_waits(ask, worker, closed):
    trainer, verifier = welcomed(ask()), ask()
    verifier.say(replace(verifier.greeting(), yields=True))
    verifier.worker = verifier.hear(m.Welcome).incarnation
    trainer.say(*(trainer.want(slot) for slot in range(4)))
    wait_until_begun(worker, 4)
    verifier.say(verifier.want(0, urgent=True))
    assert verifier.ping().tickets == (Ticket(0, 1),)
    trainer.say(*(trainer.want(slot) for slot in range(4, 6)))
    trainer.ping()
    assert (len(worker._reception.wants), worker._make_beat().waiting) == (3, 2)
    closed.set()
    assert [trainer.hear(m.Pushed).ticket.slot for _ in range(6)] == list(range(6))
    assert verifier.hear(m.Pushed).ticket == Ticket(0, 1)


@pytest.mark.fault(30)
def test_a_worker_that_drains_ends_what_it_began_and_refuses_the_rest(ask, worker, closed):
    one = welcomed(ask())
    one.say(*(one.want(slot) for slot in range(6)))
    wait_until_begun(worker, 4)
    worker.drain(60.0)
    assert [one.hear(m.Unbuilt).ticket.slot for _ in range(2)] == [4, 5]
    one.say(one.want(0))  # a copy of an open one
    assert refused(one, one.want(7)) == [(Ticket(7, 1), "draining")]
    assert len(one.ping().tickets) == 4
    closed.set()
    assert [one.hear(m.Pushed).ticket.slot for _ in range(4)] == [0, 1, 2, 3]


# --- who is who ---


@pytest.mark.fault(43)
def test_a_trainer_that_connects_anew_keeps_its_open_wants_and_is_answered_there(ask, worker, memory, closed):
    one = welcomed(ask(memory=memory))
    one.say(one.want(3), one.want(4))
    wait_until_begun(worker, 2)
    again = ask(memory=memory, incarnation=one.incarnation)
    assert again.hello(lock_byte=17).shared
    assert again.ping().tickets == (Ticket(3, 1), Ticket(4, 1))
    assert memory.is_locked(16)
    assert refused(one, one.want(5)) == [(Ticket(5, 1), "unknown")], "what comes late on the old connection"
    again.say(again.want(3))
    closed.set()
    assert [again.hear(m.Pushed).ticket.slot for _ in range(2)] == [3, 4]
    assert one.listen(0.05) is None


@pytest.mark.fault(43)
@pytest.mark.fault(19)
def test_another_incarnation_on_the_same_connection_is_another_trainer(ask, worker, closed):
    one = welcomed(ask())
    one.say(*(one.want(slot) for slot in range(6)))
    wait_until_begun(worker, 4)
    former, one.incarnation = one.incarnation, 99
    one.hello()
    assert one.ping().tickets == ()
    assert refused(one, one.want(0, trainer=former)) == [(Ticket(0, 1), "unknown")]
    one.say(one.want(0))
    closed.set()
    pushed = one.hear(m.Pushed)
    assert pushed.ticket == Ticket(0, 1)
    assert len(worker._reception.wants) == 0
    assert len(worker._reception._sessions) == 1


def test_a_trainer_that_was_silent_for_long_is_forgotten(ask, worker, memory):
    one = welcomed(ask(memory=memory))
    worker._registration.membership.heartbeat_timeout_s = 0.02
    wait_until(lambda: not memory.is_locked(16), "its memory was let go")
    assert refused(one, one.want(0)) == [(Ticket(0, 1), "unknown")]


def test_a_trainer_that_speaks_is_not_forgotten(ask, worker, memory, monkeypatch):
    one = welcomed(ask(memory=memory))
    clock = SimpleNamespace(now_s=time.monotonic())
    with monkeypatch.context() as patch:
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
        one.ping()
        worker._registration.membership.heartbeat_timeout_s = 0.2
        for number in range(2, 6):
            clock.now_s += 0.9 * GONE_AFTER * 0.2
            one.ping(number)
        assert memory.is_locked(16)
        clock.now_s += 1.1 * GONE_AFTER * 0.2
        wait_until(lambda: not memory.is_locked(16), "it is silent for longer")


# --- the loop does not wait ---


def test_counting_an_epochs_batches_holds_nobody_up(ask, worker, monkeypatch):
    """Planning it the first time may take seconds."""
    counting, go = threading.Event(), threading.Event()
    plan = worker._builders["train"]
    asked: list[tuple[int, int]] = []

    def slow(epoch: int, group: int) -> int:
        asked.append((epoch, group))
        counting.set()
        assert go.wait(60)
        return plan.batches(epoch, group)

    monkeypatch.setitem(worker._reception._epochs._count, "train", slow)
    one, other = welcomed(ask()), welcomed(ask())
    query = m.EpochQuery(stream="train", plan_digest=one.want(0).plan_digest, epoch=3, group=1)
    one.say(query, query)
    other.say(query)
    assert counting.wait(60)
    assert one.ping(1).number == 1
    one.say(one.want(0))
    one.hear(m.Pushed)
    assert other.ping(2).number == 2
    go.set()
    answer = m.EpochAnswer(stream="train", epoch=3, group=1, batches=plan.batches(3, 1))
    assert one.hear(m.EpochAnswer) == other.hear(m.EpochAnswer) == answer
    assert asked == [(3, 1)]
    one.say(query)
    assert one.hear(m.EpochAnswer) == answer
    assert asked == [(3, 1)]


def test_questions_of_strangers_and_about_other_plans_are_passed_over(ask):
    one = ask()
    query = m.EpochQuery(stream="train", plan_digest=one.want(0).plan_digest, epoch=0, group=1)
    one.say(query)
    one.hello()
    one.say(m.EpochQuery(stream="train", plan_digest="another", epoch=0, group=1))
    one.say(m.EpochQuery(stream="another", plan_digest=query.plan_digest, epoch=0, group=1))
    one.ping()
    assert one.listen(0.1) is None


# --- out of something ---


RAN_OUT = "out of descriptors or memory, or without nursery: this worker drains and ends"


@pytest.mark.fault(38)
@pytest.mark.fault(53)
@pytest.mark.parametrize(
    ("attempt", "room"), [(0, Room(memory=0, descriptors=10**4)), (1, Room(memory=2**60, descriptors=10**4))]
)
@pytest.mark.parametrize("error", [MemoryError(), OSError(24, "Too many open files")])
def test_a_worker_that_runs_out_of_something_drains_and_says_why(  # noqa: PLR0917 - fixtures and cases
    job, caplog, closed, monkeypatch, error, attempt, room
):
    """It has little left itself, or else the samples had passed trials in fresh processes."""
    monkeypatch.setattr(module, "free_room", lambda: room)
    monkeypatch.setattr(CrashTrial, "try_samples", lambda *_how: iter(()))
    transforms.RAISED[:] = [error]
    with a_worker(job) as worker, zmq.Context() as context:
        one = welcomed(Asker(context, worker.endpoint, digest_of(job)))
        one.say(one.want(0, attempt=attempt), one.want(1))
        wait_until_begun(worker, 2)
        assert not worker.exhausted
        closed.set()
        unbuilt = one.hear(m.Unbuilt)
        assert unbuilt.code == "exhausted"
        assert unbuilt.got.startswith("synthetic "), "the sample in hand is named"
        assert (str(error) or "MemoryError") in unbuilt.got
        wait_until(lambda: worker.exhausted and worker._context.closed, "it has ended by itself")
        one.close()
    assert RAN_OUT in caplog.text
    assert (str(error) or "MemoryError") in caplog.text


@pytest.mark.fault(53)
def test_a_worker_with_enough_left_goes_on_after_a_batch_over_which_something_ran_out(ask, worker, caplog, monkeypatch):
    needed = Room(memory=2**30, descriptors=64)
    monkeypatch.setattr(module, "free_room", lambda: needed)
    transforms.RAISED[:] = [MemoryError()]
    one = welcomed(ask())
    one.say(one.want(0))
    assert one.hear(m.Unbuilt).code == "exhausted"
    one.say(one.want(1))
    assert one.hear(m.Pushed).ticket == Ticket(1, 1)
    assert not worker.exhausted
    assert "memory or descriptors ran out over one batch" in caplog.text


def test_a_worker_that_has_lost_its_nursery_ends_and_the_want_loses_one_of_its_tries(job, caplog, monkeypatch):
    def lost(*_how):
        raise MachineError(expected="a", got="b", where="c", remedy="d") from NurseryEndedError(
            expected="a", got="b", where="c", remedy="d"
        )

    monkeypatch.setattr(CrashTrial, "try_samples", lost)
    with a_worker(job) as worker, zmq.Context() as context:
        one = welcomed(Asker(context, worker.endpoint, digest_of(job)))
        one.say(one.want(0, attempt=1))
        wait_until(lambda: one.dealer.poll(0), "the answer has come")
        threading.Event().wait(0.3)  # a trainer that is busy reads it later
        assert one.hear(m.Unbuilt, timeout_s=5).code == "machine"
        wait_until(lambda: worker.exhausted and worker._context.closed, "it has ended by itself")
        one.close()
    assert RAN_OUT in caplog.text


# --- and the coordinator ---


def test_it_registers_beats_and_leaves(job):
    with zmq.Context() as context:
        desk = Desk(context)
        with a_worker(job, coordinator=desk.endpoint) as worker:
            who, register = desk.hear()
            assert register.endpoint == worker.endpoint
            assert (register.worker, register.incarnation) == ("worker", worker.incarnation)
            answer(desk, who, register)
            _, beat = next_beat(desk)
            assert (beat.waiting, beat.building, beat.incarnation) == (0, 0, worker.incarnation)
            assert beat.culprits == 0
            while beat.culprits != 3:
                who, beat = next_beat(desk)
                answer(desk, who, beat, m.Culprits(version=3, keys=(5,)))
            assert all(one.culprits.keys == {5} for one in worker._builders.values())
        while desk.hear()[1] != m.Leave(worker="worker", incarnation=worker.incarnation):
            pass
        assert desk.hear(0.05) is None
        desk.close()


def answer(desk: Desk, who: bytes, said: m.Message, *more: m.Message) -> None:
    """As a coordinator, on whichever connection it was said."""
    usual = m.Registered(heartbeat_timeout_ms=400) if isinstance(said, m.Register) else m.Noted()
    with contextlib.suppress(zmq.ZMQError):  # that is no more
        for one in (usual, *more):
            desk.say(who, one)


def next_beat(desk: Desk) -> tuple[bytes, m.Beat]:
    """The next heartbeat; a worker that was not answered for long registers again before."""
    while True:
        who, said = desk.hear()
        if isinstance(said, m.Beat):
            return who, said
        answer(desk, who, said)


def test_one_that_drains_between_two_turns_says_that_it_leaves(job):
    with zmq.Context() as context:
        desk = Desk(context)
        settings = WorkerSettings(job_path=job, name="worker", listen="tcp://127.0.0.1:*", coordinator=desk.endpoint)
        worker = Worker(settings, TrialNursery())
        assert worker._registration.socket.poll(60_000, zmq.POLLOUT)
        worker.drain(60.0)
        worker.run()
        assert desk.hear()[1] == m.Leave(worker="worker", incarnation=worker.incarnation)
        desk.close()


@pytest.mark.fault(43)
def test_it_hears_the_coordinator_on_a_connection_that_was_made_anew(job):
    with zmq.Context() as context:
        desk = Desk(context)
        with a_worker(job, coordinator=desk.endpoint) as worker:
            first, _ = desk.hear()
            with contextlib.suppress(zmq.ZMQError):  # it has connected anew already
                desk.say(first, m.Registered(heartbeat_timeout_ms=100))
            while (
                worker._registration.membership.heartbeat_timeout_s != 5.0
            ):  # nothing else is answered, so it connects anew
                who, said = desk.hear()
                if who != first and isinstance(said, m.Register):
                    with contextlib.suppress(zmq.ZMQError):
                        desk.say(who, m.Registered(heartbeat_timeout_ms=5000))
        desk.close()
