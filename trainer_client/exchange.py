"""The trainer's exchange with all workers: carries out what `wants` orders, and tells it what came of it.

Rules: used in the receive thread only. A batch is looked at before it counts: ticket, target, layout, and its digest
where it came by TCP or `verify` is set. A worker is buried only on proof: its lock on our memory is gone, or another
incarnation answers at its endpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import zmq

from shared import messages as m
from shared.errors import ProtocolError, RefusedError
from shared.hashing import digest64
from shared.packing import Packing, unpack
from trainer_client import want_events as e
from trainer_client.handover import Item
from trainer_client.kept_memory import keep_in_huge_pages
from trainer_client.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    from numpy.typing import NDArray

    from shared.keys import ClientKeys
    from shared.layout import Layout
    from shared.logs import Log
    from shared.memory import SlotMemory
    from trainer_client.handover import Handover
    from trainer_client.ledger import Ledger
    from trainer_client.sealed import SealedPayloads
    from trainer_client.stream_facts import StreamFacts
    from trainer_client.wants import Wants

__all__ = ["Exchange", "ExchangeParts"]

#: Lock bytes start here: the nonce lies before them.
_FIRST_LOCK_BYTE = 16

#: Pause before a Hello that was not answered is said again, and before one that could not be sent is tried again.
_HELLO_PAUSE_S = 0.5
_NOT_YET_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeParts:
    """What the exchange works with."""

    context: zmq.Context[zmq.Socket[bytes]]
    poller: zmq.Poller
    keys: ClientKeys | None
    incarnation: int
    shared_memory: bool
    verify: bool
    facts: StreamFacts
    memory: SlotMemory
    ledger: Ledger
    wants: Wants
    handover: Handover
    log: Log
    learn: Callable[[m.EpochAnswer | m.NameAnswer], None]
    fail: Callable[[BaseException], None]


class Exchange:
    """Links to workers by endpoint."""

    def __init__(self, parts: ExchangeParts) -> None:
        self._parts = parts
        self._wants = parts.wants
        self._facts = parts.facts
        self._memory = parts.memory
        self._links: dict[str, Link] = {}
        self._by_worker: dict[int, Link] = {}
        self._locks = _FIRST_LOCK_BYTE
        self._headers: dict[int, m.Pushed] = {}
        self._delivered: list[tuple[int, Item]] = []

    # --- links ---

    def meet(self, workers: Iterable[m.WorkerAddress]) -> None:
        """Connect to workers that are new; forget those that left the list and never answered, or were buried."""
        members = {address.endpoint for address in workers}
        for endpoint in members - self._links.keys():
            link = Link(self._parts.context, endpoint, self._parts.keys, self._locks)
            self._locks += 1
            self._links[endpoint] = link
            self._parts.poller.register(link.socket, zmq.POLLIN)
            self._parts.poller.register(link.monitor, zmq.POLLIN)
        for endpoint, link in list(self._links.items()):
            if endpoint not in members and not link.connected and link.incarnation is None:
                self._parts.poller.unregister(link.socket)
                self._parts.poller.unregister(link.monitor)
                if link.sealed is not None and link.sealed.socket is not None:
                    self._parts.poller.unregister(link.sealed.socket)
                link.close()
                del self._links[endpoint]

    def serve(self, ready: set[object], now_s: float) -> None:
        """Take in what came from workers."""
        for link in list(self._links.values()):
            if link.monitor in ready:
                self._watch(link, now_s)
            if link.sealed is not None:
                self._serve_sealed(link, link.sealed, ready, now_s)
            if link.socket in ready:
                for message, received in link.read(partial(self._take, link)):
                    self._doors[type(message)](self, link, message, received, now_s)

    def _serve_sealed(self, link: Link, sealed: SealedPayloads, ready: set[object], now_s: float) -> None:
        if sealed.socket in ready:
            for header, received in sealed.read(partial(self._take_sealed, link), now_s):
                self._pushed(link, header, received, now_s)
        pong = sealed.due(now_s, self._facts.heartbeat_timeout_s)
        if pong is not None:
            self._held(link, pong, now_s)

    def _watch(self, link: Link, now_s: float) -> None:
        for up in link.changes():
            link.hello_s = now_s if up else float("inf")
            if not up and link.sealed is not None:
                link.sealed.forget()
            if not up and link.incarnation is not None:
                self._wants.note(e.WorkerCut(link.incarnation), now_s)
                self._probe(link, now_s)

    def greet(self, now_s: float) -> float:
        """Say Hello where it is due; when it is due next. A connection may be up a moment before it takes messages."""
        for link in self._links.values():
            if now_s >= link.hello_s:
                link.hello_s = now_s + (_HELLO_PAUSE_S if link.send(self._hello(link)) else _NOT_YET_S)
        return min((link.hello_s for link in self._links.values()), default=float("inf"))

    def _hello(self, link: Link) -> m.Hello:
        parts = self._parts
        offer = self._memory.offer(link.lock_byte) if parts.shared_memory else None
        return m.Hello(
            job=self._facts.job,
            stream=self._facts.stream,
            incarnation=parts.incarnation,
            shared=offer,
            verify=parts.verify,
            seal=link.sealed.new_seal() if link.sealed is not None else None,
        )

    def probe(self, now_s: float) -> bool:
        """Look for proof that silent writers are dead; whether any are left to be looked at again soon."""
        for worker in self._wants.silent_writers():
            self._probe(self._by_worker[worker], now_s)
        return bool(self._wants.silent_writers())

    def _probe(self, link: Link, now_s: float) -> None:
        if link.incarnation is not None and link.shared and not self._memory.is_locked(link.lock_byte):
            self._bury(link, now_s, crashed=not link.left)
            if link.connected:  # it had only let go of our memory, because we were away for long
                link.hello_s = now_s

    def _bury(self, link: Link, now_s: float, *, crashed: bool) -> None:
        assert link.incarnation is not None
        self._parts.log.info("worker is gone", worker=link.name, crashed=crashed)
        self._wants.note(e.WorkerDead(link.incarnation, crashed), now_s)
        del self._by_worker[link.incarnation]
        link.incarnation, link.shared = None, False
        if link.sealed is not None:
            link.sealed.forget()

    def ask_all(self, queries: Iterable[m.Message]) -> None:
        """Put questions that any worker can answer to every one that is there."""
        for query in queries:
            for link in self._by_worker.values():
                link.send(query)

    def garbage(self) -> int:
        """Frames from workers that were no message for us."""
        links = list(self._links.values())
        return sum(link.garbage + (link.sealed.garbage if link.sealed is not None else 0) for link in links)

    def close(self) -> None:
        """Hang up on all."""
        for link in self._links.values():
            link.close()

    # --- messages in ---

    def _take(self, link: Link, header: m.Pushed, frame: memoryview) -> int:
        """Put a payload where it belongs; the digest of what is there now, -1 if it belongs nowhere or is none."""

        def write(layout: Layout, place: NDArray[np.uint8]) -> int:
            unpack(frame, layout, link.packing, place)
            return digest64(place.data)

        return self._written(link, header, frame, write)

    def _take_sealed(self, link: Link, header: m.Pushed, frame: memoryview) -> int:
        """The same of a sealed payload: that it opens is proof that it has the digest which its header names."""

        def write(layout: Layout, place: NDArray[np.uint8]) -> int:
            assert link.sealed is not None
            link.sealed.unpack(frame, layout, link.packing, place)
            return header.digest

        return self._written(link, header, frame, write)

    def _written(
        self, link: Link, header: m.Pushed, frame: memoryview, write: Callable[[Layout, NDArray[np.uint8]], int]
    ) -> int:
        place, layout = self._place(link, header), self._facts.layout(header.shape)
        if place is None or layout is None:
            return -1
        keep_in_huge_pages(frame)
        try:
            return write(layout, place)
        except ProtocolError:
            link.garbage += 1
            return -1

    def _place(self, link: Link, header: m.Pushed) -> NDArray[np.uint8] | None:
        """Where the payload that follows belongs; None: nowhere, any more."""
        one, ticket = link.incarnation, header.ticket
        if one is None or header.in_slot or not self._wants.expects(one, ticket):
            return None
        target = self._wants.target(one, ticket)
        if target is None or not self._wants.is_needed(one, ticket) or not self._facts.fits(header, target):
            return None
        return self._memory.slot(ticket.slot)[: header.nbytes]

    def _welcomed(self, link: Link, message: m.Welcome, _received: int, now_s: float) -> None:
        if link.incarnation not in (None, message.incarnation):
            self._bury(link, now_s, crashed=not link.left)
        link.name, link.incarnation, link.left = message.worker, message.incarnation, False
        link.hello_s = float("inf")
        link.packing = Packing(float32=message.float32, compression=message.compression)
        link.shared = message.shared and self._memory.is_locked(link.lock_byte)
        self._by_worker[message.incarnation] = link
        way = "shared memory" if link.shared else "TCP"
        self._parts.log.info("worker serves us", worker=link.name, by=way, reason=message.reason)
        if link.sealed is not None:
            self._expect_sealed(link.sealed, message.sealed_port)
        self._wants.note(e.WorkerUp(message.incarnation, message.worker, link.shared), now_s)

    def _expect_sealed(self, sealed: SealedPayloads, port: int) -> None:
        before = sealed.socket
        sealed.expect(port)
        if sealed.socket is before:
            return
        if before is not None:
            self._parts.poller.unregister(before)
        if sealed.socket is not None:
            self._parts.poller.register(sealed.socket, zmq.POLLIN)

    def _pushed(self, link: Link, header: m.Pushed, received: int, now_s: float) -> None:
        if link.incarnation is None or not self._wants.expects(link.incarnation, header.ticket):
            self._wants.counts.stale += 1
            return
        self._headers[header.ticket.slot] = header
        valid = self._is_valid(link.incarnation, header, received)
        if valid:
            self._memory.was_written(header.ticket.slot, header.nbytes)
        self._wants.note(e.Arrived(link.incarnation, header.ticket, valid), now_s)

    def _is_valid(self, worker: int, header: m.Pushed, received: int) -> bool:
        if not self._wants.is_needed(worker, header.ticket):
            return True  # a second answer: nobody will look at it
        target = self._wants.target(worker, header.ticket)
        if target is None or not self._facts.fits(header, target):
            return False
        if not header.in_slot:
            return received == header.digest
        payload = self._memory.slot(header.ticket.slot)[: header.nbytes]
        return not self._parts.verify or digest64(payload.data) == header.digest

    def _unbuilt(self, link: Link, message: m.Unbuilt, _received: int, now_s: float) -> None:
        if link.incarnation is None or not self._wants.expects(link.incarnation, message.ticket):
            return
        forgotten, draining = message.code == "unknown", message.code == "draining"
        if forgotten:  # no more wants until it welcomes us again
            link.hello_s = now_s
            self._wants.note(e.WorkerLeft(link.incarnation), now_s)
        link.left = link.left or draining
        error = RefusedError(
            code=message.code,
            expected=message.expected,
            got=message.got,
            where=message.where,
            remedy=message.remedy,
        )
        gave_up = e.GaveUp(link.incarnation, message.ticket, None if forgotten else error, passing=draining)
        self._wants.note(gave_up, now_s)

    def _cancelled(self, link: Link, message: m.Cancelled, _received: int, now_s: float) -> None:
        if link.incarnation is not None and self._wants.expects(link.incarnation, message.ticket):
            self._wants.note(e.GaveUp(link.incarnation, message.ticket, None), now_s)

    def _ponged(self, link: Link, message: m.Pong, _received: int, now_s: float) -> None:
        if link.incarnation is not None and link.sealed is not None and link.sealed.put_off(message, now_s):
            self._wants.note(e.Heard(link.incarnation), now_s)
        else:
            self._held(link, message, now_s)

    def _held(self, link: Link, pong: m.Pong, now_s: float) -> None:
        if link.incarnation is not None:
            self._wants.note(e.Held(link.incarnation, pong.number, frozenset(pong.tickets)), now_s)

    def _answered(self, _link: Link, message: m.EpochAnswer | m.NameAnswer, _received: int, _now_s: float) -> None:
        self._parts.learn(message)

    def _refused(self, link: Link, message: m.Refused, _received: int, _now_s: float) -> None:
        where = f"worker at {link.endpoint}"
        self._parts.fail(
            RefusedError(
                code=message.code, expected=message.expected, got=message.got, where=where, remedy=message.remedy
            )
        )

    def _stray(self, link: Link, _message: m.Message, _received: int, _now_s: float) -> None:
        link.garbage += 1

    _doors: ClassVar[dict[type, Callable[..., None]]] = dict.fromkeys(m.KINDS.values(), _stray) | {
        m.Welcome: _welcomed,
        m.Pushed: _pushed,
        m.Unbuilt: _unbuilt,
        m.Cancelled: _cancelled,
        m.Pong: _ponged,
        m.EpochAnswer: _answered,
        m.NameAnswer: _answered,
        m.Refused: _refused,
    }

    # --- decisions carried out ---

    def settle(self, now_s: float) -> None:
        """After a turn: let `wants` decide, and carry out its orders; what comes of them is decided on in turn."""
        while orders := self._wants.decide(now_s):
            for order in orders:
                self._orders[type(order)](self, order, now_s)
            if self._delivered:
                self._parts.handover.deliver(self._delivered)
                self._delivered = []
            for link in list(self._by_worker.values()):
                if not link.flush() and link.incarnation is not None:
                    self._wants.note(e.WorkerCut(link.incarnation), now_s)

    def _to(self, worker: int, message: m.Message) -> None:
        link = self._by_worker.get(worker)
        if link is not None:  # it may have gone in this very turn
            link.queue(message)

    def _send_want(self, order: e.SendWant, _now_s: float) -> None:
        position = order.target.position
        want = m.Want(
            job=self._facts.job,
            stream=self._facts.stream,
            epoch=position.epoch,
            number=order.target.number,
            empty=order.target.empty,
            group=position.group,
            plan_digest=self._facts.plan_digest,
            attempt=min(order.attempt, 1000),
            trainer=self._parts.incarnation,
            worker=order.worker,
            ticket=order.ticket,
            in_slot=order.in_slot,
            urgent=order.urgent,
        )
        self._to(order.worker, want)

    def _send_cancel(self, order: e.SendCancel, _now_s: float) -> None:
        self._to(order.worker, m.Cancel(ticket=order.ticket))

    def _send_ping(self, order: e.SendPing, _now_s: float) -> None:
        self._to(order.worker, m.Ping(number=order.number))

    def _deliver(self, order: e.Deliver, _now_s: float) -> None:
        self._delivered.append((order.seq, Item(order.target, order.slot, self._headers.pop(order.slot))))

    def _retract(self, order: e.Retract, now_s: float) -> None:
        item = self._parts.handover.retract(order.seq)
        if item is not None:
            self._parts.ledger.drop(item.slot)
        self._wants.note(e.Retracted(order.seq, item.slot if item else None), now_s)

    def _fail(self, order: e.Fail, _now_s: float) -> None:
        self._parts.fail(order.error)

    _orders: ClassVar[dict[type, Callable[..., None]]] = {
        e.SendWant: _send_want,
        e.SendCancel: _send_cancel,
        e.SendPing: _send_ping,
        e.Deliver: _deliver,
        e.Retract: _retract,
        e.Fail: _fail,
    }
