"""Workers' answers to wants, and their meaning: a batch to offer or drop, or a ticket given back.

Rules: pure. An answer counts if its ticket is still awaited, if it is the requested batch and, where its bytes are
checked, if they are right; the first valid answer wins, from whichever worker. Every answer frees its ticket. A worker
that refuses a batch or sends wrong bytes is not asked for it again; one whose machine failed may be, a little later.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shared.bad_limit import counted_reasons
from shared.errors import DataError
from shared.wire.refusing import error_of
from trainer_client.core import instructions as i
from trainer_client.core.asking.wire_time import WireTime
from trainer_client.core.feed_errors import failing_machines, wrong_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.bad_limit import BadLimit
    from shared.wire import messages as m
    from shared.wire.message_parts import Ticket
    from trainer_client.core.settings import CoreSettings
    from trainer_client.core.slot_states import SlotStates
    from trainer_client.core.stream_spec import StreamSpec
    from trainer_client.core.upcoming import Entry, Upcoming
    from trainer_client.core.workers.known_workers import KnownWorker
    from trainer_client.core.workers.worker_tickets import WorkerTickets

__all__ = ["Answers", "BadRowLimit"]

#: A batch that failed this often through the fault of machines, not of the data, ends the feed.
_MOST_FAILURES = 5

#: How long to leave an overloaded worker alone, and the first pause after a machine's failure.
_BUSY_PAUSE_S = 0.25

#: A share of fewer rows than this is not judged before the end of an epoch.
_ENOUGH_ROWS = 100

#: How many bad samples the error names.
_SHOWN = 3


class Answers:
    """The handler of workers' answers."""

    def __init__(  # noqa: PLR0913, PLR0917 - the books that an answer is entered in
        self,
        settings: CoreSettings,
        spec: StreamSpec,
        upcoming: Upcoming,
        slots: SlotStates,
        tickets: WorkerTickets,
        bad_row_limit: BadRowLimit,
        out: list[i.Instruction],
    ) -> None:
        #: How long an answer usually takes: a moving average.
        self.usual_answer_s = 0.0
        #: How many batches have arrived and count.
        self.accepted = 0
        #: How many answers came too late, or for a ticket that is not open.
        self.stale = 0
        #: How many answers were not the requested batch, or had wrong bytes.
        self.rejected = 0
        #: How many open tickets a worker's list lacked.
        self.lost_on_the_way = 0
        self.wire = WireTime()
        self._settings = settings
        self._spec = spec
        self._upcoming = upcoming
        self._slots = slots
        self._tickets = tickets
        self._bad_row_limit = bad_row_limit
        self._out = out

    def receive(self, worker: KnownWorker, pushed: m.Pushed, payload: object, now_s: float) -> None:
        """Handle a pushed batch, in its slot already or in `payload`: accept, check, write, reject or drop it.

        Drop an answer to a ticket that is not open or was answered already, one of a worker without a connection, and a
        batch that is ready or not upcoming any more. Reject a batch that is not the requested one, came another way, or
        lacks its payload. Bytes in shared memory are checked only with `verify`; a payload is always written and
        checked. The worker counts as heard.
        """
        self._tickets.hear(worker, now_s)
        # The answer to a voided want may arrive after its slot was lent again: it names a ticket that the worker no
        # longer holds here, and is dropped before anything looks at the slot.
        ask = worker.asks.get(pushed.ticket)
        if ask is None or ask.arrived or worker.connection_id is None:
            self.stale += 1
            return
        if not pushed.in_slot:
            self.wire.arrive(ask.sent_s + pushed.held_us / 1e6 + worker.delay_s, now_s)
        entry = self._upcoming.entries.get(ask.seq)
        if entry is None or entry.ready:
            self._drop(worker, pushed.ticket)
        elif not self._spec.fits(pushed, entry.batch) or pushed.in_slot != ask.in_slot:
            self._reject(worker, pushed.ticket)
        elif pushed.in_slot and not self._settings.verify:  # bytes in shared memory are checked only on request
            self._accept(worker, pushed, now_s)
        elif pushed.in_slot:
            ask.arrive()
            self._out.append(i.Check(worker.connection_id, pushed))
        elif payload is None:
            self._reject(worker, pushed.ticket)
        else:
            # Not written here: until the core orders it nobody may touch the slot, and only the outcome of the check
            # makes the batch count.
            ask.arrive()
            self._out.append(i.Write(worker.connection_id, pushed, payload))

    def settle(self, worker: KnownWorker, header: m.Pushed, now_s: float, *, valid: bool) -> None:
        """Accept or reject a batch whose bytes were written or checked; drop it if it is no longer needed.

        If its ticket is not open any more, only count it as stale.
        """
        # During the check the worker may have been cut off, the reader may have moved elsewhere, or another worker's
        # batch may have arrived first.
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
        """Free the slot and ticket of a batch that is no longer needed, and count it as stale."""
        self.stale += 1
        self._tickets.free(worker, ticket)

    def _reject(self, worker: KnownWorker, ticket: Ticket) -> None:
        self.rejected += 1
        _, entry = self._tickets.free(worker, ticket)
        if entry is not None:
            entry.refuse(worker.incarnation, wrong_bytes(worker.name, entry.batch))

    def _accept(self, worker: KnownWorker, header: m.Pushed, now_s: float) -> None:
        ticket = header.ticket
        entry = self._upcoming.entries[worker.asks[ticket].seq]
        entry.arrive(header, ticket.slot)
        self.accepted += 1
        self._slots.offer(ticket)
        ask, _ = self._tickets.close(worker, ticket)
        # An exponential average: one slow answer moves it little, a slow fleet within about ten answers.
        answer_s = now_s - ask.sent_s
        self.usual_answer_s += 0.1 * (answer_s - self.usual_answer_s) if self.usual_answer_s else answer_s
        worker.note_times(header.read_us / 1e6, header.build_us / 1e6)
        held_s = header.held_us / 1e6
        worker.serve(worker.in_hand_s(ask, now_s), now_s, held_s=held_s, waiting=header.waiting)
        self._count_rows(entry, header)
        self._out.append(i.Offer(ask.seq, ticket.slot, entry.batch, header, worker.name))
        # Others that hold a ticket for it still have to answer: one may be writing into its slot at this moment.
        self._tickets.cancel(entry)

    def _count_rows(self, entry: Entry, header: m.Pushed) -> None:
        """Count the batch's rows, and fail the feed if too many samples were bad.

        Do nothing for a batch that was counted before; there is no verdict while no row at all was bad.
        """
        # This comes before the batch is offered: a consumer that got the epoch's last batch first would believe that
        # the epoch went well.
        if not entry.count_rows():
            return
        self._bad_row_limit.count(
            lap=entry.batch.lap, good=header.rows, bad=header.masked, reasons=header.reasons, first=header.reason
        )
        if not self._bad_row_limit.has_bad_rows:
            return
        lap = [upcoming for upcoming in self._upcoming.entries.values() if upcoming.batch.lap == entry.batch.lap]
        error = self._bad_row_limit.verdict(at_the_end=lap[-1].batch.last and all(upcoming.ready for upcoming in lap))
        if error is not None:
            self._out.append(i.Fail(error))

    def give_up(self, worker: KnownWorker, ticket: Ticket, now_s: float, unbuilt: m.Unbuilt | None = None) -> None:
        """Free a ticket that brings no batch: its want was cancelled, or was not built for the reason in `unbuilt`.

        A ticket that is not open counts as a sign of life only. The reason decides whether the worker gets no more
        wants, rests, is never asked for this batch again, or may be asked later; the fifth failure of machines at a
        batch fails the feed. A worker that had its oldest want for longer than its usual time counts as slower.
        """
        self._tickets.hear(worker, now_s)
        if ticket not in worker.asks:  # a refusal and a Cancel may cross
            return
        oldest = next(iter(worker.asks)) == ticket
        ask, entry = self._tickets.free(worker, ticket)
        in_hand_s = worker.in_hand_s(ask, now_s)
        # Only the oldest want is certain to have been in hand; the others may have been waiting behind it.
        if in_hand_s > worker.at_a_time * worker.service_s and oldest:
            worker.serve(in_hand_s, now_s)  # no batch came, but the worker had this in hand for at least that long
        if unbuilt is not None:
            self._take_in(worker, entry, unbuilt, now_s)

    def _take_in(self, worker: KnownWorker, entry: Entry | None, unbuilt: m.Unbuilt, now_s: float) -> None:
        """Act on the reason why a want was not built.

        A worker that drains gets no more wants, a busy one rests for 0.25 s, and after "unknown" nothing changes here.
        Failures of a machine make the batch wait, and the fifth of them fails the feed; with "exhausted" the batch is
        also blamed. For any other reason this worker is never asked for the batch again. Nothing is noted for a batch
        that is not upcoming any more (`entry` is None).
        """
        # "draining", "busy" and "unknown" are temporary, and what is the machine's fault may pass: those leave the want
        # to be asked again. All other reasons hold for this worker for good: it would refuse again, and the want would
        # go round for ever.
        match unbuilt.code:
            case "draining":
                worker.announce_leaving()
                self._tickets.stop_asking(worker)
            case "busy":
                worker.rest_until(now_s + _BUSY_PAUSE_S)
            case "unknown":
                pass  # it does not know us at the moment, and is greeted again
            # These say nothing about the data: no child could try samples, or memory or descriptors ran out.
            case "machine" | "exhausted" if entry is not None:
                if unbuilt.code == "exhausted":  # the next builder finds out whose fault that is
                    entry.blame()
                entry.fail_at(f"{worker.name}: {unbuilt.got}", _BUSY_PAUSE_S, now_s)
                if len(entry.failures) >= _MOST_FAILURES:
                    self._out.append(i.Fail(failing_machines(entry, error_of(unbuilt, unbuilt.where))))
            case _ if entry is not None:
                entry.refuse(worker.incarnation, error_of(unbuilt, unbuilt.where))

    def reconcile(self, worker: KnownWorker, pong: m.Pong, now_s: float) -> None:
        """Compare the worker's list of our tickets with ours: free those that it lacks, cancel those we do not know.

        Tickets that were sent after the ping, and those whose payload is being checked, are not freed. The worker is
        heard, and owes no list any more.
        """
        self._tickets.hear(worker, now_s)
        # A want, or its answer, may be lost with a connection that neither side saw end. One that was sent after the
        # ping may be missing because it is still on its way, so only older ones count as lost, and of these none whose
        # payload is being checked at this moment.
        held = frozenset(pong.tickets)
        for ticket, ask in list(worker.asks.items()):
            if ask.after_ping < pong.number and ticket not in held and not ask.arrived:
                self.lost_on_the_way += 1
                self._tickets.free(worker, ticket)
        worker.note_list()
        for ticket in pong.tickets:
            if ticket not in worker.asks:
                self._tickets.send_cancel(worker, ticket)


