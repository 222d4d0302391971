"""Interleavings that the simulated world found, each by its name, told to the core event by event."""

from __future__ import annotations

import pytest

from shared.wire import messages as m
from shared.wire.message_parts import Cursor, Ticket, WireField, WireShape, WorkerAddress
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.core import Core
from trainer_client.core.settings import CoreSettings
from trainer_client.core.slot_states import SlotState
from trainer_client.core.upcoming import Position, Ranks

SHAPE = WireShape(2, ())
START = Position(0, 0, 1)


def settings(**other) -> CoreSettings:
    given = {"job": "job", "stream": "train", "ranks": Ranks(rank=0, replicas=1, world=1), "incarnation": 1}
    given |= {"name": "trainer", "boot_id": "here", "prefetch": 2, "workers": 16}
    return CoreSettings(**{**given, **other})


def address(worker: int, boot_id: str = "") -> WorkerAddress:
    return WorkerAddress(f"w{worker}", worker, f"tcp://10.0.0.{worker}:1", boot_id, 0)


class Told:
    """A core that is attached, with what it ordered last; `tell` hands it events as one turn."""

    def __init__(self, *workers: WorkerAddress, batches: int = 8, **other) -> None:
        self.core = Core(settings(**other))
        self.now_s = 0.0
        self.orders: list[i.Instruction] = []
        self.tell(e.AttachAsked(1, None))
        self.tell(
            e.CoordinatorSent(
                m.Attached(
                    serial=1, job="job", stream="train", evaluation=False, work=None, book=None,
                    cursor=Cursor(0, 0, 1, "plan"), next_group=1, tenure=1, batches=batches, most_batches=batches,
                    max_bad=0.5,
                    max_bad_samples=None, members=1, workers=workers,
                    fields=(WireField("weight", "float32", (), None),), shapes=(SHAPE,), heartbeat_timeout_ms=1000,
                    producers=0, base_fields=(),
                )
            )
        )  # fmt: skip

    def tell(self, *events: e.Event, after_s: float = 0.001) -> list[i.Instruction]:
        self.now_s += after_s
        self.orders = self.core.handle(events, self.now_s)
        return self.orders

    def ordered(self, kind: type) -> list:
        return [one for one in self.orders if type(one) is kind]

    def said(self, kind: type[m.Message]) -> list:
        return [one.message for one in self.ordered(i.ToWorker) if isinstance(one.message, kind)]

    def greet(self, connection_id: int, worker: int, *, shared: bool) -> None:
        """The connection is up, and the worker welcomes us."""
        self.tell(e.ConnectionUp(connection_id))
        self.tell(welcome(connection_id, worker, shared=shared))

    def states(self, state: SlotState) -> int:
        assert self.core.stream is not None
        return self.core.stream.slots.count(state)


def welcome(connection_id: int, worker: int, *, shared: bool, locked: bool = True) -> e.WorkerSent:
    said = m.Welcome(
        worker=f"w{worker}", incarnation=worker, shared=shared, reason="", float32="float32", compression="none",
        sealed_port=0,
    )  # fmt: skip
    return e.WorkerSent(connection_id, said, shared and locked)


def pushed(want: m.Want) -> m.Pushed:
    return m.Pushed(
        ticket=want.ticket, epoch=want.epoch, number=want.number, empty=want.empty, in_slot=want.in_slot, shape=SHAPE,
        nbytes=64, digest=0, rows=2, masked=0, reason="", reasons=(), build_us=1, read_us=0, held_us=1, waiting=0,
    )  # fmt: skip


def pong(number: int, *tickets: Ticket) -> m.Pong:
    return m.Pong(number=number, tickets=tickets, sealed=0, waiting=0)


