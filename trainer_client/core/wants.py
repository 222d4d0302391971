"""Which batch is asked of which worker, and when again.

Rules, each from an interleaving that failed without it:
- A want goes to the worker that should be through with its unanswered work first; never twice to one that already has
  it or refused it. Among equals another order holds for each trainer, so that they do not all ask the same one.
- Silent is suspect, not dead: a silent worker gets nothing new, its wants are asked elsewhere in the order of the
  line, and what it still pushes counts if it is the first valid answer. Each further asking of one want waits twice
  as long as the last.
- Its slots stay out of the pool until it answers or is proved dead (see slot_states).
- A proved death raises `attempt` of the wants that the worker held: the next builder tries their samples in a child
  process first. So does a cut: nobody may ever tell what it died of.
- The head of the line always has a slot: the furthest ready batch makes room, else the reserve slot serves, by TCP.
- A worker with nothing to do takes over wants that another one has not begun and will not soon.
- At most one want in HEDGED_SHARE is hedged: asked of a second worker although the first one is well.
Pure. The work of one decision depends on what changed, and on the few workers that this trainer talks to, never on the
size of the fleet.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.wire import messages as m
from trainer_client.core import instructions as i
from trainer_client.core.failures import failing_machines, refusal, wrong_bytes
from trainer_client.core.workers import Ask, KnownWorker, least_busy, longest_waiting, usual_pace_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shared.errors import StokerError
    from shared.wire.parts import Ticket
    from trainer_client.core.bad_rows import BadRows
    from trainer_client.core.settings import CoreSettings
    from trainer_client.core.slot_states import SlotStates
    from trainer_client.core.stream_spec import StreamSpec
    from trainer_client.core.upcoming import Entry, Upcoming

__all__ = ["WantCounts", "Wants"]

#: At most one want in so many is asked of a second worker although the first is well.
HEDGED_SHARE = 20

#: A want that failed so often through the fault of machines, not of the data, ends the feed.
_MOST_FAILURES = 5

#: How long a worker that has too much to do is left alone.
_BUSY_PAUSE_S = 0.25


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
    taken_over: int = 0
    suspected: int = 0


class Wants:
    """The wants that are out, over the line, the slots and the workers that it is given."""

    def __init__(  # noqa: PLR0913, PLR0917 - the books that a want is entered in
        self,
        settings: CoreSettings,
        spec: StreamSpec,
        prefetch: int,
        upcoming: Upcoming,
        slots: SlotStates,
        workers: dict[int, KnownWorker],
        bad_rows: BadRows,
        out: list[i.Instruction],
    ) -> None:
        self.counts = WantCounts()
        self.prefetch = prefetch
        #: Whether something was not asked for want of a slot.
        self.short_of_slots = False
        #: Tickets that workers hold.
        self.unanswered = 0
        self._settings = settings
        self._spec = spec
        self._upcoming = upcoming
        self._slots = slots
        self._workers = workers
        self._bad_rows = bad_rows
        self._out = out
        #: Numbers of the line that no worker has in hand that was heard lately, in order.
        self._unasked: list[int] = []
        self._live: list[KnownWorker] = []
        #: Workers came, went, fell silent or were heard again: whom to ask has to be seen anew.
        self._look_around = True
        self._retracting: set[int] = set()
        self._usual_answer_s = 0.0
        #: Counted over all workers: one that is buried too early and comes back must not meet its old numbers again.
        self._pings = 0

    def somebody_can(self, refused: Mapping[int, StokerError]) -> bool:
        """Whether a worker that was heard lately may still build what these refused."""
        return any(one.may_be_asked and one.incarnation not in refused for one in self._workers.values())

    def all_refuse(self, refused: Mapping[int, StokerError]) -> bool:
        """Whether everyone who is there refused."""
        return bool(refused) and bool(self._workers) and self._workers.keys() <= refused.keys()

    # --- workers ---

    def note_arrival(self) -> None:
        """A worker serves us from now on, or again."""
        self._look_around = True

    def hear(self, worker: KnownWorker, now_s: float) -> None:
        """Something came from a worker."""
        worker.heard_s = now_s
        if worker.silent and not worker.cut:
            worker.silent = False
            self._look_around = True

    def suspect(self, worker: KnownWorker) -> None:
        """Nothing came from it for too long, or its connection is gone."""
        if not worker.silent:
            worker.silent = True
            self._look_around = True
            self.counts.suspected += 1

    def stop_asking(self, worker: KnownWorker) -> None:
        """It takes nothing new."""
        worker.takes_no_wants = True
        self._look_around = True

    def cut(self, worker: KnownWorker, *, by_us: bool = False) -> None:
        """Its connection is gone, and with it what was to come by TCP."""
        self.suspect(worker)
        worker.cut = True
        by_tcp = [ticket for ticket, ask in worker.asks.items() if not ask.in_slot]
        # It may have died of one of these: whoever is asked next must know before proof is there, if it ever is.
        suspicious = not (by_us or worker.in_good_order)
        self._void(worker, by_tcp, suspicious=suspicious)
        for ask in worker.asks.values() if suspicious else ():
            entry = self._upcoming.entries.get(ask.seq)
            if entry is not None and not ask.blamed:
                ask.blamed = True
                entry.attempt += 1

    def bury(self, worker: KnownWorker, *, crashed: bool) -> None:
        """Proved: it can write nowhere any more."""
        self._void(worker, list(worker.asks), suspicious=crashed)
        self._look_around = True

    def _void(self, worker: KnownWorker, tickets: Iterable[Ticket], *, suspicious: bool) -> None:
        """No answer will come to these."""
        for ticket in tickets:
            self._slots.release(ticket)
            ask, entry = self._close(worker, ticket)
            if entry is not None:
                entry.attempt += suspicious and not ask.blamed

    def ping(self, worker: KnownWorker, now_s: float) -> m.Ping:
        """The next sign of life to ask for."""
        self._pings += 1
        worker.pinged_s = now_s
        return m.Ping(number=self._pings)

    def excuse(self, now_s: float) -> None:
        """We stalled, so nobody is silent or slow for it: all timers start anew."""
        for worker in self._workers.values():
            worker.heard_s = worker.answered_s = now_s
            for ask in worker.asks.values():
                ask.sent_s = now_s

    # --- answers ---

    def receive(self, worker: KnownWorker, came: m.Pushed, payload: object, now_s: float) -> None:
        """A batch is said to be in its slot, or in this payload."""
        self.hear(worker, now_s)
        ask = worker.asks.get(came.ticket)
        if ask is None or ask.arrived or worker.connection_id is None:
            self.counts.stale += 1
            return
        entry = self._upcoming.entries.get(ask.seq)
        if entry is None or entry.ready:
            self._drop(worker, came.ticket)
        elif not self._spec.fits(came, entry.batch) or came.in_slot != ask.in_slot:
            self._reject(worker, came.ticket)
        elif came.in_slot and not self._settings.verify:
            self._accept(worker, came, now_s)
        elif came.in_slot:
            ask.arrived = True
            self._out.append(i.Check(worker.connection_id, came))
        elif payload is None:
            self._reject(worker, came.ticket)
        else:
            ask.arrived = True
            self._out.append(i.Write(worker.connection_id, came, payload))

    def settle(self, worker: KnownWorker, header: m.Pushed, now_s: float, *, valid: bool) -> None:
        """The batch was written, or looked at."""
        ask = worker.asks.get(header.ticket)
        if ask is None:
            self.counts.stale += 1
            return
        entry = self._upcoming.entries.get(ask.seq)
        if entry is None or entry.ready:
            self._drop(worker, header.ticket)
        elif valid:
            self._accept(worker, header, now_s)
        else:
            self._reject(worker, header.ticket)

    def _drop(self, worker: KnownWorker, ticket: Ticket) -> None:
        """Nobody needs it any more."""
        self.counts.stale += 1
        self._slots.release(ticket)
        self._close(worker, ticket)

    def _reject(self, worker: KnownWorker, ticket: Ticket) -> None:
        self.counts.rejected += 1
        self._slots.release(ticket)
        _, entry = self._close(worker, ticket)
        if entry is not None:
            entry.refused[worker.incarnation] = wrong_bytes(worker.name, entry.batch)

    def _accept(self, worker: KnownWorker, header: m.Pushed, now_s: float) -> None:
        ticket = header.ticket
        entry = self._upcoming.entries[worker.asks[ticket].seq]
        entry.header, entry.slot = header, ticket.slot
        self._slots.offer(ticket)
        ask, _ = self._close(worker, ticket)
        answer_s = now_s - ask.sent_s
        self._usual_answer_s += 0.1 * (answer_s - self._usual_answer_s) if self._usual_answer_s else answer_s
        worker.serve(worker.in_hand_s(ask, now_s), now_s)
        self._count_rows(entry, header)
        self._out.append(i.Offer(ask.seq, ticket.slot, entry.batch, header))
        self._cancel(entry)

    def _count_rows(self, entry: Entry, header: m.Pushed) -> None:
        """Before a consumer can have the last batch of an epoch it is to be known whether that was worth anything."""
        if entry.counted:
            return
        entry.counted = True
        self._bad_rows.count(good=header.rows, bad=header.masked, reason=header.reason)
        lap = [one for one in self._upcoming.entries.values() if one.batch.lap == entry.batch.lap]
        error = self._bad_rows.verdict(at_the_end=lap[-1].batch.last and all(one.ready for one in lap))
        if error is not None:
            self._out.append(i.Fail(error))

    def give_up(self, worker: KnownWorker, ticket: Ticket, now_s: float, unbuilt: m.Unbuilt | None = None) -> None:
        """The worker gives the credit back without a batch: cancelled, or for the reason that it names."""
        self.hear(worker, now_s)
        if ticket not in worker.asks:
            return
        self._slots.release(ticket)
        oldest = next(iter(worker.asks)) == ticket
        ask, entry = self._close(worker, ticket)
        in_hand_s = worker.in_hand_s(ask, now_s)
        if in_hand_s > worker.service_s and oldest:
            worker.serve(in_hand_s, now_s)  # cancelled, but it had this in hand for at least so long
        if unbuilt is not None:
            self._take_in(worker, entry, unbuilt, now_s)

    def _take_in(self, worker: KnownWorker, entry: Entry | None, unbuilt: m.Unbuilt, now_s: float) -> None:
        """Why it was not built: some reasons pass, some are the machine's, the others hold for this worker."""
        if unbuilt.code == "draining":
            worker.in_good_order = True
            self.stop_asking(worker)
        elif unbuilt.code == "busy":
            worker.busy_until_s = now_s + _BUSY_PAUSE_S
        elif unbuilt.code != "unknown" and entry is not None:
            error = refusal(unbuilt, unbuilt.where)
            if unbuilt.code == "machine":
                entry.failures.append(f"{worker.name}: {unbuilt.got}")
                entry.again_s = now_s + _BUSY_PAUSE_S * len(entry.failures)
                if len(entry.failures) >= _MOST_FAILURES:
                    self._out.append(i.Fail(failing_machines(entry, error)))
            else:
                entry.refused[worker.incarnation] = error

    def reconcile(self, worker: KnownWorker, pong: m.Pong, now_s: float) -> None:
        """The worker lists what it holds of ours: what is not there was lost on the way, what should not be is void."""
        self.hear(worker, now_s)
        held = frozenset(pong.tickets)
        for ticket, ask in list(worker.asks.items()):
            if ask.after_ping < pong.number and ticket not in held and not ask.arrived:
                self.counts.lost_on_the_way += 1
                self._slots.release(ticket)
                self._close(worker, ticket)
        worker.unlisted = False
        if worker.connection_id is not None:
            void = (ticket for ticket in pong.tickets if ticket not in worker.asks)
            self._out.extend(i.ToWorker(worker.connection_id, m.Cancel(ticket=ticket)) for ticket in void)

    def _close(self, worker: KnownWorker, ticket: Ticket) -> tuple[Ask, Entry | None]:
        """The ticket is answered, or void: whoever else holds the want was waited for already."""
        ask = worker.asks.pop(ticket)
        self.unanswered -= 1
        entry = self._upcoming.entries.get(ask.seq)
        if entry is not None:
            entry.askers.pop(worker.incarnation, None)
            entry.again_s = 0.0
            self._reopen(ask.seq, entry)
        return ask, entry

    def _reopen(self, seq: int, entry: Entry) -> None:
        if not self._look_around and self._is_unasked(entry) and seq not in self._unasked:
            insort(self._unasked, seq)

    # --- the line ---

    def extend(self, seqs: range) -> None:
        """These are in the line from now on."""
        self._unasked.extend(seqs)

    def refocus(self) -> None:
        """Another line is read from now on: what was asked for the last one is void."""
        for worker in self._workers.values():
            for ticket in worker.asks:
                self._send_cancel(worker, ticket)
        self._unasked.clear()
        self._retracting.clear()

    def take_back(self, seq: int, *, won: bool) -> None:
        """An offered batch was taken back, or the consumer was faster."""
        self._retracting.discard(seq)
        entry = self._upcoming.entries.get(seq)
        if won and entry is not None:
            self._slots.take_back(entry.slot)
            entry.header, entry.slot = None, -1
            self.counts.retracted += 1
            self._reopen(seq, entry)

    # --- asking ---

    def decide(self, now_s: float) -> None:
        """Ask for what is wanted and not asked of anybody who was heard lately, in the order of the line."""
        if self._look_around:
            self._see_who_is_there()
        self._hedge(now_s)
        self._ask(now_s)
        self._rebalance(now_s)

    def _see_who_is_there(self) -> None:
        self._look_around = False
        self._live = [worker for worker in self._workers.values() if worker.may_be_asked]
        upcoming = self._upcoming
        self._unasked = [seq for seq in range(upcoming.head, upcoming.end) if self._is_unasked(upcoming.entries[seq])]

    def _is_unasked(self, entry: Entry) -> bool:
        return not entry.ready and all(self._workers[one].silent for one in entry.askers)

    def _ask(self, now_s: float) -> None:
        self.short_of_slots = False
        if not self._unasked:
            return
        upcoming, left = self._upcoming, []
        horizon, usual_s = upcoming.head + self.prefetch, usual_pace_s(self._live)
        for at, seq in enumerate(self._unasked):
            entry = upcoming.entries.get(seq)
            if entry is None or entry.ready:
                continue
            worker = least_busy(self._live, entry, usual_s, now_s) if seq < horizon and now_s >= entry.again_s else None
            if worker is None:
                left.append(seq)
                continue
            ticket = self._lend_slot_for(seq)
            if ticket is None:
                self.short_of_slots = True
                left += self._unasked[at:]
                break
            if entry.askers:  # the second time and later: wait twice as long before the next
                entry.patience_s = 2 * entry.patience_s or self._spec.heartbeat_timeout_s
                entry.again_s = now_s + entry.patience_s
            self._send(seq, worker, ticket, now_s)
        self._unasked = left

    def _rebalance(self, now_s: float) -> None:
        """A worker that has nothing to do takes over what waits longest at another one, but not what that builds."""
        donors = [worker for worker in self._workers.values() if len(worker.asks) > 1]
        idle = [worker for worker in self._live if not worker.asks and now_s >= worker.busy_until_s] if donors else []
        for thief in sorted(idle, key=lambda one: one.service_s):
            enough_s = max(self._settings.hedge_floor_s, 3 * thief.pace_s(now_s))
            found = longest_waiting(donors, thief, self._upcoming.entries, enough_s, now_s)
            ticket = self._slots.lend() if found is not None else None
            if found is None or ticket is None:
                return  # slower ones would find less
            seq, donor, given = found
            self._send_cancel(donor, given)
            self.counts.taken_over += 1
            self._send(seq, thief, ticket, now_s)

    def _send(self, seq: int, worker: KnownWorker, ticket: Ticket, now_s: float) -> None:
        entry = self._upcoming.entries[seq]
        in_slot = worker.in_slot and ticket.slot != self._slots.reserve
        again = entry.attempt > 0 or entry.patience_s > 0 or bool(entry.refused) or entry.hedged
        worker.asks[ticket] = Ask(seq, in_slot, now_s, self._pings)
        self.unanswered += 1
        entry.askers[worker.incarnation] = ticket
        self.counts.asked += 1
        self.counts.asked_again += again
        assert worker.connection_id is not None
        urgent = again and seq == self._upcoming.head
        want = self._want(entry, worker, ticket, in_slot=in_slot, urgent=urgent)
        self._out.append(i.ToWorker(worker.connection_id, want))

    def _want(self, entry: Entry, worker: KnownWorker, ticket: Ticket, *, in_slot: bool, urgent: bool) -> m.Want:
        batch, spec = entry.batch, self._spec
        return m.Want(
            job=spec.job,
            stream=spec.stream,
            epoch=batch.position.epoch,
            number=batch.number,
            empty=batch.empty,
            group=batch.position.group,
            plan_digest=spec.plan_digest,
            attempt=min(entry.attempt, 1000),
            trainer=self._settings.incarnation,
            worker=worker.incarnation,
            ticket=ticket,
            in_slot=in_slot,
            urgent=urgent,
        )

    # --- slots for the head ---

    def _lend_slot_for(self, seq: int) -> Ticket | None:
        """A free slot; the head makes room for itself if there is none."""
        ticket = self._slots.lend()
        if ticket is not None or seq != self._upcoming.head or self._retracting:
            return ticket
        ready = [later for later, entry in self._upcoming.entries.items() if entry.ready]
        if ready:
            furthest = max(ready)
            self._retracting.add(furthest)
            self._out.append(i.TakeBack(furthest))
            return None
        return self._slots.lend_reserve() or self._reclaim_slot()

    def _reclaim_slot(self) -> Ticket | None:
        """A slot that a silent worker has, but cannot write into: what it pushes by TCP will be stale."""
        found = [
            (self._is_wanted(ask.seq), -ask.seq, worker, ticket)
            for worker in self._workers.values()
            for ticket, ask in worker.asks.items()
            if worker.silent and not ask.in_slot
        ]
        if not found:
            return None
        _, _, worker, ticket = min(found, key=lambda each: each[:2])
        self._void(worker, [ticket], suspicious=False)
        self._send_cancel(worker, ticket)
        return self._slots.lend() or self._slots.lend_reserve()

    def _is_wanted(self, seq: int) -> bool:
        entry = self._upcoming.entries.get(seq)
        return entry is not None and not entry.ready

    def _hedge(self, now_s: float) -> None:
        head = self._upcoming.head
        entry = self._upcoming.entries.get(head)
        if entry is None or entry.ready or entry.hedged or not entry.askers:
            return
        if self.counts.hedged * HEDGED_SHARE >= self.counts.asked:
            return
        latest_s = max(self._workers[one].asks[ticket].sent_s for one, ticket in entry.askers.items())
        if now_s - latest_s < max(self._settings.hedge_floor_s, 3 * self._usual_answer_s):
            return
        worker = least_busy(self._live, entry, usual_pace_s(self._live), now_s)
        ticket = self._lend_slot_for(head) if worker is not None else None
        if worker is not None and ticket is not None:
            entry.hedged = True
            self.counts.hedged += 1
            self._send(head, worker, ticket, now_s)

    def _cancel(self, entry: Entry) -> None:
        """Whoever else has it need not build it."""
        for one, ticket in entry.askers.items():
            self._send_cancel(self._workers[one], ticket)

    def _send_cancel(self, worker: KnownWorker, ticket: Ticket) -> None:
        if worker.connection_id is not None:
            self._out.append(i.ToWorker(worker.connection_id, m.Cancel(ticket=ticket)))
