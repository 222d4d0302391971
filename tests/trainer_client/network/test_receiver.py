"""The receive thread against a coordinator and a worker in this process: what it asks, tells, raises, and leaves."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from pathlib import Path

import pytest

import trainer_client
from shared.errors import LostError, ProtocolError, RefusedError, SettingsError
from shared.wire import messages as m
from shared.wire.message_parts import Cursor
from tests.support.ends import Ends
from tests.support.loaders import wait_until
from tests.support.lone_core import BATCHES, DIGEST
from tests.support.unheard import expect_unheard_ctrl_c
from trainer_client.core.settings import CoreSettings
from trainer_client.core.upcoming import Position, Ranks
from trainer_client.network import receiver as receiver_module
from trainer_client.network import world_places as places_module
from trainer_client.network.outbox import Reader
from trainer_client.network.receiver import Receiver, ReceiverSettings


def receiver(endpoint, *, connect_timeout_s=60.0):
    core = CoreSettings(
        job="", stream="train", ranks=Ranks(rank=0, replicas=1, world=1), incarnation=77, name="here:1",
        boot_id="here", prefetch=4,
    )  # fmt: skip
    return Receiver(
        ReceiverSettings(
            core=core, endpoint=endpoint, coordinator_keys=None, worker_keys=None, connect_timeout_s=connect_timeout_s
        )
    )


@pytest.fixture
def ends(request):
    with Ends(heartbeat_timeout_ms=getattr(request, "param", 2000)) as both:
        yield both


#: For what takes several heartbeats, or their being missed: a busy machine misses some as well.
quick_heartbeats = pytest.mark.parametrize("ends", [200], indirect=True, ids=["quick"])


@pytest.fixture
def ours(ends):
    one = receiver(ends.endpoint)
    yield one
    one.close(20)


def test_it_attaches_where_it_is_told(ends, ours):
    answer = ours.attach(Cursor(2, 8, 4, DIGEST))
    assert (answer.cursor.epoch, answer.cursor.number) == (2, 8)
    assert ours.standing.trained_to == ours.outbox.read_to == (2, 8)
    asked = ends.wait_for(m.Attach)
    assert (asked.stream, asked.incarnation, asked.name) == ("train", 77, "here:1")
    assert ours.attach(Cursor(3, 0, 4, DIGEST)).cursor.epoch == 3


def test_a_refusal_is_raised_where_it_was_asked(ends, ours):
    ends.answers[m.Attach] = lambda said: [
        m.NotAttached(serial=said.serial, code="job", expected="job a", got="job b", remedy="Leave job= out.")
    ]
    with pytest.raises(RefusedError, match=r"coordinator: expected job a, got job b\. Leave job= out\."):
        ours.attach(None)


def test_a_coordinator_that_does_not_answer(ends):
    ends.answers[m.Attach] = lambda said: [m.Wait(serial=said.serial, reason="counting batches", retry_ms=50)]
    ours = receiver(ends.endpoint, connect_timeout_s=0.2)
    with pytest.raises(LostError):
        ours.attach(None)
    wait_until(lambda: ours.core.attachment.last_reason != "no answer", "it has said why it is not ready")
    with pytest.raises(LostError) as caught:
        ours.attach(None)
    ours.close(20)
    assert str(caught.value) == (
        f"{ends.endpoint}: expected a coordinator that answers within 0.2 s, got counting batches. Start the loaders "
        "(`loader-server run job.toml`), correct the endpoint, or allow more time with connect_timeout_s."
    )


def test_an_address_that_nothing_can_be_connected_to_is_refused_at_once():
    """The receive thread cannot even make its socket, and must not leave the caller to its timeout."""
    began_s = time.monotonic()
    with pytest.raises(SettingsError, match="expected an address that can be connected to, got Invalid argument"):
        trainer_client.connect("tcp://no such host:7400", connect_timeout_s=30)
    assert time.monotonic() - began_s < 10


def test_that_no_coordinator_answers_is_said_long_before_patience_ends(ends, caplog, monkeypatch):
    monkeypatch.setattr(receiver_module, "WARN_AFTER_S", 0.05)
    answers = ends.answers.pop(m.Attach, None)
    ends.answers[m.Attach] = lambda said: []
    ours = receiver(ends.endpoint, connect_timeout_s=60.0)
    thread = threading.Thread(target=lambda: ours.attach(None))
    thread.start()
    said = "no coordinator has let this trainer in yet: it goes on asking"
    wait_until(lambda: said in [record.event for record in caplog.records], "it is said")
    if answers is None:
        del ends.answers[m.Attach]
    else:
        ends.answers[m.Attach] = answers
    thread.join(60)
    assert ours.core.attachment.attached, "it has gone on asking"
    ours.close(20)
    (record,) = [record for record in caplog.records if record.event == said]
    assert (record.fields["endpoint"], record.fields["reason"]) == (ends.endpoint, "no answer")
    assert record.levelname == "WARNING"


def test_five_seconds_are_long_enough_to_wait_in_silence():
    assert receiver_module.WARN_AFTER_S == places_module.WARN_AFTER_S == 5.0


def test_ctrl_c_just_before_it_waits_for_the_coordinator_is_heeded(ends, ours):
    ends.answers[m.Attach] = lambda said: []
    expect_unheard_ctrl_c(lambda: ours.attach(None), once=lambda: ends.heard)


def test_a_worker_is_asked_what_is_not_known(ends, ours):
    ours.attach(None)
    assert ours.ask_batches(0, 4) == BATCHES
    assert not [one for one in ends.heard if isinstance(one, m.EpochQuery) and one.epoch == 0]  # attaching told it
    assert ours.ask_batches(7, 4) == BATCHES
    assert ours.ask_names([5, 5]) == ["sample 5"] * 2


def test_batches_come_in_their_order(ends, ours):
    ours.attach(None)
    reader = Reader(Position(0, 0, 4))
    for number in range(6):
        item = ours.outbox.take(reader)
        assert item.header.number == number
        assert (ours.memory.slot(item.slot)[: item.header.nbytes] == number).all()


@quick_heartbeats
def test_heartbeats_carry_how_far_we_are_and_how_much_we_waited(ends, ours):
    def told():
        return [one for one in ends.heard if isinstance(one, m.Progress)]

    ours.attach(None)
    first = ends.wait_for(m.Progress)
    assert (first.stream, first.rank, first.incarnation, first.members) == ("train", 0, 77, 1)
    assert (first.epoch, first.number, first.read_epoch, first.read_number) == (0, 0, 0, 0)
    ours.standing.trained_to, ours.outbox.read_to = (3, 4), (5, 6)
    ours.outbox.batches_read = 7
    ours.standing.waited_s = 1e9
    wait_until(lambda: 1000 in [one.waited_permille for one in told()], "it is told that we waited all the time")
    last = ends.wait_for(m.Progress, len(told()) + 1)
    assert (last.epoch, last.number, last.read_epoch, last.read_number) == (3, 4, 5, 6)
    assert last.batches_read == 7
    assert last.waited_permille == 0  # of the time since the last one


def test_a_mistake_in_the_thread_is_raised_where_somebody_waits(ends, ours):
    ours.attach(None)
    broken = ZeroDivisionError("a mistake of ours")

    def handle(_events, _now_s):
        raise broken

    ours.core.handle = handle
    with pytest.raises(ZeroDivisionError, match="a mistake of ours"):
        ours.ask_names([5])
    with pytest.raises(ZeroDivisionError):
        ours.outbox.take(Reader(Position(0, 0, 4)))
    ours._thread.join(60)
    assert not ours._thread.is_alive()


def test_a_mistake_while_attaching_is_raised_there(ends, ours):
    def handle(_events, _now_s):
        raise ZeroDivisionError

    ours.core.handle = handle
    with pytest.raises(ZeroDivisionError):
        ours.attach(None)


def test_it_detaches_and_leaves_nothing(ends):
    before, threads = _open_files(), set(threading.enumerate())
    ours = receiver(ends.endpoint)
    ours.attach(None)
    ends.wait_for(m.Hello)
    ours.close(20)
    assert ends.wait_for(m.Detach) == m.Detach(stream="train", rank=0, incarnation=77)
    wait_until(lambda: not set(threading.enumerate()) - threads, "no thread is left")
    assert not ours._thread.is_alive()
    wait_until(lambda: _open_files().items() <= before.items(), "what both ends opened for it is closed")


def _open_files():
    """What this process has open, by descriptor."""
    found = {}
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found[one.name] = one.readlink()
    return found


def test_an_answer_that_is_wrong_is_an_error(ends):
    ends.facts["cursor"] = Cursor(1, 0, 4, DIGEST)
    ours = receiver(ends.endpoint)
    with pytest.raises(ProtocolError, match="epoch 0, batch 0, as was asked"):
        ours.attach(None)
    ours.close(20)


@quick_heartbeats
def test_garbage_and_strays_are_counted(ends, ours):
    ends.answers[m.Progress] = lambda _: [b"nonsense"]
    ends.answers[m.Ping] = lambda said: [b"nonsense"]
    ours.attach(None)
    wait_until(lambda: ours._wires.coordinator.garbage, "the coordinator's garbage came")
    wait_until(ours._wires.workers.count_garbage, "the worker's garbage came")
    assert ours.count_garbage() >= 2
    ours.close(20)
    before = ours.count_garbage()
    ours.core.strays += 5
    assert ours.count_garbage() == before + 5


def test_what_the_core_has_to_say_is_logged(ends, ours, caplog):
    caplog.set_level(logging.INFO, "stoker")
    ours.attach(None)
    wait_until(lambda: "worker serves us" in [one.event for one in caplog.records], "it is logged")
    (line,) = [one for one in caplog.records if one.event == "worker serves us"]
    assert line.levelno == logging.INFO
    assert (line.fields["worker"], line.fields["job"], line.fields["stream"]) == ("w1", "digits", "train")


@quick_heartbeats
def test_a_silent_coordinator_is_connected_to_anew(ends, ours):
    ours.attach(None)
    before = ours._wires.coordinator.socket
    ends.answers[m.Progress] = lambda _: []
    wait_until(lambda: before.closed, "its connection is made anew")
    assert before not in [socket for socket, _ in ours._wires._poller.sockets]
    del ends.answers[m.Progress]
    assert ours.attach(None).cursor.number == 0


def test_facts_that_came_while_deciding_are_not_slept_over(ends):
    ours = receiver(ends.endpoint)
    ours.close(20)
    outbox = ours.outbox
    outbox.wake_for_room = outbox.wake_for_slots = False
    list(outbox.read_facts())
    ours.core.due_s = float("inf")
    assert ours._pause_ms() == 1001
    outbox.tell("anything")
    assert ours._pause_ms() == 1001  # nobody waits for it
    outbox.wake_for_slots = True
    assert ours._pause_ms() == 0
    outbox.wake_for_room, outbox.wake_for_slots = True, False
    assert ours._pause_ms() == 0
    list(outbox.read_facts())
    assert ours._pause_ms() == 1001
    ours.core.due_s = 0.0
    assert ours._pause_ms() == 0
