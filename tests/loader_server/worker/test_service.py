"""A worker alone: what it answers to trainers that speak to it over real sockets, in this process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
import zmq

from loader_server.building.build_thread import Build
from loader_server.wants.tickets import MOST_OPEN, MOST_SLOTS
from shared.errors import ReadError
from shared.hashing import digest64
from shared.memory import SlotMemory
from shared.wire import messages as m
from shared.wire.codec import VERSION, encode
from shared.wire.parts import Ticket
from tests.support import transforms
from tests.support.askers import Asker, Desk, a_worker, digest_of, write_synthetic
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from loader_server.worker.service import Worker


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stream = 'transforms = ["tests.support.transforms:gate"]'
    return write_synthetic(tmp_path_factory.mktemp("job"), samples=400, length=20, budget=400, stream=stream)


@pytest.fixture
def worker(job: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.syspath_prepend(str(job.parent))
    with a_worker(job) as worker:
        yield worker
        transforms.GATE.set()


@pytest.fixture
def ask(job: Path, worker: Worker) -> Iterator[Callable[..., Asker]]:
    askers: list[Asker] = []
    plan = digest_of(job)
    with zmq.Context() as context:

        def make(**how: Any) -> Asker:
            askers.append(Asker(context, worker.endpoint, plan, **how))
            return askers[-1]

        yield make
        transforms.GATE.set()
        for one in askers:
            one.close()


@pytest.fixture
def memory() -> Iterator[SlotMemory]:
    memory = SlotMemory(8, 400 * 330)
    yield memory
    memory.close()


@pytest.fixture
def closed() -> Iterator[threading.Event]:
    """Whatever is begun does not end before this is set."""
    transforms.GATE.clear()
    transforms.AT_GATE.clear()
    yield transforms.GATE
    transforms.GATE.set()


def welcomed(one: Asker, **how: Any) -> Asker:
    one.hello(**how)
    return one


def begun(worker: Worker, builds: int) -> None:
    """Wait until so many builds are in the hands of the building thread, and it builds the first one."""
    assert transforms.AT_GATE.wait(20)
    wait_until(lambda: worker._thread.load == builds, f"{builds} builds are begun")


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
    build = Build(7, welcomed(ask()).want(3, number=5), bytearray)
    for error in (ReadError(expected="a", got="b", where="c", remedy="d"), ZeroDivisionError("by us")):
        caplog.clear()
        assert worker._reception._report(build, error).ticket == Ticket(3, 1)
        told = [(one.event, one.fields["number"], one.fields["error"]) for one in caplog.records]
        is_ours = isinstance(error, ZeroDivisionError)
        assert told == ([("defect while building", 5, "ZeroDivisionError('by us')")] if is_ours else [])
    assert worker.counts.refused == 2


# --- what is refused ---


def refused(one: Asker, *wants: m.Want) -> list[tuple[Ticket, str]]:
    one.say(*wants)
    answers = [one.hear(m.Unbuilt) for _ in wants]
    return [(answer.ticket, answer.code) for answer in answers]


def test_strangers_wants_are_refused(ask, memory):
    one = ask()
    assert refused(one, one.want(3)) == [(Ticket(3, 1), "unknown")]
    one.hello()
    assert refused(
        one,
        one.want(3, worker=1),
        one.want(3, trainer=1),
        one.want(3, in_slot=True),
        one.want(3, 2, plan_digest="another"),
        one.want(3, 3, stream="another"),
    ) == [(Ticket(3, generation), code) for generation, code in (
        (1, "unknown"), (1, "unknown"), (1, "unknown"), (2, "plan"), (3, "plan"),
    )]  # fmt: skip
    assert one.ping().tickets == ()


def test_strangers_are_refused(ask):
    one = ask(job="another")
    one.say(one.greeting())
    assert one.hear(m.Refused).code == "job"
    other = ask()
    other.say(other.greeting(stream="another"))
    assert other.hear(m.Refused).code == "stream"


def test_what_nobody_says_to_a_worker_is_counted_and_not_answered(ask, worker):
    one = welcomed(ask())
    one.say(m.Noted())
    one.dealer.send(b"nonsense")
    one.say(m.Ping(number=3))
    assert one.listen() == m.Pong(number=3, tickets=(), sealed=0, waiting=0)
    assert worker.counts.garbage == 2


@pytest.mark.fault(42)
def test_who_says_much_in_vain_at_once_is_heard_again_a_moment_later(ask, worker):
    one = ask()
    one.dealer.send_multipart([b"nonsense"] * 300)
    wait_until(lambda: worker.counts.garbage == 256, "the first ones are taken in")

    def is_heard() -> bool:
        one.dealer.send(b"nonsense")
        return worker.counts.garbage > 256

    wait_until(is_heard, "it is heard again")


@pytest.mark.fault(28)
def test_whoever_speaks_another_version_is_told_which_one_is_spoken_here(ask, worker):
    one = ask()
    version, *rest = msgpack.unpackb(encode(m.Ping(number=1)))
    one.dealer.send(msgpack.packb([version + 1, *rest]))
    refused = one.hear(m.Refused)
    assert (refused.code, refused.expected) == ("version", f"protocol version {VERSION}")
    assert worker.counts.garbage == 0


@pytest.mark.fault(42)
def test_more_trainers_than_a_worker_can_bear_are_refused(ask, monkeypatch):
    monkeypatch.setattr("loader_server.worker.reception.MOST_SESSIONS", 2)
    one, other, third = ask(), ask(), ask()
    one.hello()
    other.hello()
    third.say(third.greeting())
    assert third.hear(m.Refused).code == "busy"
    assert one.hello().worker, "who is known comes back"


@pytest.mark.fault(42)
@pytest.mark.parametrize("by", ["TCP", "shared memory"])
def test_a_slot_has_one_open_want_and_copies_are_passed_over(ask, worker, memory, closed, by):
    one = welcomed(ask(memory=memory if by == "shared memory" else None))
    one.say(one.want(3))
    begun(worker, 1)
    one.say(one.want(3))  # a copy: to answer it would free the slot under the builder
    assert refused(one, one.want(3, 2)) == [(Ticket(3, 2), "busy")]
    assert one.ping().tickets == (Ticket(3, 1),)
    assert worker.counts.stale == 1
    one.say(one.want(3, 2))  # a copy of what was refused: the trainer may have lent the slot to another
    closed.set()
    assert one.hear(m.Pushed).ticket == Ticket(3, 1)
    one.say(one.want(3, 2), one.want(3, 3))
    assert one.hear(m.Pushed).ticket == Ticket(3, 3)


@pytest.mark.fault(42)
def test_slots_that_were_not_offered_are_refused(ask, memory):
    by_tcp, in_place = welcomed(ask()), welcomed(ask(memory=memory))
    assert refused(by_tcp, by_tcp.want(MOST_SLOTS)) == [(Ticket(MOST_SLOTS, 1), "busy")]
    assert refused(in_place, in_place.want(8), in_place.want(8, in_slot=False)) == [(Ticket(8, 1), "busy")] * 2


@pytest.mark.fault(42)
def test_so_many_wants_are_open_and_no_more(ask, worker, closed):
    one, other = welcomed(ask()), welcomed(ask())
    one.say(*(one.want(slot) for slot in range(MOST_OPEN)))
    assert refused(one, one.want(MOST_OPEN)) == [(Ticket(MOST_OPEN, 1), "busy")]
    assert len(one.ping().tickets) == MOST_OPEN
    other.say(other.want(MOST_OPEN))
    assert other.ping().tickets == (Ticket(MOST_OPEN, 1),)


@pytest.mark.fault(42)
def test_all_trainers_together_have_a_bounded_number_of_open_wants(job, closed, monkeypatch):
    monkeypatch.setattr("loader_server.wants.open_wants._MOST_OPEN", 12)
    with a_worker(job) as worker, zmq.Context() as context:
        one, other = (welcomed(Asker(context, worker.endpoint, digest_of(job))) for _ in range(2))
        for asker in (one, other):
            asker.say(*(asker.want(slot) for slot in range(12)))
            asker.ping()
        assert len(one.ping().tickets) == 6
        assert len(other.ping().tickets) == 3
        one.say(m.Cancel(ticket=Ticket(5, 1)))
        one.hear(m.Cancelled)
        other.say(other.want(3, 2))
        assert len(other.ping().tickets) == 4
        closed.set()
        one.close()
        other.close()


def test_a_cancelled_want_is_answered_at_once_if_it_was_not_begun(ask, worker, closed):
    one = welcomed(ask())
    one.say(*(one.want(slot) for slot in range(6)))
    begun(worker, 4)
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
    begun(worker, 4)
    pong = other.ping(5)
    assert (pong.number, pong.waiting, pong.tickets) == (5, 7, (Ticket(0, 1),))
    closed.set()
    waiting = [one.hear(m.Pushed).waiting for _ in range(6)]
    assert waiting == sorted(waiting, reverse=True)
    assert waiting[-1] <= 1
    other.hear(m.Pushed)
    assert other.ping().waiting == 0


@pytest.mark.fault(30)
def test_a_worker_that_drains_ends_what_it_began_and_refuses_the_rest(ask, worker, closed):
    one = welcomed(ask())
    one.say(*(one.want(slot) for slot in range(6)))
    begun(worker, 4)
    worker.drain(20.0)
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
    begun(worker, 2)
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
    begun(worker, 4)
    former, one.incarnation = one.incarnation, 99
    one.hello()
    assert one.ping().tickets == ()
    assert refused(one, one.want(0, trainer=former)) == [(Ticket(0, 1), "unknown")]
    one.say(one.want(0))
    closed.set()
    pushed = one.hear(m.Pushed)
    assert pushed.ticket == Ticket(0, 1)
    assert worker._reception.waiting == 0
    assert len(worker._reception._sessions) == 1


def test_a_trainer_that_was_silent_for_long_is_forgotten(ask, worker, memory):
    one = welcomed(ask(memory=memory))
    worker._registration.membership.heartbeat_timeout_s = 0.02
    wait_until(lambda: not memory.is_locked(16), "its memory was let go")
    assert refused(one, one.want(0)) == [(Ticket(0, 1), "unknown")]


def test_a_trainer_that_speaks_is_not_forgotten(ask, worker, memory):
    one = welcomed(ask(memory=memory))
    worker._registration.membership.heartbeat_timeout_s = 0.2
    for number in range(1, 30):
        one.ping(number)
        one.listen(0.05)
    assert memory.is_locked(16)


# --- the loop does not wait ---


def test_counting_an_epochs_batches_holds_nobody_up(ask, worker, monkeypatch):
    """Planning it the first time may take seconds."""
    counting, go = threading.Event(), threading.Event()
    plan = worker._builders["train"]
    asked: list[tuple[int, int]] = []

    def slow(epoch: int, group: int) -> int:
        asked.append((epoch, group))
        counting.set()
        assert go.wait(20)
        return plan.batches(epoch, group)

    monkeypatch.setitem(worker._reception._epochs._count, "train", slow)
    one, other = welcomed(ask()), welcomed(ask())
    query = m.EpochQuery(stream="train", plan_digest=one.want(0).plan_digest, epoch=3, group=1)
    one.say(query, query)
    other.say(query)
    assert counting.wait(20)
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


@pytest.mark.fault(38)
@pytest.mark.parametrize("error", [MemoryError(), OSError(24, "Too many open files")])
def test_a_worker_that_runs_out_of_something_drains_and_says_why(job, caplog, closed, error):
    transforms.RAISED[:] = [error]
    with a_worker(job) as worker, zmq.Context() as context:
        one = welcomed(Asker(context, worker.endpoint, digest_of(job)))
        one.say(one.want(0), one.want(1))
        begun(worker, 2)
        assert not worker.exhausted
        closed.set()
        assert one.hear(m.Unbuilt).code == "draining"
        wait_until(lambda: worker.exhausted and worker._context.closed, "it has ended by itself")
        one.close()
    assert "out of descriptors or memory: this worker drains and ends" in caplog.text
    assert (str(error) or "MemoryError") in caplog.text


# --- and the coordinator ---


def test_it_registers_beats_and_leaves(job):
    with zmq.Context() as context:
        desk = Desk(context)
        with a_worker(job, coordinator=desk.endpoint) as worker:
            who, register = desk.hear()
            assert register.endpoint == worker.endpoint
            assert (register.worker, register.incarnation) == ("worker", worker.incarnation)
            desk.say(who, m.Registered(heartbeat_timeout_ms=400))
            _, beat = desk.hear()
            assert (beat.waiting, beat.building, beat.incarnation) == (0, 0, worker.incarnation)
            assert beat.culprits == 0
            desk.say(who, m.Culprits(version=3, keys=(5,)))
            wait_until(lambda: all(one.culprits.keys == {5} for one in worker._builders.values()), "it is known")
            wait_until(lambda: desk.hear()[1].culprits == 3, "it says which list it has")
        said = [said for _, said in iter(lambda: desk.hear(0.05), None)]
        assert m.Leave(worker="worker", incarnation=worker.incarnation) == said[-1]
        desk.close()


@pytest.mark.fault(43)
def test_it_hears_the_coordinator_on_a_connection_that_was_made_anew(job):
    with zmq.Context() as context:
        desk = Desk(context)
        with a_worker(job, coordinator=desk.endpoint) as worker:
            first, _ = desk.hear()
            desk.say(first, m.Registered(heartbeat_timeout_ms=100))
            who, said = desk.hear()
            while who == first or not isinstance(said, m.Register):  # nothing is answered, so it connects anew
                who, said = desk.hear()
            desk.say(who, m.Registered(heartbeat_timeout_ms=5000))
            wait_until(lambda: worker._registration.heartbeat_timeout_s == 5.0, "it has heard that")
        desk.close()