class BadRowLimit:
    """Counts of good and bad rows, judged against `limit`: stops a job that would train on nothing and succeed.

    A limit that is a share compares the masked rows with all rows delivered since attaching, once there are enough of
    them or the epoch ends; a single batch never decides. A limit that is a number compares the masked rows of one
    epoch, and decides at once.
    """

    def __init__(self, limit: BadLimit) -> None:
        self._limit = limit
        self._batches = self._rows = self._bad = 0
        self._reasons: Counter[str] = Counter()
        self._bad_of_lap: Counter[int] = Counter()
        self._first: list[str] = []

    @property
    def has_bad_rows(self) -> bool:
        """Return whether any row was bad; if not, there is no need for a `verdict`."""
        return self._bad > 0

    def count(self, *, lap: int, good: int, bad: int, reasons: Iterable[tuple[str, int]], first: str) -> None:
        """Count the rows of another batch of this lap; `first` names its first bad sample, if it has one.

        The first three different names, and the reasons of bad rows, are kept for the error.
        """
        self._batches += 1
        self._rows += good + bad
        if not bad:
            return
        self._bad += bad
        self._bad_of_lap[lap] += bad
        self._reasons.update(dict(reasons))
        if first and first not in self._first and len(self._first) < _SHOWN:
            self._first.append(first)

    def verdict(self, *, at_the_end: bool) -> DataError | None:
        """Return the error that stops the job if too many rows are bad, else None.

        A limit that is a share is judged over all laps, once there are two batches with 100 rows together; a limit that
        is a number of samples is judged for each lap by itself, at any time. `at_the_end` says that the epoch has no
        more rows, so that a share of fewer rows, still of two batches, is judged as well.
        """
        # A share of few rows says little: with one bad sample in a first batch of sixteen, 6 % would be bad.
        if self._limit.samples is None:
            enough = self._batches > 1 and (at_the_end or self._rows >= _ENOUGH_ROWS)
            exceeded = enough and self._limit.is_exceeded(self._bad, self._rows)
        else:
            exceeded = any(self._limit.is_exceeded(bad, self._rows) for bad in self._bad_of_lap.values())
        return self._error() if exceeded else None

    def _error(self) -> DataError:
        shown = f": {'; '.join(self._first)}" if self._first else ""
        return DataError(
            expected=f"at most {self._limit} of the rows to be unusable (max_bad)",
            got=f"{self._bad} of the first {self._rows} ({counted_reasons(self._reasons)}){shown}",
            where="feed",
            remedy="quarantine.jsonl in the state folder names each sample: mend the data or the transform, or raise "
            "max_bad in [job].",
        )
