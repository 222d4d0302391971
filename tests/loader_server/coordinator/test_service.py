"""The coordinator's process without a process: real sockets, a real journal, made-up streams."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from loader_server.commands.ask import ask_coordinator
from loader_server.coordinator import service as module
from loader_server.coordinator.events import Advanced, CulpritFound, RankTaken, Send, WorldNamed
from loader_server.coordinator.journal import Journal, WriteError
from loader_server.coordinator.service import Coordinator, open_coordinator
from loader_server.job_file import JobFile
from loader_server.leases.lease_table import LeaseRules
from shared.errors import DataError, RefusedError
from shared.wire import messages as m
from shared.wire.codec import VERSION, encode
from tests.support.coordinator import SETTINGS, View, attach, beat, culprit, forgive, progress, register
from tests.support.elastic_members import join
from tests.support.loaders import wait_until, write_job
from tests.support.peer import Peer, peers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Served:
    """A coordinator in a thread of its own."""

    def __init__(self, path, settings=SETTINGS, leases=None) -> None:
        self.path = path
        self._leases = leases
        self._settings = settings
        self._guard = ExitStack()
        self._make_peer = self._guard.enter_context(peers())
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._is_ready.wait(60)

    def _run(self) -> None:
        """SQLite wants its database used where it was opened."""
        streams = {"train": View(leases=self._leases), "dev": View(evaluation=True)}
        self.coordinator = Coordinator(self._settings, streams, Journal(self.path), "tcp://127.0.0.1:*", None)
        self._is_ready.set()
        self.coordinator.run()

    def peer(self) -> Peer:
        return self._make_peer(self.coordinator.endpoint)

    def report(self) -> dict[str, object]:
        return json.loads(self.peer().ask(m.StatusQuery()).report)

    def end(self) -> list[object]:
        """Stop; the facts that it leaves behind."""
        self.coordinator.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._guard.close()
        journal = Journal(self.path)
        facts = list(journal.read_facts())
        journal.close()
        return facts


def enroll(worker: Peer) -> list[m.Message]:
    """Its answers: one, and one for each of the two streams."""
    worker.send(register())
    return [worker.hear() for _ in range(2)]


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(settings=SETTINGS, leases=None) -> Served:
        started.append(Served(tmp_path / "journal.sqlite", settings, leases))
        return started[-1]

    yield start
    for one in started:
        if one._thread.is_alive():
            one.end()


def test_it_answers_at_once_and_what_it_promised_is_in_the_journal(serve):
    served = serve(replace(SETTINGS, heartbeat_timeout_s=400.0))
    trainer, worker = served.peer(), served.peer()
    registered, culprits = enroll(worker)
    assert (type(registered), type(culprits)) == (m.Registered, m.Culprits)
    assert isinstance(trainer.ask(attach(serial=3)), m.Attached)
    assert isinstance(trainer.ask(progress(0, 1, 8)), m.Members)
    assert worker.ask(beat(culprits=culprits.version)) == m.Noted()
    worker.send(culprit("a"))
    assert isinstance(worker.hear(), m.Culprits)
    facts = set(served.end())
    assert facts >= {Advanced("train", 1, 8), CulpritFound("train", "a", "SIGSEGV, SIGSEGV")}
    assert [fact.incarnations for fact in facts if isinstance(fact, RankTaken)] == [(1000,)]


def test_one_whose_job_was_ended_says_so_until_its_trainers_have_left(serve, monkeypatch):
    monkeypatch.setattr(module, "_LAST_WORDS_S", 60.0)
    served = serve(replace(SETTINGS, heartbeat_timeout_s=400.0))
    trainer = served.peer()
    members = trainer.ask(attach()).members
    served.coordinator.end_job(drains=False)
    served.coordinator.stop()
    ends = m.JobEnds(drains=False, last=None)
    assert trainer.hear() == ends
    assert trainer.ask(progress(0, 1, 8, members=members)) == ends
    trainer.send(m.Detach(stream="train", rank=0, incarnation=1000))
    served._thread.join(60)
    assert not served._thread.is_alive()


def test_one_that_cannot_start_lets_the_journal_go(tmp_path):
    job = JobFile(write_job(tmp_path, samples=2))
    with pytest.raises(DataError, match="loader-server index"):
        open_coordinator(job, "tcp://127.0.0.1:*", None)
    Journal(job.state / "journal.sqlite").close()


@pytest.mark.fault(48)
def test_it_knows_after_a_restart_who_was_superseded(serve):
    served = serve()
    for incarnation in (1, 2):
        assert isinstance(served.peer().ask(attach(incarnation=incarnation)), m.Attached)
    served.end()
    again = serve()
    refused = again.peer().ask(attach(incarnation=1))
    assert (refused.code, refused.serial) == ("superseded", 1)
    assert isinstance(again.peer().ask(attach(incarnation=2)), m.Attached)


def test_two_starts_never_give_one_version_to_two_lists(serve):
    versions = set()
    for _ in range(3):
        served = serve()
        versions.add(served.peer().ask(attach()).members)
        served.end()
    assert len(versions) == 3


@pytest.mark.fault(25)
def test_garbage_and_what_it_has_no_business_with_are_counted(serve):
    served = serve()
    peer = served.peer()
    for frame in (b"", b"\x93", b"\x91" * 5000, encode(m.Ping(number=1)), encode(m.Noted())):
        peer.send(frame)
    assert isinstance(peer.ask(attach()), m.Attached)
    assert served.coordinator.garbage == 5


@pytest.mark.fault(28)
def test_another_version_is_told_both(serve):
    answer = serve().peer().ask(encode(m.StatusQuery()).replace(bytes([VERSION]), bytes([VERSION + 1]), 1))
    assert (answer.code, answer.got) == ("version", f"version {VERSION + 1}")


@pytest.mark.fault(52)
def test_an_answer_that_cannot_be_sent_ends_nothing(serve, monkeypatch, caplog):
    served = serve()
    too_long = {"job": "x" * 2**21, "streams": {}, "workers": [], "culprits": [], "failing": []}
    monkeypatch.setattr(served.coordinator._state, "report", lambda _now_s: too_long)
    peer = served.peer()
    peer.send(m.StatusQuery())
    assert isinstance(peer.ask(attach()), m.Attached)
    wait_until(lambda: served.coordinator.unsendable == 1, "the status could not be sent")
    (record,) = [one for one in caplog.records if one.event == "message cannot be sent"]
    assert record.fields["kind"] == "Status"


class Full:
    """Stands in a journal's way while one says so."""

    def __init__(self, journal: Journal) -> None:
        self.is_full = True
        self._write = journal.write
        journal.write = self.write  # type: ignore[method-assign]

    def write(self, facts) -> None:
        if self.is_full:
            raise WriteError(expected="to write", got="disk is full", where="here", remedy="Make room.")
        self._write(facts)


