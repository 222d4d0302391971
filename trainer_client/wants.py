"""Which batch is asked of which worker, and when again: every decision of a trainer, without a socket or a clock.

Two doors: `note(event, now_s)` whenever something happens, then `decide(now_s) -> instructions`. Rules, each from an
interleaving that failed without it:
- A want goes to the worker that should be through with its unanswered work first; never twice to one that already has
  it or refused it.
- Silent is suspect, not dead: a silent worker gets nothing new, its wants are asked elsewhere in the order of the
  line, and what it still pushes counts if it is the first valid answer. Each further asking of one want waits twice
  as long as the last.
- Its slots stay out of the pool until it answers or is proved dead (see ledger).
- A proved death raises `attempt` of the wants that the worker held: the next builder builds them in a child process.
- The head of the line always has a slot: the furthest ready batch makes room, else the reserve slot serves, by TCP.
- A worker with nothing to do takes over wants that another one has not begun and will not soon.
- At most one want in HEDGED_SHARE is hedged: asked of a second worker although the first one is well.
It must not know messages, sockets, memory or TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import LostError, StokerError
from trainer_client import want_events as e
from trainer_client.want_records import QUICKEST_S, Ask, Entry, WantCounts, WantSettings, Worker

if TYPE_CHECKING:
    from shared.messages import Ticket
    from trainer_client.course import Target
    from trainer_client.ledger import Ledger

__all__ = ["WantCounts", "WantSettings", "Wants"]

#: At most one want in so many is asked of a second worker although the first is well.
HEDGED_SHARE = 20


class Wants:
    """The state behind the door."""

    def __init__(self, settings: WantSettings, ledger: Ledger) -> None:
        self._settings = settings
        self._ledger = ledger
        self._workers: dict[int, Worker] = {}
        #: By number; from the head on, as far as the course is known.
        self._entries: dict[int, Entry] = {}
        self._head = 0
        self._end = 0
        self._usual_answer_s = 0.0
        #: Counted over all workers: one that is buried too early and comes back must not meet its old numbers again.
        self._pings = 0
        self._seen_s = float("inf")
        self._alone_since_s: float | None = None
        self._failed = False
        self._tried: dict[str, str] = {}
        self._retracting: set[int] = set()
        self._out: list[e.Instruction] = []
        #: Whether something was not asked for want of a slot.
        self.short_of_slots = False
        self.counts = WantCounts()
        self._doors = {
            e.WorkerUp: self._worker_up,
            e.Heard: self._heard,
            e.WorkerDead: self._worker_dead,
            e.WorkerCut: self._worker_cut,
            e.WorkerLeft: self._worker_left,
            e.Arrived: self._arrived,
            e.GaveUp: self._gave_up,
            e.Held: self._held,
            e.Extended: self._extended,
            e.Refocused: self._refocused,
            e.Consumed: self._consumed,
            e.Retracted: self._retracted,
            e.SlotReturned: self._nothing,
            e.Ticked: self._ticked,
        }

    def note(self, event: e.Event, now_s: float) -> None:
        """Take in a fact."""
        if now_s - self._seen_s > self._settings.heartbeat_timeout_s / 2:
            self._excuse(now_s)
        self._seen_s = now_s
        self._doors[type(event)](event, now_s)  # type: ignore[operator]

    def decide(self, now_s: float) -> list[e.Instruction]:
        """What is to be done after all that was noted; a worker that is gone needs no order any more."""
        self._hedge(now_s)
        self._ask(now_s)
        self._rebalance(now_s)
        self._watch_head(now_s)
        out, self._out = self._out, []
        return out

    def expects(self, worker: int, ticket: Ticket) -> bool:
        """Whether this worker's answer to this ticket is awaited; anything else is stale."""
        return worker in self._workers and ticket in self._workers[worker].asks

    def is_needed(self, worker: int, ticket: Ticket) -> bool:
        """Whether an expected batch would still be used."""
        return self._is_open(self._workers[worker].asks[ticket].seq)

    def target(self, worker: int, ticket: Ticket) -> Target | None:
        """What the ticket was lent for, if it is still wanted."""
        entry = self._entries.get(self._workers[worker].asks[ticket].seq)
        return entry.target if entry else None

    def room(self) -> int:
        """How many more targets may be taken in before the horizon is reached."""
        return self._head + self._settings.prefetch - self._end

    @property
    def head(self) -> int:
        """The next number that is to be consumed, as far as was noted."""
        return self._head

    def is_well_asked(self) -> bool:
        """Whether workers have at least half of what may be asked for still to answer."""
        unanswered = sum(len(worker.asks) for worker in self._workers.values() if worker.live)
        return 2 * unanswered >= self._settings.prefetch

    def wake_at_s(self, now_s: float) -> float:
        """When to come back with `Ticked` at the latest."""
        return now_s + self._settings.heartbeat_timeout_s / 8

    def silent_writers(self) -> list[int]:
        """Workers that are not live but hold slots that they could write into: is there proof of death?"""
        return [
            one
            for one, worker in self._workers.items()
            if not worker.live and any(ask.in_slot for ask in worker.asks.values())
        ]

    # --- workers ---

    def _worker_up(self, event: e.WorkerUp, now_s: float) -> None:
        known = self._workers.get(event.worker)
        if known is None:
            self._workers[event.worker] = Worker(event.name, event.in_slot, heard_s=now_s, pinged_s=now_s)
        else:  # the same incarnation after a cut: what it still holds it will list in its next pong
            known.silent, known.leaving, known.heard_s, known.in_slot = False, False, now_s, event.in_slot
            known.unlisted = True
        self._tried[event.name] = "alive"

    def _heard(self, event: e.Heard, now_s: float) -> None:
        worker = self._workers.get(event.worker)
        if worker is not None:
            worker.heard_s, worker.silent = now_s, False
            self._tried[worker.name] = "leaving" if worker.leaving else "alive"

    def _worker_dead(self, event: e.WorkerDead, now_s: float) -> None:
        worker = self._workers.get(event.worker)
        if worker is None:
            return
        self._tried[worker.name] = "died" if event.crashed else "left"
        self._void(event.worker, list(worker.asks), suspicious=event.crashed)
        del self._workers[event.worker]

    def _worker_cut(self, event: e.WorkerCut, now_s: float) -> None:
        worker = self._workers.get(event.worker)
        if worker is None:
            return
        self._suspect(worker)
        by_tcp = [ticket for ticket, ask in worker.asks.items() if not ask.in_slot]
        # It may have died of one of these: whoever is asked next must know before proof is there, if it ever is.
        self._void(event.worker, by_tcp, suspicious=not worker.leaving)
        for ask in worker.asks.values():
            entry = self._entries.get(ask.seq)
            if entry is not None and not ask.blamed and not worker.leaving:
                ask.blamed = True
                entry.attempt += 1

    def _void(self, one: int, tickets: list[Ticket], *, suspicious: bool) -> None:
        """No answer will come to these."""
        for ticket in tickets:
            self._ledger.release(ticket)
            ask, entry = self._close(one, ticket)
            if entry is not None:
                entry.attempt += suspicious and not ask.blamed

    def _worker_left(self, event: e.WorkerLeft, now_s: float) -> None:
        if event.worker in self._workers:
            self._workers[event.worker].leaving = True

    def _suspect(self, worker: Worker) -> None:
        if not worker.silent:
            worker.silent = True
            self._tried[worker.name] = "silent"
            self.counts.suspected += 1

    # --- answers ---

    def _arrived(self, event: e.Arrived, now_s: float) -> None:
        self._heard(e.Heard(event.worker), now_s)
        ask, entry = self._close(event.worker, event.ticket)
        if not event.valid:
            self.counts.rejected += 1
            self._ledger.release(event.ticket)
            if entry is not None:
                entry.refused[event.worker] = _wrong_bytes(self._workers[event.worker].name, entry.target)
            return
        if entry is None or entry.ready:
            self.counts.stale += 1
            self._ledger.release(event.ticket)
            return
        self._ledger.fill(event.ticket)
        entry.ready = True
        answer_s = now_s - ask.sent_s
        self._usual_answer_s += 0.1 * (answer_s - self._usual_answer_s) if self._usual_answer_s else answer_s
        worker = self._workers[event.worker]
        worker.served(worker.in_hand_s(ask, now_s), now_s)
        self._out.append(e.Deliver(ask.seq, event.ticket.slot, entry.target))
        self._cancel_asks(ask.seq)

    def _gave_up(self, event: e.GaveUp, now_s: float) -> None:
        self._heard(e.Heard(event.worker), now_s)
        worker = self._workers[event.worker]
        ask, entry = self._close(event.worker, event.ticket)
        self._ledger.release(event.ticket)
        in_hand_s = worker.in_hand_s(ask, now_s)
        if in_hand_s > worker.service_s and all(ask.sent_s <= other.sent_s for other in worker.asks.values()):
            worker.served(in_hand_s, now_s)  # cancelled, but it had this in hand for at least so long
        if event.passing:
            worker.leaving = True
        elif entry is not None and event.error is not None:
            entry.refused[event.worker] = event.error

    def _held(self, event: e.Held, now_s: float) -> None:
        self._heard(e.Heard(event.worker), now_s)
        worker = self._workers.get(event.worker)
        if worker is None:
            return
        for ticket, ask in list(worker.asks.items()):
            if ask.after_ping < event.number and ticket not in event.tickets:
                self.counts.lost_on_the_way += 1
                self._ledger.release(ticket)
                self._close(event.worker, ticket)
        worker.unlisted = False
        # Wants that were on a connection when it broke: void here, but not there.
        self._out.extend(e.SendCancel(event.worker, ticket) for ticket in event.tickets if ticket not in worker.asks)

    def _close(self, one: int, ticket: Ticket) -> tuple[Ask, Entry | None]:
        """The ticket is answered, or void: whoever else holds the want was waited for already."""
        ask = self._workers[one].asks.pop(ticket)
        entry = self._entries.get(ask.seq)
        if entry is not None:
            entry.askers.discard(one)
            entry.again_s = 0.0
        return ask, entry

    # --- the line ---

    def _extended(self, event: e.Extended, now_s: float) -> None:
        for target in event.targets:
            self._entries[self._end] = Entry(target)
            self._end += 1

    def _refocused(self, event: e.Refocused, now_s: float) -> None:
        seqs = list(self._entries)
        self._entries.clear()
        for seq in seqs:
            self._cancel_asks(seq)
        self._head = self._end = event.head
        self._retracting.clear()

    def _consumed(self, event: e.Consumed, now_s: float) -> None:
        for seq in range(self._head, event.head):
            del self._entries[seq]
        self._head = max(self._head, event.head)

    def _retracted(self, event: e.Retracted, now_s: float) -> None:
        self._retracting.discard(event.seq)
        entry = self._entries.get(event.seq)
        if event.slot is not None and entry is not None:
            entry.ready = False
            self.counts.retracted += 1

    def _nothing(self, event: e.SlotReturned, now_s: float) -> None:
        """The ledger knows already; asking goes on."""

    def _ticked(self, event: e.Ticked, now_s: float) -> None:
        timeout_s = self._settings.heartbeat_timeout_s
        for one, worker in self._workers.items():
            if now_s - worker.heard_s > timeout_s:
                self._suspect(worker)
            pause_s = timeout_s / 4
            if now_s - worker.pinged_s >= pause_s and worker.is_in_doubt(now_s - pause_s):
                self._pings += 1
                worker.pinged_s = now_s
                self._out.append(e.SendPing(one, self._pings))

    def _excuse(self, now_s: float) -> None:
        """It was us who did not look for long: nobody is silent or slow for that."""
        for worker in self._workers.values():
            worker.heard_s = worker.answered_s = now_s
            for ask in worker.asks.values():
                ask.sent_s = now_s

    def _watch_head(self, now_s: float) -> None:
        """A head that nobody could build for long ends the feed; soon, if all workers that are there refused it."""
        head = self._entries.get(self._head)
        refused = head.refused if head is not None else {}
        able = any(worker.live and one not in refused for one, worker in self._workers.items())
        if self._failed or able or (head is not None and head.ready):
            self._alone_since_s = None
            return
        if self._alone_since_s is None:
            self._alone_since_s = now_s
        alone_s = now_s - self._alone_since_s
        settings = self._settings
        if refused and self._workers and self._workers.keys() <= refused.keys():
            if alone_s > settings.heartbeat_timeout_s:  # one that is being restarted would be here by now
                self._fail(list(refused.values())[-1])
        elif alone_s > settings.lost_timeout_s:
            nobody = _nobody_left(self._tried, settings.lost_timeout_s)
            self._fail(list(refused.values())[-1] if refused else nobody)

    def _fail(self, error: StokerError) -> None:
        self._failed = True
        self._out.append(e.Fail(error))

    # --- asking ---

    def _ask(self, now_s: float) -> None:
        """Ask for what is wanted and not asked of a live worker, in the order of the line, while credit lasts."""
        self.short_of_slots = False
        all_well = not any(worker.silent for worker in self._workers.values())
        for seq in range(self._head, min(self._end, self._head + self._settings.prefetch)):
            entry = self._entries[seq]
            if entry.ready or (all_well and entry.askers):
                continue
            if now_s < entry.again_s or any(not self._workers[one].silent for one in entry.askers):
                continue
            if not self._ask_one(seq, entry, now_s):
                self.short_of_slots = True
                return

    def _ask_one(self, seq: int, entry: Entry, now_s: float) -> bool:
        """False if there is no slot for it; there is none for later ones either then."""
        chosen = self._least_busy(entry, now_s)
        if chosen is None:
            return True
        silent = bool(entry.askers)
        ticket = self._slot_for(seq)
        if ticket is None:
            return False
        if silent:  # the second time and later: wait twice as long before the next
            entry.patience_s = 2 * entry.patience_s or self._settings.heartbeat_timeout_s
            entry.again_s = now_s + entry.patience_s
        self._send(seq, chosen, ticket, now_s)
        return True

    def _rebalance(self, now_s: float) -> None:
        """A worker that has nothing to do takes over what waits longest at another one, but not what that builds."""
        for one, idle in self._workers.items():
            if idle.asks or not idle.live:
                continue
            found = self._waiting_longest(one, now_s)
            ticket = self._ledger.lend() if found is not None else None
            if found is not None and ticket is not None:
                donor, given, seq = found
                self._out.append(e.SendCancel(donor, given))
                self.counts.taken_over += 1
                self._send(seq, one, ticket, now_s)

    def _waiting_longest(self, thief: int, now_s: float) -> tuple[int, Ticket, int] | None:
        """Of the wants that another worker has not begun, the next in line whose wait there is too long."""
        enough_s = max(self._settings.hedge_floor_s, 3 * self._workers[thief].pace_s(now_s))
        found = []
        for donor, worker in self._workers.items():
            queue = sorted((ask.sent_s, ask.seq, ticket) for ticket, ask in worker.asks.items())
            for place, (_, seq, ticket) in enumerate(queue):
                entry = self._entries.get(seq)
                if place == 0 or entry is None or entry.ready or entry.askers != {donor} or thief in entry.refused:
                    continue
                if place * worker.pace_s(now_s) > enough_s:
                    found.append((seq, donor, ticket))
        if not found:
            return None
        seq, donor, ticket = min(found)
        return donor, ticket, seq

    def _least_busy(self, entry: Entry, now_s: float) -> int | None:
        """The one that should be through first: what it still has to do, at its own pace."""
        paces = [worker.service_s for worker in self._workers.values() if worker.service_s]
        usual_s = sum(paces) / len(paces) if paces else QUICKEST_S
        fit = [
            (
                (len(worker.asks) + 1) * max(worker.pace_s(now_s), 0.0 if worker.service_s else usual_s),
                len(worker.asks),
                worker.name,
                one,
            )
            for one, worker in self._workers.items()
            if worker.live and one not in entry.askers and one not in entry.refused
        ]
        return min(fit)[3] if fit else None

    def _send(self, seq: int, one: int, ticket: Ticket, now_s: float) -> None:
        worker, entry = self._workers[one], self._entries[seq]
        in_slot = worker.in_slot and ticket.slot != self._ledger.reserve
        again = entry.attempt > 0 or entry.patience_s > 0 or bool(entry.refused) or entry.hedged
        worker.asks[ticket] = Ask(seq, in_slot, now_s, self._pings)
        entry.askers.add(one)
        self.counts.asked += 1
        self.counts.asked_again += again
        self._out.append(
            e.SendWant(one, entry.target, ticket, entry.attempt, in_slot, urgent=again and seq == self._head)
        )

    def _slot_for(self, seq: int) -> Ticket | None:
        """A free slot; the head makes room for itself if there is none."""
        ticket = self._ledger.lend()
        if ticket is not None or seq != self._head or self._retracting:
            return ticket
        ready = [later for later, entry in self._entries.items() if entry.ready]
        if ready:
            furthest = max(ready)
            self._retracting.add(furthest)
            self._out.append(e.Retract(furthest))
            return None
        return self._ledger.lend_reserve() or self._taken_back()

    def _taken_back(self) -> Ticket | None:
        """A slot that a silent worker has, but cannot write into: what it pushes by TCP will be stale."""
        found = [
            (self._is_open(ask.seq), -ask.seq, one, ticket)
            for one, worker in self._workers.items()
            for ticket, ask in worker.asks.items()
            if worker.silent and not ask.in_slot
        ]
        if not found:
            return None
        _, _, one, ticket = min(found, key=lambda each: each[:2])
        self._void(one, [ticket], suspicious=False)
        self._out.append(e.SendCancel(one, ticket))
        return self._ledger.lend() or self._ledger.lend_reserve()

    def _is_open(self, seq: int) -> bool:
        return seq in self._entries and not self._entries[seq].ready

    def _hedge(self, now_s: float) -> None:
        entry = self._entries.get(self._head)
        if entry is None or entry.ready or entry.hedged or self.counts.hedged * HEDGED_SHARE >= self.counts.asked:
            return
        sent_s = [
            ask.sent_s for one in entry.askers for ask in self._workers[one].asks.values() if ask.seq == self._head
        ]
        if not sent_s or now_s - max(sent_s) < max(self._settings.hedge_floor_s, 3 * self._usual_answer_s):
            return
        chosen = self._least_busy(entry, now_s)
        ticket = self._slot_for(self._head) if chosen is not None else None
        if chosen is not None and ticket is not None:
            entry.hedged = True
            self.counts.hedged += 1
            self._send(self._head, chosen, ticket, now_s)

    def _cancel_asks(self, seq: int) -> None:
        for one, worker in self._workers.items():
            for ticket, ask in worker.asks.items():
                if ask.seq == seq:
                    self._out.append(e.SendCancel(one, ticket))


def _wrong_bytes(worker: str, target: Target) -> StokerError:
    return LostError(
        expected="a batch with the digest and layout that its header names",
        got="other bytes, from every worker that was asked",
        where=f"batch {target.number} of epoch {target.position.epoch}, last from worker {worker}",
        remedy="Look at that machine's memory and network; run with one worker to see which is at fault.",
    )


def _nobody_left(tried: dict[str, str], timeout_s: float) -> StokerError:
    names = ", ".join(f"{name} ({state})" for name, state in sorted(tried.items())) or "none was ever there"
    return LostError(
        expected="a live worker",
        got=f"none for {timeout_s:g} s; tried: {names}",
        where="feed",
        remedy="Start workers with `loader-server run` or `loader-server worker`, or look at their logs.",
    )