@pytest.mark.fault(24)
@pytest.mark.parametrize("verify", [True, False])
def test_a_pong_that_comes_in_one_turn_with_the_batch_does_not_deny_it(verify):
    """The batch was here and was to be looked at, but the worker held its ticket no more: it was asked for again."""
    told = Told(address(7, "here" if verify else ""), verify=verify)
    told.greet(1, 7, shared=verify)
    wants = told.said(m.Want)
    assert len(wants) == 2
    told.tell(after_s=0.3)
    (ping,) = told.said(m.Ping)
    told.tell(e.WorkerSent(1, pushed(wants[0]), b"payload"), e.WorkerSent(1, pong(ping.number, wants[1].ticket)))
    assert told.core.stream.answers.lost_on_the_way == 0
    assert told.said(m.Want) == []
    told.tell(e.Checked(1, pushed(wants[0]), valid=True))
    assert [one.seq for one in told.ordered(i.Offer)] == [0]


@pytest.mark.fault(24)
def test_a_batch_that_comes_twice_in_one_turn_is_looked_at_once():
    told = Told(address(7))
    told.greet(1, 7, shared=False)
    want = told.said(m.Want)[0]
    told.tell(*[e.WorkerSent(1, pushed(want), b"payload")] * 2)
    assert len(told.ordered(i.Write)) == 1
    assert told.core.stream.answers.stale == 1


@pytest.mark.fault(4)
def test_a_worker_that_welcomes_us_twice_keeps_its_lock():
    """A Hello that is answered late is said twice, and so is the answer: the second one took the lock byte away, and
    the worker was held to be dead when it fell silent, with a thread that wrote into its slots.
    """
    told = Told(address(7, "here"))
    told.tell(e.ConnectionUp(1))
    (greeting,) = told.ordered(i.Greet)
    told.tell(welcome(1, 7, shared=True), welcome(1, 7, shared=True))
    told.tell(after_s=0.4)
    for _ in range(4):
        told.tell(after_s=0.4)
    assert {one.lock_byte for one in told.ordered(i.Probe)} == {greeting.lock_byte}
    assert told.states(SlotState.LENT) == 2


@pytest.mark.fault(23)
def test_a_refusal_is_read_after_the_news_that_its_connection_is_gone():
    """The worker that does not know us was greeted on a connection that was down, and the core stopped."""
    told = Told(address(7))
    told.greet(1, 7, shared=False)
    want = told.said(m.Want)[0]
    unknown = m.Unbuilt(ticket=want.ticket, code="unknown", expected="", got="", where="", remedy="")
    told.tell(e.ConnectionDown(1), e.WorkerSent(1, unknown))
    assert told.ordered(i.Greet) == []
    told.tell(e.ConnectionUp(1))
    assert len(told.ordered(i.Greet)) == 1


@pytest.mark.fault(23)
def test_a_welcome_on_a_connection_that_was_closed_in_the_same_turn():
    """It had been read already when another event closed the connection, and the core stopped."""
    told = Told(address(7), address(8))
    told.greet(1, 7, shared=False)
    told.tell(e.ConnectionUp(2))
    no = m.Refused(code="job", expected="a", got="b", remedy="c")
    told.tell(
        e.WorkerSent(2, no), welcome(2, 8, shared=True), e.WorkerSent(2, no), e.ConnectionUp(2), e.ConnectionDown(2)
    )
    assert len(told.ordered(i.Close)) == 1
    assert told.core.stream.connections.worker_at(2) is None


@pytest.mark.fault(23)
def test_a_connection_that_went_and_came_between_two_looks_is_greeted_and_asked_anew():
    told = Told(address(7))
    told.greet(1, 7, shared=False)
    asked = told.said(m.Want)
    told.tell(e.ConnectionUp(1))
    assert len(told.ordered(i.Greet)) == 1
    assert told.states(SlotState.LENT) == 0
    told.tell(welcome(1, 7, shared=False))
    assert [want.number for want in told.said(m.Want)] == [want.number for want in asked]


@pytest.mark.fault(43)
def test_a_coordinator_that_never_answers_is_connected_to_anew():
    """One side of the connection was reset before we were attached, and the other did not know."""
    core = Core(settings())
    core.handle([e.AttachAsked(1, None)], 100.0)
    renewed_s = []
    for tenth in range(100):
        orders = core.handle([], 100.0 + tenth / 10)
        renewed_s += [tenth / 10 for one in orders if isinstance(one, i.RenewCoordinator)]
    assert renewed_s == pytest.approx([2.1, 6.1], abs=0.15)
