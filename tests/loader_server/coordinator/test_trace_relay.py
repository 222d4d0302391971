"""Questions for stamps, passed on by the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from loader_server.coordinator.events import Received
from shared.wire import messages as m
from shared.wire.codec import MAX_FRAME, encode
from shared.wire.message_parts import TraceProcess
from shared.wire.topics.trace_messages import MOST_ASKED, MOST_LISTED
from tests.support.coordinator import attach, coordinator, register

if TYPE_CHECKING:
    from loader_server.coordinator.state import CoordinatorState

ASKER, TRAINER, WORKER = b"asker", b"trainer", b"worker"


def query(*processes: int, serial: int = 5, **more) -> m.TraceQuery:
    fields = {"first_row": 40, "last_ms": 0, "stream": "train", "epoch": 2, "number": 7}
    return m.TraceQuery(serial=serial, processes=processes, **(fields | more))


def page(serial: int, process: int, **more) -> m.TracePage:
    fields = {"gone": False, "boot_id": "boot", "now_ns": 9, "oldest_ns": 3, "streams": ("train",), "stamps": b"x" * 48}
    return m.TracePage(serial=serial, process=process, **(fields | {"next_row": 90, "overwritten": 2} | more))


@pytest.fixture
def state() -> CoordinatorState:
    state = coordinator()
    state.handle(Received(TRAINER, attach()), 0.0)
    state.handle(Received(WORKER, register()), 0.0)
    return state


def sent(state: CoordinatorState, peer: bytes, message: m.Message, now_s: float = 1.0):
    return [(order.peer, order.message) for order in state.handle(Received(peer, message), now_s)]


TRAINER_ID, WORKER_ID = attach().incarnation, register().incarnation


def test_without_processes_it_is_asked_which_there_are(state):
    ((peer, answer),) = sent(state, ASKER, query())
    assert peer == ASKER
    assert answer.serial == 5
    assert answer.left_out == 0
    assert set(answer.processes) == {
        TraceProcess(attach().name, TRAINER_ID, "train", 0, 1, 1),
        TraceProcess(register().worker, WORKER_ID, "", 0, 0, 0),
    }


def test_a_question_goes_to_those_it_names_and_their_answers_come_back(state):
    orders = dict(sent(state, ASKER, query(TRAINER_ID, WORKER_ID)))
    assert orders.keys() == {TRAINER, WORKER}
    for peer, process in ((TRAINER, TRAINER_ID), (WORKER, WORKER_ID)):
        wanted = orders[peer]
        assert (wanted.first_row, wanted.last_ms, wanted.stream, wanted.epoch, wanted.number) == (40, 0, "train", 2, 7)
        assert sent(state, peer, page(wanted.serial, process)) == [(ASKER, page(5, process))]


def test_an_answer_counts_once(state):
    ((_, wanted),) = sent(state, ASKER, query(TRAINER_ID))
    assert sent(state, TRAINER, page(wanted.serial, TRAINER_ID))
    assert sent(state, TRAINER, page(wanted.serial, TRAINER_ID)) == []


@pytest.mark.parametrize(("peer", "process"), [(WORKER, TRAINER_ID), (TRAINER, WORKER_ID)])
def test_nobody_answers_for_another(state, peer, process):
    ((_, wanted),) = sent(state, ASKER, query(TRAINER_ID))
    assert sent(state, peer, page(wanted.serial, process)) == []
    assert sent(state, TRAINER, page(wanted.serial, TRAINER_ID)) == [(ASKER, page(5, TRAINER_ID))]


def test_a_process_that_is_not_known_is_gone(state):
    ((peer, answer),) = sent(state, ASKER, query(12345))
    assert peer == ASKER
    assert (answer.serial, answer.process, answer.gone, answer.next_row) == (5, 12345, True, None)


def test_a_question_is_open_for_ten_seconds(state):
    ((_, first),) = sent(state, ASKER, query(TRAINER_ID), 1.0)
    ((_, second),) = sent(state, ASKER, query(TRAINER_ID), 11.5)
    assert sent(state, TRAINER, page(first.serial, TRAINER_ID), 11.5) == []
    assert sent(state, TRAINER, page(second.serial, TRAINER_ID), 11.5) != []


def test_the_oldest_of_too_many_open_questions_are_forgotten(state):
    serials = [wanted.serial for _ in range(1030) for _, wanted in sent(state, ASKER, query(TRAINER_ID))]
    answered = [serial for serial in serials if sent(state, TRAINER, page(serial, TRAINER_ID))]
    assert answered == serials[-1024:]


def test_the_longest_list_and_the_longest_question_fit_in_their_messages():
    process = TraceProcess("n" * 200, 2**64 - 1, "s" * 200, 4095, 4096, 4096)
    longest = m.TraceProcesses(serial=2**48, processes=(process,) * MOST_LISTED, left_out=2**48)
    assert len(encode(longest)) < MAX_FRAME
    assert len(encode(query(*[2**64 - 1] * MOST_ASKED))) < 60 * 1024


def test_a_list_that_is_too_long_is_cut(state):
    for number in range(MOST_LISTED + 3):
        state._workers.register(b"%d" % number, register(f"w-{number}", incarnation=10_000 + number), 0.0)
    ((_, answer),) = sent(state, ASKER, query())
    assert len(answer.processes) == MOST_LISTED
    assert answer.left_out == len(state._workers) + 1 - MOST_LISTED
