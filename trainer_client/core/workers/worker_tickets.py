"""Which worker holds which ticket, and what becomes of them when it falls silent, is cut off or dies.

Rules, each from an interleaving that failed without it:
- A silent worker is suspect, not dead: it gets nothing new, and what it holds is asked for elsewhere as well.
- The slots of a silent worker stay out of the pool until it answers or is proved dead (see `slot_states`).
- A proved death raises `attempt` of the wants that the worker held, so that the next builder tries their samples in a
  child process first. So does a cut, because its cause may never be known.
Pure. What is asked of whom is decided in `wants`, what answers mean in `answers`.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.wire import messages as m
from trainer_client.core import instructions as i
from trainer_client.core.workers.known_workers import Ask, KnownWorker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.wire.parts import Ticket
    from trainer_client.core.slot_states import SlotStates
    from trainer_client.core.upcoming import Entry, Upcoming

__all__ = ["WantCounts", "WorkerTickets"]


@dataclass(slots=True)
class WantCounts:
    """What happened so far, for metrics and tests."""

    asked: int = 0
    asked_again: int = 0
    hedged: int = 0
    stale: int = 0
    rejected: int = 0
    lost_on_the_way: int = 0
    retracted: int = 0
    suspected: int = 0


class WorkerTickets:
    """The tickets that are out, over the upcoming batches, the slots and the workers that it is given."""

    def __init__(
        self, upcoming: Upcoming, slots: SlotStates, workers: dict[int, KnownWorker], out: list[i.Instruction]
    ) -> None:
        self.counts = WantCounts()
        #: How many tickets workers hold.
        self.unanswered = 0
        #: Numbers of batches that no worker has in hand that was heard lately, in order.
        self.unasked: list[int] = []
        #: Workers came, went, fell silent or were heard again: `unasked` has to be computed again.
        self.look_around = True
        self._upcoming = upcoming
        self._slots = slots
        self._workers = workers
        self._out = out
        #: Counted over all workers, so that one that is buried too early and comes back never sees a number twice.
        self._pings = 0

    # --- workers come and go ---

    def note_arrival(self) -> None:
        """A worker serves us now, or again."""
        self.look_around = True

    def hear(self, worker: KnownWorker, now_s: float) -> None:
        """Something was heard from this worker."""
        worker.heard_s = now_s
        if worker.silent and not worker.cut:
            worker.silent = False
            self.look_around = True

    def suspect(self, worker: KnownWorker) -> None:
        """Nothing was heard from it for too long, or its connection is gone."""
        if not worker.silent:
            worker.silent = True
            self.look_around = True
            self.counts.suspected += 1

    def stop_asking(self, worker: KnownWorker) -> None:
        """Give this worker no more wants."""
        worker.takes_no_wants = True
        self.look_around = True

    def cut(self, worker: KnownWorker, *, by_us: bool = False) -> None:
        """Its connection is gone, and with it what it was to send by TCP."""
        self.suspect(worker)
        worker.cut = True
        by_tcp = [ticket for ticket, ask in worker.asks.items() if not ask.in_slot]
        # One of these may have killed it: whoever is asked next must know now, because proof may come late or never.
        suspicious = not (by_us or worker.in_good_order)
        self.void(worker, by_tcp, suspicious=suspicious)
        for ask in worker.asks.values() if suspicious else ():
            entry = self._upcoming.entries.get(ask.seq)
            if entry is not None and not ask.blamed:
                ask.blamed = True
                entry.attempt += 1

    def bury(self, worker: KnownWorker, *, crashed: bool) -> None:
        """It is proved that it cannot write into any slot any more."""
        self.void(worker, list(worker.asks), suspicious=crashed)
        self.look_around = True

    def void(self, worker: KnownWorker, tickets: Iterable[Ticket], *, suspicious: bool) -> None:
        """No answer to these tickets will come."""
        for ticket in tickets:
            self._slots.release(ticket)
            ask, entry = self.close(worker, ticket)
            if entry is not None:
                entry.attempt += suspicious and not ask.blamed

    def ping(self, worker: KnownWorker, now_s: float) -> m.Ping:
        """Make the next Ping, which asks for a sign of life."""
        self._pings += 1
        worker.pinged_s = now_s
        return m.Ping(number=self._pings)

    def excuse(self, now_s: float) -> None:
        """We stalled, so restart every worker's timers."""
        for worker in self._workers.values():
            worker.heard_s = worker.answered_s = now_s
            for ask in worker.asks.values():
                ask.sent_s = now_s

    # --- tickets ---

    def hold(self, seq: int, worker: KnownWorker, ticket: Ticket, now_s: float, *, in_slot: bool) -> None:
        """The worker gets this ticket, for this batch."""
        worker.asks[ticket] = Ask(seq, in_slot, now_s, self._pings)
        self.unanswered += 1
        self._upcoming.entries[seq].askers[worker.incarnation] = ticket

    def close(self, worker: KnownWorker, ticket: Ticket) -> tuple[Ask, Entry | None]:
        """The ticket is answered, or void; its batch need not wait for the next time to ask."""
        ask = worker.asks.pop(ticket)
        self.unanswered -= 1
        entry = self._upcoming.entries.get(ask.seq)
        if entry is not None:
            entry.askers.pop(worker.incarnation, None)
            entry.again_s = 0.0
            self.reopen(ask.seq, entry)
        return ask, entry

    def reopen(self, seq: int, entry: Entry) -> None:
        """Note that this batch is to be asked for, if nobody has it in hand now."""
        if not self.look_around and self.is_unasked(entry) and seq not in self.unasked:
            insort(self.unasked, seq)

    def is_unasked(self, entry: Entry) -> bool:
        """Whether nobody has it in hand who was heard lately."""
        return not entry.ready and all(self._workers[one].silent for one in entry.askers)

    def cancel(self, entry: Entry) -> None:
        """Tell everyone who still has it in hand that it need not be built."""
        for one, ticket in entry.askers.items():
            self.send_cancel(self._workers[one], ticket)

    def send_cancel(self, worker: KnownWorker, ticket: Ticket) -> None:
        """Tell a worker that this ticket need not be answered with a batch."""
        if worker.connection_id is not None:
            self._out.append(i.ToWorker(worker.connection_id, m.Cancel(ticket=ticket)))