@pytest.mark.fault(14)
def test_with_a_full_disk_no_lease_is_promised_and_none_expires_until_there_is_room(serve):
    served = serve(replace(SETTINGS, heartbeat_timeout_s=2.0), LeaseRules(floor_s=2.0, tries=1))
    trainer, outcomes = served.peer(), {"stream": "train", "work": "train", "incarnation": 1000, "generation": 1}
    outcomes |= {"book": None, "done": (), "failed": (), "returned": (), "before": 1, "snapshot": False}
    assert isinstance(trainer.ask(attach()), m.Attached)
    (first,) = trainer.ask(m.Outcomes(serial=1, wanted=1, in_hand=None, **outcomes)).leases
    assert trainer.ask(m.Outcomes(serial=2, wanted=1, in_hand=first, **outcomes)).leases == (first,)
    full = Full(served.coordinator._journal)
    trainer.send(m.Outcomes(serial=3, wanted=2, in_hand=first, **outcomes))
    wait_until(lambda: served.coordinator.writer.errors > 8, "it is tried again at each tick, though 4 would expire it")
    full.is_full = False
    wait_until(lambda: served.coordinator.writer.waiting == 0, "it is written though nothing new came")
    answer = trainer.ask(m.Outcomes(serial=3, wanted=2, in_hand=first, **outcomes))
    assert [lease.number for lease in answer.leases] == [0, 1]
    assert answer.serial == 3
    assert served.report()["streams"]["train"]["queue"]["train"]["expired"] == 0


