"""Rules of the core, each taken out by a small patch: a simulator that misses one of them would be worth nothing.

Each rule is named by what it says; its patch makes the core ignore just that.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loader_server.leases.epoch_leases import OutNumber
from loader_server.leases.lease_table import LeaseTable
from trainer_client.core.asking.answers import Answers
from trainer_client.core.asking.wants import Wants
from trainer_client.core.attachment import Attachment
from trainer_client.core.leasing.held_leases import HeldLeases
from trainer_client.core.upcoming import Upcoming
from trainer_client.core.workers.open_connections import Connections
from trainer_client.core.workers.worker_tickets import WorkerTickets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.wire import messages as m
    from shared.wire.message_parts import Lease
    from trainer_client.core.workers.known_workers import KnownWorker

__all__ = ["RULES", "without"]

Patch = tuple[type, str, "Callable[..., Any]"]


def _lend_at_once() -> Patch:
    suspect = WorkerTickets.suspect

    def suspect_and_void(self: WorkerTickets, worker: KnownWorker) -> None:
        suspect(self, worker)
        self.void(worker, list(worker.asks), suspicious=False)

    return WorkerTickets, "suspect", suspect_and_void


def _take_stale_answers() -> Patch:
    receive = Answers.receive

    def receive_any(self: Answers, worker: KnownWorker, came: m.Pushed, payload: object, now_s: float) -> None:
        current = next((ticket for ticket in worker.asks if ticket.slot == came.ticket.slot), came.ticket)
        receive(self, worker, replace(came, ticket=current), payload, now_s)

    return Answers, "receive", receive_any


def _wait_for_the_silent() -> Patch:
    return WorkerTickets, "is_unasked", lambda _, entry: not entry.ready and not entry.askers


def _take_any_attached() -> Patch:
    return Attachment, "_take_answer", lambda self, _serial: self._open


def _leave_what_was_taken_back() -> Patch:
    take_back = Wants.take_back

    def take_back_for_good(self: Wants, seq: int, *, won: bool) -> None:
        take_back(self, seq, won=won)
        entry = self._upcoming.entries.get(seq)
        if won and entry is not None:
            entry.again_s = float("inf")

    return Wants, "take_back", take_back_for_good


def _never_make_room() -> Patch:
    return Wants, "_lend_slot_for", lambda self, _seq: self._slots.lend()


def _trust_the_network() -> Patch:
    return Answers, "reconcile", lambda self, worker, _pong, now_s: self._tickets.hear(worker, now_s)


def _keep_old_connections() -> Patch:
    return Connections, "_renew", lambda _self, _connection, _now_s: None


def _bury_on_welcome() -> Patch:
    part = Connections._part

    def bury(self: Connections, connection: Any, worker: KnownWorker) -> None:
        part(self, connection, worker)
        if worker.incarnation in self._workers:
            self._bury(worker, crashed=True)

    return Connections, "_part", bury


def _keep_what_was_opened() -> Patch:
    return Upcoming, "leads_on", lambda _self, _start, _taken: True


def _take_every_lease() -> Patch:
    receive = HeldLeases.receive

    def receive_all(self: HeldLeases, message: m.Leases, now_s: float) -> bool:
        untold, self._done = self._done, {}
        is_taken = receive(self, message, now_s)
        self._done = untold
        return is_taken

    return HeldLeases, "receive", receive_all


def _believe_who_lost_it() -> Patch:
    return LeaseTable, "_look_up", lambda self, lease: self.epochs[lease.epoch].out.get(lease.number, OutNumber(nth=1))


#: Rules by name, and what takes each out. The first seven are missed within some hundred seeds, the others, which other
#: rules stand behind, within many thousand if at all.
def _tell_of_older_generations() -> Patch:
    real = HeldLeases.settle

    def settle(self: HeldLeases, lease: Lease, _generation: int, **how: Any) -> None:
        real(self, lease, self._generation, **how)

    return HeldLeases, "settle", settle


RULES: dict[str, Callable[[], Patch]] = {
    "a-silent-writer's-slot-waits-for-proof": _lend_at_once,
    "a-reader-gets-its-own-way": _keep_what_was_opened,
    "what-was-taken-back-is-asked-again": _leave_what_was_taken_back,
    "wants-of-the-silent-are-asked-elsewhere": _wait_for_the_silent,
    "a-pong-tells-what-was-lost": _trust_the_network,
    "the-head-always-has-a-slot": _never_make_room,
    "a-silent-connection-is-made-anew": _keep_old_connections,
    "a-stale-ticket's-answer-is-dropped": _take_stale_answers,
    "an-answer-names-its-request": _take_any_attached,
    "another-incarnation-is-no-proof-of-death": _bury_on_welcome,
    "what-is-done-and-not-told-is-leased-no-more": _take_every_lease,
    "what-is-done-already-is-not-done-again": _believe_who_lost_it,
    "what-was-done-before-a-restore-is-not-told": _tell_of_older_generations,
}


@contextmanager
def without(rule: str) -> Iterator[None]:
    """Take a rule out of the core meanwhile; none where the name is empty."""
    if not rule:
        yield
        return
    owner, name, patch = RULES[rule]()
    kept = getattr(owner, name)
    setattr(owner, name, patch)
    try:
        yield
    finally:
        setattr(owner, name, kept)
