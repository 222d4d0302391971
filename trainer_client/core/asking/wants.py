"""Wants: which batch is asked of which worker, and when another worker is asked.

Rules, each from an interleaving that failed without it:
- A want goes to the worker that should finish its unanswered work first, and never again to one that holds it or has
  refused it. Each trainer breaks ties in its own order, so that they do not all ask the same worker.
- Batches held by a silent worker are asked of others, nearest first. The back-off doubles each time.
- The head always gets a slot: the furthest ready batch makes room, or else the reserve slot serves, by TCP.
- An idle worker takes over wants that another one has not begun and will not begin soon.
- At most one want in WANTS_PER_HEDGE is hedged: asked of a second worker although the first one is well.
- A verifier hedges nothing and is never urgent, because trainers go first.
- Where batches are made whole, shard by shard, the worker that holds the shard is asked, without takeovers or hedges:
  another one would have to make the whole shard anew (see `ShardHolders`).
Pure. The work of one decision depends on what changed, and on the few workers that this trainer talks to, never on the
size of the fleet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.hashing import key_of
from shared.wire import messages as m
from trainer_client.core import instructions as i
from trainer_client.core.workers.known_workers import QUICKEST_S, KnownWorker, least_busy, longest_waiting, usual_pace_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.errors import StokerError
    from shared.wire.message_parts import Ticket
    from trainer_client.core.asking.answers import Answers
    from trainer_client.core.asking.prefetch import Prefetch
    from trainer_client.core.settings import CoreSettings
    from trainer_client.core.slot_states import SlotStates
    from trainer_client.core.stream_spec import StreamSpec
    from trainer_client.core.upcoming import Entry, Upcoming
    from trainer_client.core.workers.worker_tickets import WorkerTickets

__all__ = ["ShardHolders", "Wants"]

#: At most one want in this many is hedged.
WANTS_PER_HEDGE = 20

#: How many epochs' holders are remembered: the one being read, and those ahead of it.
_EPOCHS_KEPT = 4
#: The first elements of a shard, which are quickly made again: until then it may move to a new worker.
_YOUNG = 8


class Wants:
    """The decisions what to ask of which worker, over the given upcoming batches, slots and workers."""

    def __init__(  # noqa: PLR0913, PLR0917 - the books that a want is entered in
        self,
        settings: CoreSettings,
        spec: StreamSpec,
        prefetch: Prefetch,
        upcoming: Upcoming,
        slots: SlotStates,
        workers: dict[int, KnownWorker],
        tickets: WorkerTickets,
        answers: Answers,
        out: list[i.Instruction],
    ) -> None:
        #: Whether a batch could not be asked for because no slot was free.
        self.short_of_slots = False
        #: How many wants were sent; how many of them because a worker died, was silent or refused, or as a hedge; and
        #: how many were hedges.
        self.asked = self.asked_again = self.hedged = 0
        #: How many ready batches were taken back to make room for the head.
        self.retracted = 0
        self._settings = settings
        self._spec = spec
        self._prefetch = prefetch
        self._upcoming = upcoming
        self._slots = slots
        self._workers = workers
        self._tickets = tickets
        self._answers = answers
        self._out = out
        #: The workers that may be asked, as of the last survey.
        self._live: list[KnownWorker] = []
        self._holders = ShardHolders(spec.producers) if spec.producers else None
        #: Batches that are being taken back, before we know whether a consumer was faster.
        self._retracting: set[int] = set()

    def at_work(self) -> float:
        """Return how many wants the workers that may be asked work on at a time, as of the last survey."""
        return sum(worker.at_work for worker in self._live)

    @property
    def prefetch(self) -> int:
        """Return how many batches are asked for ahead at the moment."""
        return self._prefetch.size

    def could_serve(self) -> float:
        """Return how many batches a second the workers that may be asked could serve us; 0 if no pace is known."""
        paces_s = [worker.worked_s for worker in self._live]
        known_s = [pace_s for pace_s in paces_s if pace_s]
        if not known_s:
            return 0.0
        # A worker that was not asked for anything yet is taken for a usual one.
        usual_s = sum(known_s) / len(known_s)
        return sum(1 / max(pace_s or usual_s, QUICKEST_S) for pace_s in paces_s)

    def somebody_can(self, refused: Mapping[int, StokerError]) -> bool:
        """Return whether some worker has not refused the batch (`refused`), was heard lately and takes wants.

        It may be busy at the moment.
        """
        return any(worker.may_be_asked and worker.incarnation not in refused for worker in self._workers.values())

    def all_refuse(self, refused: Mapping[int, StokerError]) -> bool:
        """Return whether every known worker is among these refusals; False if no worker is known."""
        # Nobody known is no refusal: workers that are listed may not be connected yet.
        return bool(refused) and bool(self._workers) and self._workers.keys() <= refused.keys()

    # --- the sequence of batches ---

    def refocus(self) -> None:
        """Cancel every open want at connected workers, because the sequence was redirected to other batches.

        Batches that no worker was asked for, and those that are being taken back, are forgotten as well. The tickets
        stay open until the workers answer.
        """
        # The tickets stay open until the workers answer: one may be writing into its slot at this moment.
        for worker in self._workers.values():
            for ticket in worker.asks:
                self._tickets.send_cancel(worker, ticket)
        self._tickets.forget_unasked()
        self._retracting.clear()

    def take_back(self, seq: int, *, won: bool) -> None:
        """Handle the outcome of a `TakeBack`: the batch was retracted (`won`), or the consumer was faster.

        Free the slot of a retracted batch that is still upcoming, and have it asked for again. Otherwise only note that
        the outcome is known.
        """
        # A consumer pops without waiting for us, so the outcome is known only afterwards. A retracted batch is asked
        # for again, or the sequence would have a gap.
        self._retracting.discard(seq)
        entry = self._upcoming.entries.get(seq)
        if won and entry is not None:
            self._slots.take_back(entry.slot)
            entry.retract()
            self.retracted += 1
            self._tickets.reopen(seq, entry)

    # --- asking ---

    def decide(self, now_s: float) -> None:
        """Ask for the batches that no live worker has in hand, nearest first.

        A batch is asked for only if it lies within the prefetch and its back-off is over, while there are slots and
        able workers. Before that a slow head is hedged (not by a verifier), after that idle workers take over wants of
        others. Neither happens where batches are made whole.
        """
        if self._tickets.look_around:
            self._live = self._tickets.survey()
        if self._holders is not None:
            self._ask(now_s)
            return
        if not self._settings.verifies:
            self._hedge(now_s)
        self._ask(now_s)
        self._rebalance(now_s)

    def _ask(self, now_s: float) -> None:
        self.short_of_slots = False
        if not self._tickets.unasked:
            return
        upcoming, unasked = self._upcoming, []
        horizon, usual_s = upcoming.head + self.prefetch, usual_pace_s(self._live)
        for at, seq in enumerate(self._tickets.unasked):
            entry = upcoming.entries.get(seq)
            if entry is None or entry.ready:
                continue
            worker = self._choose(entry, usual_s, now_s) if seq < horizon and now_s >= entry.again_s else None
            if worker is None:
                unasked.append(seq)
                continue
            ticket = self._lend_slot_for(seq)
            if ticket is None:  # batches further ahead have to wait as well
                self.short_of_slots = True
                unasked += self._tickets.unasked[at:]
                break
            if entry.askers:  # not the first asking: wait twice as long before the next
                entry.wait_longer(self._spec.heartbeat_timeout_s, now_s)
            self._send(seq, worker, ticket, now_s)
        self._tickets.leave_unasked(unasked)

    def _choose(self, entry: Entry, usual_s: float, now_s: float) -> KnownWorker | None:
        if self._holders is not None:
            return self._holders.holder(entry, self._live, now_s)
        return least_busy(self._live, entry, usual_s, now_s)

    def _rebalance(self, now_s: float) -> None:
        """Let idle workers, fastest first, take over wants that others have not begun and will not begin soon.

        The donor is sent a Cancel. Stop as soon as there is no such want for a worker, or no free slot.
        """
        # Without this, one worker holds the last batches of an epoch while fifteen are idle.
        donors = [worker for worker in self._workers.values() if len(worker.asks) > 1]
        idle = [worker for worker in self._live if not worker.asks and now_s >= worker.busy_until_s] if donors else []
        for thief in sorted(idle, key=lambda worker: worker.service_s):
            # The want must wait much longer at its donor than the thief takes for one, or moving it gains little.
            enough_s = max(self._settings.hedge_floor_s, 3 * thief.pace_s(now_s))
            waiting = longest_waiting(donors, thief, self._upcoming.entries, enough_s, now_s)
            ticket = self._slots.lend() if waiting is not None else None
            if waiting is None or ticket is None:
                return  # slower workers would find even less
            seq, donor, donor_ticket = waiting
            # Only cancelled: if the donor has begun after all, its batch counts, whichever comes first.
            self._tickets.send_cancel(donor, donor_ticket)
            self._send(seq, thief, ticket, now_s)

    def _send(self, seq: int, worker: KnownWorker, ticket: Ticket, now_s: float) -> None:
        entry = self._upcoming.entries[seq]
        # Nobody writes into the reserve slot in place: a writer that is stopped would block it for the head.
        in_slot = worker.in_slot and ticket.slot != self._slots.reserve
        # A worker died, was silent or refused, or this is a hedge. Wants that got lost are counted in `answers`.
        again = entry.attempt > 0 or entry.patience_s > 0 or bool(entry.refused) or entry.hedged
        self._tickets.hold(seq, worker, ticket, now_s, in_slot=in_slot)
        self.asked += 1
        self.asked_again += again
        assert worker.connection_id is not None
        urgent = again and seq == self._upcoming.head and not self._settings.verifies
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
        """Lend a free slot; if there is none and `seq` is the head, make room. Return None if there is no slot now.

        To make room, order the furthest ready batch to be taken back and return None, because its slot is free only
        later; until then return None too. Only if no batch is ready, lend the reserve slot, or a silent worker's.
        """
        # After a death gave the head back, prefetched batches may fill all slots, and no batch would be consumed any
        # more. One is taken back at a time: the consumer may be faster, and before we know the outcome the slot is not
        # ours to lend.
        ticket = self._slots.lend()
        if ticket is not None or seq != self._upcoming.head or self._retracting:
            return ticket
        # The furthest batch is needed last, so rebuilding it costs least.
        ready = [later for later, entry in self._upcoming.entries.items() if entry.ready]
        if ready:
            furthest = max(ready)
            self._retracting.add(furthest)
            self._out.append(i.TakeBack(furthest))
            return None
        return self._slots.lend_reserve() or self._reclaim_slot()

    def _reclaim_slot(self) -> Ticket | None:
        """Void a ticket of a silent worker that answers by TCP, and lend a slot; return None without such a ticket.

        The worker is sent a Cancel. A ticket whose batch is not needed any more is preferred, then the furthest batch.
        """
        # Such a worker cannot write into the slot, and its late push will be stale. Without this, the head waits for
        # ever if silent workers hold all slots, the reserve included.
        candidates = [
            (ask.seq, worker, ticket)
            for worker in self._workers.values()
            for ticket, ask in worker.asks.items()
            if worker.silent and not ask.in_slot
        ]
        if not candidates:
            return None
        # Prefer a ticket whose batch is not needed any more; among equals take the furthest batch.
        _, worker, ticket = min(candidates, key=lambda candidate: (self._is_wanted(candidate[0]), -candidate[0]))
        self._tickets.void(worker, [ticket], suspicious=False)
        self._tickets.send_cancel(worker, ticket)
        return self._slots.lend() or self._slots.lend_reserve()

    def _is_wanted(self, seq: int) -> bool:
        entry = self._upcoming.entries.get(seq)
        return entry is not None and not entry.ready

    def _hedge(self, now_s: float) -> None:
        """Ask a second worker, once, for a head that takes three times as long as a usual answer.

        The head must also have waited for `hedge_floor_s`. Do nothing if it is ready, with no worker or hedged already,
        if too many wants were hedged (at most one in WANTS_PER_HEDGE may be), or if there is no able worker or no slot.
        """
        # At most one want in WANTS_PER_HEDGE: if all workers are slow, hedging doubles the load that made them so.
        head = self._upcoming.head
        entry = self._upcoming.entries.get(head)
        if entry is None or entry.ready or entry.hedged or not entry.askers:
            return
        if self.hedged * WANTS_PER_HEDGE >= self.asked:
            return
        latest_s = max(self._workers[asker].asks[ticket].sent_s for asker, ticket in entry.askers.items())
        if now_s - latest_s < max(self._settings.hedge_floor_s, 3 * self._answers.usual_answer_s):
            return
        worker = least_busy(self._live, entry, usual_pace_s(self._live), now_s)
        if worker is None:
            return
        ticket = self._lend_slot_for(head)
        if ticket is not None:
            entry.hedge()
            self.hedged += 1
            self._send(head, worker, ticket, now_s)


class ShardHolders:
    """The worker of each shard of each epoch, chosen when it is first needed, and again whenever it is gone.

    Batch n comes from shard n mod `producers`. A shard is made in order, from its beginning, so one worker is asked for
    its batches as long as it lives; any other would have to make everything again up to the requested batch. The choice
    depends only on the names of the live workers, so all trainers choose the same one. Workers that come while shards
    are young get their part of them; later only the shards of a lost worker move, and they return to its successor with
    the next epoch. A batch that a worker has refused is asked of others.
    """

    def __init__(self, producers: int) -> None:
        self._producers = producers
        self._names: dict[int, dict[int, str]] = {}
        #: The names of the live workers, and how shards are divided among them: a cache of the last division.
        self._shared_among: frozenset[str] = frozenset()
        self._shared: dict[int, str] = {}

    def holder(self, entry: Entry, live: Sequence[KnownWorker], now_s: float) -> KnownWorker | None:
        """Return the worker to ask for this batch: the holder of its shard, or another that did not refuse the batch.

        The first eight batches of a shard go by its present share among the live workers. Another worker is chosen if
        the holder is gone or refused this batch. Return None if the chosen worker is busy or holds a ticket for the
        batch already, or if no live worker is left that has not refused it.
        """
        able = [worker for worker in live if worker.incarnation not in entry.refused]
        if not able:
            return None
        names = self._of_epoch(entry.batch.position.epoch)
        ordinal, shard = divmod(entry.batch.number, self._producers)
        # A young shard costs little to make again, so new workers get their part of the shards only then.
        if ordinal < _YOUNG or shard not in names:
            names[shard] = self._shares(live)[shard]
        holder = next((worker for worker in able if worker.name == names[shard]), None)
        if holder is None:
            holder = _preferred(shard, able)
            if not entry.refused:  # the former one is gone, rather than refusing just this batch
                names[shard] = holder.name
        # A busy holder is waited for: any other worker would have to make the shard from its beginning.
        is_free = holder.incarnation not in entry.askers and now_s >= holder.busy_until_s
        return holder if is_free else None

    def _of_epoch(self, epoch: int) -> dict[int, str]:
        if epoch not in self._names and len(self._names) >= _EPOCHS_KEPT:
            del self._names[next(iter(self._names))]
        return self._names.setdefault(epoch, {})

    def _shares(self, live: Sequence[KnownWorker]) -> dict[int, str]:
        names = frozenset(worker.name for worker in live)
        if names != self._shared_among:
            self._shared_among, self._shared = names, _shared_out(self._producers, live)
        return self._shared


def _shared_out(producers: int, live: Sequence[KnownWorker]) -> dict[int, str]:
    """Return a worker's name for each shard: its rendezvous choice among workers that have room for more shards.

    All workers get equal numbers of shards, rounded up. `live` must not be empty.
    """
    # Rounded up, so that every shard finds a worker with room.
    share, counts = -(-producers // len(live)), {worker.name: 0 for worker in live}
    names = {}
    for shard in range(producers):
        # By hash alone one worker may get several shards and another none, and an epoch is as slow as the former.
        with_room = [worker for worker in live if counts[worker.name] < share] or live
        names[shard] = _preferred(shard, with_room).name
        counts[names[shard]] += 1
    return names


def _preferred(shard: int, workers: Sequence[KnownWorker]) -> KnownWorker:
    """Return the worker with the highest rendezvous hash for this shard, equal in all trainers that know the same."""
    return max(workers, key=lambda worker: (key_of(shard, worker.name), worker.name))