@pytest.mark.fault(14)
def test_what_is_asked_while_the_disk_is_slow_shares_the_next_write(serve):
    """However it comes in: the loop takes in all that waits before it writes."""
    served = serve(leases=LeaseRules(floor_s=30.0, tries=1))
    trainers = [served.peer() for _ in range(20)]
    for number, trainer in enumerate(trainers, 1):
        trainer.ask(attach(incarnation=number))
    take_in, write = served.coordinator._take_in, served.coordinator._journal.write
    writes, to_come = [], [20]

    def take_in_all(now_s: float) -> list[object]:
        """As if the disk had been slow until all had asked."""
        came = take_in(now_s)
        wait_until(lambda: came.extend(take_in(now_s)) or _leasing(came) == sum(to_come), "all have asked")
        to_come.clear()
        return came

    served.coordinator._journal.write = lambda facts: (writes.append(len(facts)), write(facts))
    served.coordinator._take_in = take_in_all
    for number, trainer in enumerate(trainers, 1):
        trainer.send(
            m.Outcomes(
                stream="train", work="train", incarnation=number, book=None, generation=1, serial=1, done=(),
                failed=(), returned=(), in_hand=None, wanted=1, before=1, snapshot=False,
            )
        )  # fmt: skip
    assert sorted(trainer.hear().leases[0].number for trainer in trainers) == list(range(20))
    assert len(writes) == 1


def _leasing(orders: list[object]) -> int:
    """How many of them answer who asked for leases."""
    return sum(isinstance(one, Send) and isinstance(one.message, m.Leases) for one in orders)


@pytest.mark.fault(14)
def test_with_a_full_disk_training_goes_on_and_facts_are_written_once_there_is_room(serve):
    served = serve(replace(SETTINGS, heartbeat_timeout_s=1.0))  # it is gone after five of them
    full = Full(served.coordinator._journal)
    trainer = served.peer()
    assert isinstance(trainer.ask(attach()), m.Attached)
    trainer.ask(progress(0, 0, 5))
    assert served.coordinator.writer.waiting == 3
    wait_until(lambda: served.coordinator.writer.errors > 3, "it is tried again at each tick")
    full.is_full = False
    wait_until(lambda: served.coordinator.writer.waiting == 0, "it is written though nothing new came")
    assert Advanced("train", 0, 5) in served.end()


@pytest.mark.fault(14)
def test_with_a_full_disk_nobody_gets_a_place_that_a_restart_would_forget(serve):
    served = serve(replace(SETTINGS, heartbeat_timeout_s=2.0))
    full = Full(served.coordinator._journal)
    trainer = served.peer()
    trainer.send(join(1, least=1, most=1))
    wait_until(lambda: served.coordinator.writer.waiting, "it is placed, and that cannot be kept")
    served.report()  # whatever it had to say it has said by now
    assert not trainer.socket.poll(0)
    full.is_full = False
    assert trainer.ask(join(1, least=1, most=1)) == m.Placed(serial=1, version=1, rank=0, world=1)
    assert any(isinstance(fact, WorldNamed) for fact in served.end())


@pytest.mark.fault(14)
def test_what_waits_is_tried_a_last_time_at_the_end(serve):
    served = serve()
    full = Full(served.coordinator._journal)
    served.peer().ask(attach())
    full.is_full = False
    assert [fact.incarnations for fact in served.end() if isinstance(fact, RankTaken)] == [(1000,)]


