"""What workers answer to wants, and what that means: a batch to offer, one to drop, a ticket given back.

Rules: pure. An answer counts if its ticket is still awaited, if it is the batch that was asked for and, where its bytes
are checked, if they are right; the first valid answer wins, whoever sends it. Every answer frees its ticket. A worker
that refuses a batch or sends wrong bytes is not asked for it again; one whose machine failed may be, a little later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire import messages as m
from shared.wire.refusals import error_of
from trainer_client.core import instructions as i
from trainer_client.core.failures import failing_machines, wrong_bytes

if TYPE_CHECKING:
    from shared.wire.parts import Ticket
    from trainer_client.core.asking.bad_rows import BadRows
    from trainer_client.core.settings import CoreSettings
    from trainer_client.core.slot_states import SlotStates
    from trainer_client.core.stream_spec import StreamSpec
    from trainer_client.core.upcoming import Entry, Upcoming
    from trainer_client.core.workers.known_workers import KnownWorker
    from trainer_client.core.workers.worker_tickets import WorkerTickets

__all__ = ["Answers"]

#: A want that failed this often through the fault of machines, not of the data, ends the feed.
_MOST_FAILURES = 5

#: What says nothing about the data: no child could try samples, or memory or descriptors ran out.
_OF_MACHINES = frozenset(("machine", "exhausted"))

#: How long to leave a worker alone that has too much to do.
_BUSY_PAUSE_S = 0.25


class Answers:
    """Takes answers in."""

    def __init__(  # noqa: PLR0913, PLR0917 - the books that an answer is entered in
        self,
        settings: CoreSettings,
        spec: StreamSpec,
        upcoming: Upcoming,
        slots: SlotStates,
        tickets: WorkerTickets,
        bad_rows: BadRows,
        out: list[i.Instruction],
    ) -> None:
        #: About how long an answer takes.
        self.usual_answer_s = 0.0
        #: Answers that came too late, or that nobody waits for.
        self.stale = 0
        #: Answers that are not the batch that was asked for.
        self.rejected = 0
        #: Tickets that a worker's list lacked.
        self.lost_on_the_way = 0
        self._settings = settings
        self._spec = spec
        self._upcoming = upcoming
        self._slots = slots
        self._tickets = tickets
        self._bad_rows = bad_rows
        self._out = out

    def receive(self, worker: KnownWorker, came: m.Pushed, payload: object, now_s: float) -> None:
        """Take in that a batch is in its slot, or in this payload.

        The answer to a cancelled or voided want may arrive after its slot was lent again: it names a ticket that the
        worker no longer holds here, and is dropped before anything looks at the slot.
        """
        self._tickets.hear(worker, now_s)
        ask = worker.asks.get(came.ticket)
        if ask is None or ask.arrived or worker.connection_id is None:
            self.stale += 1
            return
        entry = self._upcoming.entries.get(ask.seq)
        if entry is None or entry.ready:
            self._drop(worker, came.ticket)
        elif not self._spec.fits(came, entry.batch) or came.in_slot != ask.in_slot:
            self._reject(worker, came.ticket)
        elif came.in_slot and not self._settings.verify:
            self._accept(worker, came, now_s)
        elif came.in_slot:
            ask.arrive()
            self._out.append(i.Check(worker.connection_id, came))
        elif payload is None:
            self._reject(worker, came.ticket)
        else:
            ask.arrive()
            self._out.append(i.Write(worker.connection_id, came, payload))

    def settle(self, worker: KnownWorker, header: m.Pushed, now_s: float, *, valid: bool) -> None:
        """Take in that the batch was written, or checked.

        While a payload was checked, the reader may have gone elsewhere, or another worker's batch may have come first.
        """
        ask = worker.asks.get(header.ticket)
        if ask is None:
            self.stale += 1
            return
        entry = self._upcoming.entries.get(ask.seq)
        if entry is None or entry.ready:
            self._drop(worker, header.ticket)
        elif valid:
            self._accept(worker, header, now_s)
        else:
            self._reject(worker, header.ticket)

    def _drop(self, worker: KnownWorker, ticket: Ticket) -> None:
        """Free the ticket of a batch that nobody needs any more."""
        self.stale += 1
        self._slots.release(ticket)
        self._tickets.close(worker, ticket)

    def _reject(self, worker: KnownWorker, ticket: Ticket) -> None:
        self.rejected += 1
        self._slots.release(ticket)
        _, entry = self._tickets.close(worker, ticket)
        if entry is not None:
            entry.refuse(worker.incarnation, wrong_bytes(worker.name, entry.batch))

    def _accept(self, worker: KnownWorker, header: m.Pushed, now_s: float) -> None:
        ticket = header.ticket
        entry = self._upcoming.entries[worker.asks[ticket].seq]
        entry.arrive(header, ticket.slot)
        self._slots.offer(ticket)
        ask, _ = self._tickets.close(worker, ticket)
        answer_s = now_s - ask.sent_s
        self.usual_answer_s += 0.1 * (answer_s - self.usual_answer_s) if self.usual_answer_s else answer_s
        worker.serve(worker.in_hand_s(ask, now_s), now_s)
        self._count_rows(entry, header)
        self._out.append(i.Offer(ask.seq, ticket.slot, entry.batch, header))
        self._tickets.cancel(entry)

    def _count_rows(self, entry: Entry, header: m.Pushed) -> None:
        """Judge the rows before a consumer can take the epoch's last batch and believe that all went well."""
        if not entry.count_rows():
            return
        self._bad_rows.count(
            lap=entry.batch.lap, good=header.rows, bad=header.masked, reasons=header.reasons, first=header.reason
        )
        if not self._bad_rows.found:
            return
        lap = [one for one in self._upcoming.entries.values() if one.batch.lap == entry.batch.lap]
        error = self._bad_rows.verdict(at_the_end=lap[-1].batch.last and all(one.ready for one in lap))
        if error is not None:
            self._out.append(i.Fail(error))

    def give_up(self, worker: KnownWorker, ticket: Ticket, now_s: float, unbuilt: m.Unbuilt | None = None) -> None:
        """Take the ticket back without a batch: it was cancelled, or could not be built for the reason named.

        A refusal and a Cancel may cross, so a ticket that is closed already is no error.
        """
        self._tickets.hear(worker, now_s)
        if ticket not in worker.asks:
            return
        self._slots.release(ticket)
        oldest = next(iter(worker.asks)) == ticket
        ask, entry = self._tickets.close(worker, ticket)
        in_hand_s = worker.in_hand_s(ask, now_s)
        if in_hand_s > worker.service_s and oldest:
            worker.serve(in_hand_s, now_s)  # cancelled, but it had this in hand for at least that long
        if unbuilt is not None:
            self._take_in(worker, entry, unbuilt, now_s)

    def _take_in(self, worker: KnownWorker, entry: Entry | None, unbuilt: m.Unbuilt, now_s: float) -> None:
        """Draw the consequence of why it was not built.

        Some reasons pass, some are the machine's. All others hold for this worker for good: it would refuse again, and
        the want would go round for ever.
        """
        if unbuilt.code == "draining":
            worker.announce_leaving()
            self._tickets.stop_asking(worker)
        elif unbuilt.code == "busy":
            worker.rest_until(now_s + _BUSY_PAUSE_S)
        elif unbuilt.code != "unknown" and entry is not None:
            error = error_of(unbuilt, unbuilt.where)
            if unbuilt.code in _OF_MACHINES:
                if unbuilt.code == "exhausted":  # the next builder finds out whose fault that is
                    entry.blame()
                entry.fail_at(f"{worker.name}: {unbuilt.got}", _BUSY_PAUSE_S, now_s)
                if len(entry.failures) >= _MOST_FAILURES:
                    self._out.append(i.Fail(failing_machines(entry, error)))
            else:
                entry.refuse(worker.incarnation, error)

    def reconcile(self, worker: KnownWorker, pong: m.Pong, now_s: float) -> None:
        """Compare the worker's list of our tickets with ours: a missing one was lost, and an unknown one is void.

        A want, or its answer, may be lost with a connection that neither side saw end. A want that was sent after the
        ping may be missing because it is still on its way, so only older ones count.
        """
        self._tickets.hear(worker, now_s)
        held = frozenset(pong.tickets)
        for ticket, ask in list(worker.asks.items()):
            if ask.after_ping < pong.number and ticket not in held and not ask.arrived:
                self.lost_on_the_way += 1
                self._slots.release(ticket)
                self._tickets.close(worker, ticket)
        worker.note_list()
        if worker.connection_id is not None:
            void = (ticket for ticket in pong.tickets if ticket not in worker.asks)
            self._out.extend(i.ToWorker(worker.connection_id, m.Cancel(ticket=ticket)) for ticket in void)
