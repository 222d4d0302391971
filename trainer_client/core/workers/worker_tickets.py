"""The tickets that workers hold, and what becomes of them when a worker falls silent, is cut off or dies.

Rules, each from an interleaving that failed without it:
- A silent worker is suspect, not dead: it gets no new wants, and those it holds are asked of others as well.
- The slots of a silent worker stay out of the pool until it answers or is proved dead (see `slot_states`).
- A proved death raises `attempt` of the wants that the worker held, so that the next builder tries their samples in a
  child process first. So does a cut, because its cause may never be known.
Pure. Which worker is asked for what is decided in `wants`, the meaning of answers in `answers`.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from shared.wire import messages as m
from trainer_client.core import instructions as i
from trainer_client.core.workers.known_workers import Ask, KnownWorker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.wire.message_parts import Ticket
    from trainer_client.core.slot_states import SlotStates
    from trainer_client.core.upcoming import Entry, Upcoming

__all__ = ["WorkerTickets"]


class WorkerTickets:
    """The open tickets, over the given upcoming batches, slots and workers."""

    def __init__(
        self, upcoming: Upcoming, slots: SlotStates, workers: dict[int, KnownWorker], out: list[i.Instruction]
    ) -> None:
        #: How often a worker fell silent.
        self.suspected = 0
        #: How many tickets workers hold.
        self.unanswered = 0
        #: Numbers of batches that no live worker has in hand, in order.
        self.unasked: list[int] = []
        #: Whether workers came, went, fell silent or were heard again, so that `unasked` has to be computed again.
        self.look_around = True
        self._upcoming = upcoming
        self._slots = slots
        self._workers = workers
        self._out = out
        #: Counted over all workers, so that one that was buried too early and comes back never sees a number twice.
        self._pings = 0

    # --- workers come and go ---

    def note_arrival(self) -> None:
        """Note that a worker serves us now, or again, so that the workers are surveyed anew."""
        self.look_around = True

    def hear(self, worker: KnownWorker, now_s: float) -> None:
        """Note a sign of life from this worker; if it was silent, the workers are surveyed anew."""
        if worker.hear(now_s):
            self.look_around = True

    def suspect(self, worker: KnownWorker) -> None:
        """Give this worker no new wants, because it is silent or its connection is gone; late answers still count.

        Do nothing if it is suspected already.
        """
        # A transform may hold the interpreter for seconds. Counting that as a death would repeat its work on all
        # others.
        if not worker.silent:
            worker.fall_silent()
            self.look_around = True
            self.suspected += 1

    def stop_asking(self, worker: KnownWorker) -> None:
        """Give this worker no more wants until it welcomes us again."""
        worker.stop_wants()
        self.look_around = True

    def cut(self, worker: KnownWorker, *, by_us: bool = False) -> None:
        """Note that its connection is gone: void its tickets for TCP, and blame its batches.

        Nothing is blamed if we made the cut (`by_us`), or the worker drained.
        """
        # One of the batches may have killed the worker. The next builder must know at once, because proof of a death
        # may come late, or never from another host: from here a death there looks like a cut.
        self.suspect(worker)
        worker.cut_off()
        by_tcp = [ticket for ticket, ask in worker.asks.items() if not ask.in_slot]
        suspicious = not (by_us or worker.in_good_order)
        self.void(worker, by_tcp, suspicious=suspicious)
        for ask in worker.asks.values() if suspicious else ():
            entry = self._upcoming.entries.get(ask.seq)
            if entry is not None and not ask.blamed:
                ask.blame()
                entry.blame()

    def bury(self, worker: KnownWorker, *, crashed: bool) -> None:
        """Free all its tickets, because it is proved that it cannot write into any slot any more.

        If it `crashed`, its batches are blamed, except those that a cut has blamed already.
        """
        # Without proof it may only be stopped in the middle of a write, and go on when the slot is lent to another.
        self.void(worker, list(worker.asks), suspicious=crashed)
        self.look_around = True

    def void(self, worker: KnownWorker, tickets: Iterable[Ticket], *, suspicious: bool) -> None:
        """Close these tickets, which will get no answer, and free their slots.

        `suspicious` blames their batches for the worker's death, except those that a cut has blamed already.
        """
        for ticket in tickets:
            ask, entry = self.free(worker, ticket)
            if entry is not None and suspicious and not ask.blamed:
                entry.blame()

    def ping(self, worker: KnownWorker, now_s: float) -> m.Ping:
        """Return the next Ping for this worker, which asks for a sign of life and for its list of tickets."""
        self._pings += 1
        worker.note_ping(now_s)
        return m.Ping(number=self._pings)

    def excuse(self, now_s: float) -> None:
        """Restart every worker's timers, because we stalled."""
        for worker in self._workers.values():
            worker.excuse(now_s)

    # --- tickets ---

    def hold(self, seq: int, worker: KnownWorker, ticket: Ticket, now_s: float, *, in_slot: bool) -> None:
        """Note that the worker is sent this ticket, for this upcoming batch; it must hold no other for the batch."""
        # The last ping's number goes with it: a Pong to that ping, or an older one, cannot list what was sent later.
        worker.hold(ticket, Ask(seq, in_slot, now_s, self._pings))
        self.unanswered += 1
        self._upcoming.entries[seq].lend(worker.incarnation, ticket)

    def close(self, worker: KnownWorker, ticket: Ticket) -> tuple[Ask, Entry | None]:
        """Close a ticket that is answered or void; return its want, and its batch, or None if that is not upcoming.

        A batch that is still missing may be asked for again at once. The slot is the caller's to offer or release.
        Raise KeyError if the worker does not hold the ticket.
        """
        ask = worker.close(ticket)
        self.unanswered -= 1
        entry = self._upcoming.entries.get(ask.seq)
        if entry is not None:
            entry.take_ticket_back(worker.incarnation)
            self.reopen(ask.seq, entry)
        return ask, entry

    def free(self, worker: KnownWorker, ticket: Ticket) -> tuple[Ask, Entry | None]:
        """Free a ticket's slot, which nobody can write into now, and close the ticket; return what `close` does.

        That is its want, and its batch, or None if that is not upcoming. Raise AssertionError if the ticket is stale,
        or its slot is not lent, and KeyError if the worker does not hold it.
        """
        self._slots.release(ticket)
        return self.close(worker, ticket)

    def reopen(self, seq: int, entry: Entry) -> None:
        """Add this batch to `unasked` if no live worker has it in hand.

        Do nothing if it is there already, or if the next survey will compute `unasked` anyway.
        """
        if not self.look_around and self.is_unasked(entry) and seq not in self.unasked:
            insort(self.unasked, seq)

    def extend(self, seqs: range) -> None:
        """Add these new batches to `unasked`, because no worker has been asked for any of them."""
        assert not self.unasked or not seqs or self.unasked[-1] < seqs[0]
        self.unasked.extend(seqs)

    def forget_unasked(self) -> None:
        """Clear `unasked`, because the sequence was redirected to other batches."""
        self.unasked.clear()

    def leave_unasked(self, seqs: list[int]) -> None:
        """Keep only these batches as unasked, after all others were asked for or are not needed."""
        # This must not come between a change among the workers and the next survey, or the batches that the change gave
        # back would be lost.
        assert not self.look_around
        self.unasked = seqs

    def survey(self) -> list[KnownWorker]:
        """Compute `unasked` again; return the workers that may be asked, maybe none."""
        # At most once a turn: all workers that came and went in one turn are surveyed together, so that the restart of
        # a fleet costs one pass over the upcoming batches, and not one for each worker.
        assert self.look_around
        self.look_around = False
        ahead = range(self._upcoming.head, self._upcoming.end)
        self.unasked = [seq for seq in ahead if self.is_unasked(self._upcoming.entries[seq])]
        return [worker for worker in self._workers.values() if worker.may_be_asked]

    def is_unasked(self, entry: Entry) -> bool:
        """Return whether the batch is missing and only silent workers, if any, hold tickets for it."""
        # A silent worker keeps its ticket, so the batch may come from two; the first valid answer wins.
        return not entry.ready and all(self._workers[asker].silent for asker in entry.askers)

    def cancel(self, entry: Entry) -> None:
        """Send a Cancel to every connected worker that still holds a ticket for this batch."""
        for asker, ticket in entry.askers.items():
            self.send_cancel(self._workers[asker], ticket)

    def send_cancel(self, worker: KnownWorker, ticket: Ticket) -> None:
        """Send a Cancel for this ticket, if the worker is connected; it still has to answer the ticket."""
        if worker.connection_id is not None:
            self._out.append(i.ToWorker(worker.connection_id, m.Cancel(ticket=ticket)))