@pytest.mark.fault(14)
@pytest.mark.fault(36)
def test_who_forgives_is_told_if_a_restart_would_undo_it(serve):
    served = serve()
    worker, person = served.peer(), served.peer()
    enroll(worker)
    worker.send(culprit("a"))
    worker.hear()
    full = Full(served.coordinator._journal)
    refused = person.ask(forgive())
    assert (refused.code, refused.expected) == ("journal", "to forget convictions for good")
    assert (
        refused.got == "1 convictions that are forgotten until the coordinator restarts: its journal cannot be written"
    )
    assert worker.hear().keys == ()
    worker.send(culprit("a"))
    worker.hear()
    with pytest.raises(RefusedError, match=r"coordinator at tcp://.*: expected to forget convictions for good"):
        ask_coordinator(served.coordinator.endpoint, forgive(), m.Forgiven, keys=None, timeout_s=60.0)
    full.is_full = False
    assert person.ask(forgive()) == m.Forgiven(count=0)


def test_what_the_state_wants_said_is_in_the_log(serve, caplog):
    served = serve()
    assert served.peer().ask(register(builder="builder-2")).code == "builder"
    (record,) = [one for one in caplog.records if one.event == "worker builds other bytes"]
    assert record.fields["job"] == "digits"
    assert record.fields["worker"] == "w0"


@pytest.mark.fault(40)
def test_a_worker_that_asks_is_told_which_parts_differ_and_so_is_the_log(serve, caplog):
    served = serve(replace(SETTINGS, builder_parts=(("package numpy", "2.2.0"), ("plan of stream train", "p1"))))
    differs = "package numpy (2.2.0 on the coordinator's machine, 2.1.0 on the worker's); plan of stream train"
    asked = m.BuilderParts(worker="w0", parts=(("package numpy", "2.1.0"), ("plan of stream train", "p2")))
    answer = served.peer().ask(asked)
    assert (answer.code, answer.got) == ("builder", f"w0, which differs: {differs}")
    (record,) = [one for one in caplog.records if one.event == "worker differs from this machine"]
    assert (record.fields["worker"], record.fields["parts"]) == ("w0", differs)
    assert served.peer().ask(asked).got == answer.got, "it asks again while it waits"
    assert len([one for one in caplog.records if one.event == "worker differs from this machine"]) == 1
    alike = m.BuilderParts(worker="w0", parts=SETTINGS.builder_parts)
    assert "package numpy" in served.peer().ask(alike).got


def test_where_it_serves_and_who_comes_is_in_the_log(serve, caplog):
    caplog.set_level("INFO")
    served = serve()
    enroll(served.peer())
    served.peer().ask(attach())

    def events():
        return [record.event for record in list(caplog.records)]

    wait_until(lambda: {"worker is there", "trainer is there"} <= set(events()), "both are in the log")
    (record,) = [one for one in caplog.records if one.event == "coordinator serves"]
    assert record.fields["endpoint"] == served.coordinator.endpoint


def test_the_silent_are_given_up_by_its_own_clock(serve):
    served = serve(replace(SETTINGS, heartbeat_timeout_s=0.1))
    enroll(served.peer())
    served.peer().ask(attach())
    wait_until(lambda: served.coordinator.counts.workers_gone, "the worker is gone")
    wait_until(lambda: served.coordinator.report["streams"]["train"]["attached"] == 0, "the trainer is gone")


@pytest.mark.fault(16)
def test_nobody_expires_for_a_stall_of_its_own(serve, monkeypatch):
    """The loop's clock jumps; what the others say in time is heard first."""
    clock = SimpleNamespace(offset_s=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.offset_s))
    served = serve(replace(SETTINGS, heartbeat_timeout_s=0.4))
    worker, other = served.peer(), served.peer()
    _, culprits = enroll(worker)
    for now_s in (30.0, 30.3):  # a stall of 30 s, and what comes first is from others
        clock.offset_s = now_s
        other.ask(m.StatusQuery())
    assert worker.ask(beat(culprits=culprits.version)) == m.Noted()
    gone = []
    for step in range(1, 9):
        clock.offset_s = 30.3 + 0.3 * step
        other.ask(m.StatusQuery())
        other.ask(m.StatusQuery())  # the turn before is over
        gone.append(served.coordinator.counts.workers_gone)
    assert gone == [0] * 6 + [1] * 2, "who stays silent is given up all the same"
