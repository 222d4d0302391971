"""The lease table of one kind of work on one stream: which trainer has which batch numbers.

Rules, each from an interleaving that failed without it:

- What has to survive is kept as a fact before any trainer gets an answer; `recover` takes the facts back in any order.
- An answer lists all leases that the trainer has, not what is new: so a lost answer, a repeated request and a restarted
  table need no rule of their own.
- A report that a number is done counts, even if another trainer has the number by now, if its reporter ever had it in
  this generation: the number was trained on. A failure counts only for the present holder.
- A trainer's death burns no try, nor does giving back: a healthy batch would be given up because machines are taken
  away. A failure does, and so does taking too long.
- Near the end of an epoch fewer are leased ahead, or the slowest trainer would have the last ones alone.
- A later generation forgets all leases of the one before, and reports from before are refused: what the journal calls
  done since a checkpoint is missing from the model that was restored from it.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from loader_server.leases.epoch_leases import EpochLeases, OutNumber
from loader_server.leases.lease_book import EpochClosed, EpochOpened, LeaseFact, NumberDone, NumberOut, TableRewound
from loader_server.leases.lease_trainer import Key, LeaseTrainer, Pace
from loader_server.leases.table_counts import NO_REASON, TOOK_TOO_LONG, TableCounts, TableNews
from shared.wire.message_parts import DoneSet, EpochDone, Lease
from shared.wire.messages import Leases, Outcomes
from shared.wire.topics.work_messages import MOST_LEASES

if TYPE_CHECKING:
    from collections.abc import Callable

    from loader_server.leases.lease_book import LeaseBook

__all__ = ["LeaseRules", "LeaseSettings", "LeaseTable"]

#: Limits on epochs under way and on numbers that are out: all of them have to fit into one message.
_MOST_EPOCHS = 16
_MOST_OUT = 2**14


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRules:
    """The rules for leases that the job file sets."""

    #: The shortest deadline for a batch in hand.
    floor_s: float
    #: The number of failures after which a batch is given up.
    tries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """The purpose of a table, and its limits."""

    stream: str
    work: str
    rules: LeaseRules
    #: The silence after which a trainer counts as gone.
    gone_s: float


class LeaseTable:
    """A lease table.

    `batches` returns the number of batches of an epoch (None: not known yet); `book` keeps the facts that have to
    survive.
    """

    def __init__(self, settings: LeaseSettings, batches: Callable[[int], int | None], book: LeaseBook) -> None:
        self.settings = settings
        #: Stream and kind of work, with which all facts of the table begin.
        self._name = (settings.stream, settings.work)
        self.counts = TableCounts()
        self.generation = 1
        #: The epochs under way, oldest first. Once one has begun, the last is never forgotten, as it tells how far the
        #: work is.
        self.epochs: dict[int, EpochLeases] = {}
        #: By incarnation.
        self.trainers: dict[int, LeaseTrainer] = {}
        #: Numbers that were given up.
        self.dead: dict[Key, OutNumber] = {}
        #: Events that are not logged yet.
        self.news: list[TableNews] = []
        #: Trainers to call, so that they report and hear about their leases.
        self.calls: list[int] = []
        #: Whether numbers became leasable or an epoch was settled, so that trainers that got too few should ask again.
        self._is_news_for_hungry = False
        #: Epochs whose number of out batches differs from the last kept fact, and those kept counts.
        self._changed: set[int] = set()
        self._kept_out: dict[int, int] = {}
        self._pace = Pace(settings.rules.floor_s)
        self._batches = batches
        self._book = book
        #: The incarnation and serial of the request that began this generation: when it is repeated, because its answer
        #: was lost, nothing may be rewound again.
        self.rewound_by: tuple[int, int] | None = None

    # --- what survives ---

    def recover(self, fact: LeaseFact) -> None:
        """Apply a fact, from the journal or new, in any order; raise a KeyError for closing an epoch not under way."""
        match fact:
            case TableRewound():
                self.generation, self.rewound_by = fact.generation, (fact.incarnation, fact.serial)
            case EpochClosed():
                del self.epochs[fact.epoch]
            # In any order: a row that the journal replaces moves to its end, so a number may come before its epoch.
            case EpochOpened():
                epoch = self._epoch(fact.epoch)
                epoch.batches, epoch.fresh = fact.batches, fact.fresh
                self._kept_out[fact.epoch] = fact.out
            case NumberOut(dead=False):
                self.dead.pop((fact.epoch, fact.number), None)
                self._epoch(fact.epoch).put(fact.number, OutNumber(fact.nth, fact.holder, fact.failures, fact.reason))
            case NumberOut():
                self._remove(fact.epoch, fact.number)
                self.dead[fact.epoch, fact.number] = OutNumber(fact.nth, 0, fact.failures, fact.reason)
            case NumberDone():
                self._remove(fact.epoch, fact.number)

    def _epoch(self, at: int) -> EpochLeases:
        if at not in self.epochs:
            self.epochs[at] = EpochLeases(0)
            self.epochs = dict(sorted(self.epochs.items()))
        return self.epochs[at]

    def _remove(self, at: int, number: int) -> None:
        """Forget a number that was out or given up."""
        self.dead.pop((at, number), None)
        # Its epoch may be closed already: a number that was given up may still be done.
        if at in self.epochs:
            self.epochs[at].remove(number)

    def incomplete(self) -> list[int]:
        """Return the epochs in which, after recovery, another count of numbers is out than was kept; empty if none."""
        return [at for at, epoch in self.epochs.items() if len(epoch.out) != self._kept_out.get(at)]

    def take_up(self, now_s: float) -> None:
        """Start after all facts are recovered: trainers have their leases again, and time to be heard again."""
        for at, epoch in sorted(self.epochs.items()):
            for number, out in sorted(epoch.out.items()):
                if out.holder:
                    self._trainer(out.holder, now_s).leases[at, number] = None
        # What was in hand is not known any more. A trainer that comes back has the whole time of a waiting batch again.
        for trainer in self.trainers.values():
            trainer.since_s = now_s

    def _keep(self, fact: LeaseFact) -> None:
        """Write a fact to the book, then apply it; errors of `recover` pass."""
        self._book.keep(fact)
        self.recover(fact)

    def _keep_number(self, key: Key, out: OutNumber, *, dead: bool = False) -> None:
        self._keep(NumberOut(*self._name, *key, out.nth, out.holder, out.failures, dead, out.reason))

    # --- what trainers say ---

    def hear(self, incarnation: int, now_s: float) -> bool:
        """Take in a trainer's heartbeat; return whether it is known here, was called and has not reported since."""
        trainer = self.trainers.get(incarnation)
        if trainer is not None:
            trainer.heard_s = now_s
        return trainer is not None and trainer.called

    def report(self, outcomes: Outcomes, now_s: float) -> Leases | None:
        """Take in what became of a trainer's leases, lease more, and return all leases that it has.

        A report of another generation, or a repeated one, settles nothing. Nothing new is leased to a trainer that has
        in hand what it lost. Return None if the trainer has reported with a later serial already.
        """
        trainer = self._trainer(outcomes.incarnation, now_s)
        if outcomes.serial < trainer.serial:
            self.counts.late += 1
            return None
        # A trainer from before a restored checkpoint: the restored model lacks what it did, so nothing of it counts.
        if outcomes.generation != self.generation:
            self.counts.late += len(outcomes.done) + len(outcomes.failed) + len(outcomes.returned)
        # A repeated serial means that the answer was lost, not the message: it is answered again, but counts once.
        elif outcomes.serial > trainer.serial:
            self._settle(outcomes, trainer, now_s)
        trainer.serial, trainer.heard_s = outcomes.serial, now_s
        in_hand = trainer.is_at(outcomes.in_hand)
        # A trainer that still has in hand what it lost gets nothing: it is stuck on that batch, and would sit on new
        # ones.
        if in_hand or outcomes.in_hand is None:
            self._lease(outcomes, trainer)
        trainer.note_hand(now_s, in_hand=in_hand)
        self._keep_changed()
        trainer.called = False
        # All leases and not only new ones: an answer may be lost, and with it leases that both sides believe the other
        # has.
        return Leases(
            serial=outcomes.serial,
            book=self._book.advance(),
            generation=self.generation,
            leases=tuple(Lease(*key, self.epochs[key[0]].out[key[1]].nth) for key in trainer.leases),
            unsettled=self.unsettled(),
            done=self.done_set() if outcomes.snapshot else None,
        )

    def _trainer(self, incarnation: int, now_s: float) -> LeaseTrainer:
        return self.trainers.setdefault(incarnation, LeaseTrainer(now_s))

    def _settle(self, outcomes: Outcomes, trainer: LeaseTrainer, now_s: float) -> None:
        """Apply a report: what is done, failed and given back; what does not count only raises a counter.

        The time for which finished batches were in hand changes the deadline of further ones.
        """
        # Only the time since the consumer took the batch counts, or slow loaders would make a trainer look slow. Of
        # several batches at once each gets an equal share.
        if trainer.in_hand and outcomes.done and trainer.is_at(outcomes.done[0]):
            self._pace.add((now_s - trainer.since_s) / len(outcomes.done))
        for lease in outcomes.done:
            self._finish(outcomes.incarnation, lease)
        for failure in outcomes.failed:
            out = self._held(outcomes.incarnation, failure.lease)
            if out is not None:
                self.counts.failed += 1
                self._burn((failure.lease.epoch, failure.lease.number), out, failure.reason or NO_REASON)
        for lease in outcomes.returned:
            if self._held(outcomes.incarnation, lease) is not None:
                self._give_back((lease.epoch, lease.number))

    def _finish(self, incarnation: int, lease: Lease) -> bool:
        """Mark a number as done; return False if it is done, was not leased so often, or this leasing was another's."""
        out = self._look_up(incarnation, lease)
        if out is None:
            return False
        # This very leasing was another trainer's. An earlier one (a lower `nth`) counts, although the number was leased
        # again since: its trainer was cut off, but its model has the batch.
        if lease.nth == out.nth and out.holder not in (0, incarnation):
            self._note_unknown(incarnation, lease)
            return False
        # The number may have another holder by now, or none: it is done all the same, because a model has it.
        self._release((lease.epoch, lease.number), out)
        self._keep(NumberDone(*self._name, lease.epoch, lease.number))
        self._changed.add(lease.epoch)
        self.counts.done += 1
        return True

    def _held(self, incarnation: int, lease: Lease) -> OutNumber | None:
        """Return the number if this trainer has it by this very lease; otherwise count the report and return None."""
        out = self._look_up(incarnation, lease)
        # A failure, or a return, of a trainer that lost the number would cost its present holder a try, or the lease.
        if out is not None and (lease.nth, incarnation) != (out.nth, out.holder):
            self.counts.late += 1
            return None
        return out

    def _look_up(self, incarnation: int, lease: Lease) -> OutNumber | None:
        """Return a number that is out or given up and was leased at least `lease.nth` times; otherwise None.

        Other reports are counted as late or unknown.
        """
        epoch = self.epochs.get(lease.epoch)
        # A number that was given up may still be done: its trainer was only slow.
        out = (epoch.out.get(lease.number) if epoch is not None else None) or self.dead.get((lease.epoch, lease.number))
        if out is not None and 1 <= lease.nth <= out.nth:
            return out
        is_past = lease.epoch < self.unsettled() if epoch is None else lease.number < epoch.fresh
        if out is None and is_past:
            self.counts.late += 1
        else:
            self._note_unknown(incarnation, lease)
        return None

    def _note_unknown(self, incarnation: int, lease: Lease) -> None:
        self.counts.unknown += 1
        self.news.append(TableNews("unknown", (lease.epoch, lease.number), incarnation))

    # --- leasing ---

    def _lease(self, outcomes: Outcomes, trainer: LeaseTrainer) -> None:
        """Lease numbers of epochs before the one it names, up to what it wants and may have; note if it is hungry."""
        wanted = min(outcomes.wanted, MOST_LEASES)
        while len(trainer.leases) < wanted and sum(len(epoch.out) for epoch in self.epochs.values()) < _MOST_OUT:
            at = self._epoch_with_work(outcomes.before)
            if at is None or len(trainer.leases) >= self._share(at, wanted):
                break
            self._grant(at, outcomes.incarnation, trainer)
        trainer.hungry = len(trainer.leases) < wanted

    def _grant(self, at: int, incarnation: int, trainer: LeaseTrainer) -> None:
        # Fresh numbers go out in order: so `fresh` and the few that are out tell the state of all numbers.
        epoch = self.epochs[at]
        number = epoch.next()
        assert number is not None
        out = epoch.out.get(number, OutNumber())
        if number == epoch.fresh:
            epoch.fresh += 1
        self._keep_number((at, number), replace(out, nth=out.nth + 1, holder=incarnation))
        trainer.leases[at, number] = None
        self._changed.add(at)
        self.counts.leased += 1

    def _share(self, at: int, wanted: int) -> int:
        """Return how many leases a trainer may have: at most `wanted`, and half of an even share of what is left.

        Otherwise the slowest trainer would have the last batches of the epoch alone. It is at least one while any is
        left and wanted.
        """
        return min(wanted, -(-self.epochs[at].left // (2 * len(self.trainers))))

    def _epoch_with_work(self, before: int) -> int | None:
        """Return the oldest epoch below `before` with a number to lease, opening next ones if needed; None if none."""
        # The oldest first, or stragglers of an epoch would hold up its end.
        for at, epoch in self.epochs.items():
            if at < before and epoch.left:
                return at
        # Opened only when nothing is left below, and past epochs without a batch.
        at = max(self.epochs, default=-1) + 1
        while at < before and self._open(at):
            if self.epochs[at].left:
                return at
            at += 1
        return None

    def _open(self, at: int) -> bool:
        """Open an epoch, and forget the oldest settled ones.

        Return False, with nothing opened, if there is no room for one, or its number of batches is not known yet.
        """
        batches = self._batches(at) if len(self.epochs) < _MOST_EPOCHS else None
        if batches is None:
            return False
        self._keep(EpochOpened(*self._name, at, batches, 0, 0))
        self._close_settled()
        return True

    def _close_settled(self) -> None:
        """Forget the oldest epochs while they are settled, but never the last, which tells how far the work is."""
        while len(self.epochs) > 1:
            at, epoch = next(iter(self.epochs.items()))
            if not epoch.is_settled:
                return
            # This fact undoes `EpochOpened`: what the journal keeps must not grow with the number of epochs.
            self._keep(EpochClosed(*self._name, at))

    def _keep_changed(self) -> None:
        """Keep the progress of the changed epochs, close settled ones, and call trainers that wait.

        A closed epoch may be among the changed ones, because a number that was given up may still be reported as done.
        """
        for at in sorted(self._changed & self.epochs.keys()):
            epoch = self.epochs[at]
            # With the count of numbers that are out: after a crash it shows whether a fact of them is missing.
            self._keep(EpochOpened(*self._name, at, epoch.batches, epoch.fresh, len(epoch.out)))
            self._is_news_for_hungry |= epoch.is_settled
        self._changed.clear()
        self._close_settled()
        self._call_hungry()

    # --- giving back ---

    def _release(self, key: Key, out: OutNumber) -> None:
        """Take a number from its holder, if that is known."""
        holder = self.trainers.get(out.holder)
        if holder is not None:
            holder.leases.pop(key, None)

    def _burn(self, key: Key, out: OutNumber, reason: str) -> None:
        """Take a number from its holder for a failed try: it can be leased again or, after the last, is given up."""
        self._release(key, out)
        self.counts.add_reason(reason)
        dead = out.failures + 1 >= self.settings.rules.tries
        self._keep_number(key, OutNumber(out.nth, 0, out.failures + 1, reason), dead=dead)
        self.news.append(TableNews("dead" if dead else "failed", key, out.holder, reason))
        if dead:
            self._changed.add(key[0])
        self._is_news_for_hungry = True

    def _give_back(self, key: Key) -> None:
        """Take a number, which must be out, from its holder, and make it leasable again without counting a try."""
        # No try: machines that are taken away would have healthy batches given up.
        out = self.epochs[key[0]].out[key[1]]
        self._release(key, out)
        self._keep_number(key, replace(out, holder=0))
        self.counts.returned += 1
        self._is_news_for_hungry = True

    def _call(self, incarnation: int, trainer: LeaseTrainer) -> None:
        """Note that a trainer has to be called, unless it was called already and has not reported since."""
        # The call may be lost: until it reports, the answer to each of its heartbeats repeats it (see `hear`).
        if not trainer.called:
            self.calls.append(incarnation)
        trainer.called = True

    def call_all(self) -> None:
        """Note that every trainer has to be called, because its leases are void; they are not dropped here."""
        for incarnation, trainer in self.trainers.items():
            self._call(incarnation, trainer)

    def _call_hungry(self) -> None:
        """Call trainers that wait, if numbers can be leased again or an epoch is settled."""
        if self._is_news_for_hungry:
            self._is_news_for_hungry = False
            for incarnation, trainer in self.trainers.items():
                if trainer.hungry:
                    self._call(incarnation, trainer)

    def leave(self, incarnation: int) -> None:
        """Forget a trainer that is gone, if known, give back its leases, and call waiting trainers if any are free."""
        # Its reports still count if it was only cut off: what was leased to it stays known by `nth`.
        trainer = self.trainers.pop(incarnation, None)
        for key in list(trainer.leases) if trainer is not None else ():
            self._give_back(key)
        self._call_hungry()

    def tick(self, now_s: float) -> None:
        """Forget silent trainers, giving back their leases, and expire leases of those at one batch for too long."""
        for incarnation, trainer in list(self.trainers.items()):
            if now_s - trainer.heard_s > self.settings.gone_s:
                self.leave(incarnation)
            elif trainer.has_taken_too_long(now_s, self._pace.deadline_s):
                self._expire(incarnation, trainer)
        self._keep_changed()

    def _expire(self, incarnation: int, trainer: LeaseTrainer) -> None:
        """Take all leases from a trainer that is stuck, and call it; only the batch in its hands loses a try.

        What waits behind that batch goes back as well: the trainer would be stuck on each in turn, one deadline after
        another.
        """
        # A batch that the consumer never had waited for its data, or behind others: that costs it no try.
        keys = list(trainer.leases)
        if trainer.in_hand:
            self.counts.expired += 1
            key = keys.pop(0)
            self._burn(key, self.epochs[key[0]].out[key[1]], TOOK_TOO_LONG)
        for key in keys:
            self._give_back(key)
        self._call(incarnation, trainer)

    def excuse(self, now_s: float) -> None:
        """Restart the clocks of all trainers, because this process stalled and could not hear them."""
        for trainer in self.trainers.values():
            trainer.heard_s = trainer.since_s = now_s

    # --- checkpoints ---

    def unsettled(self) -> int:
        """Return the first epoch that is not settled: the one after the last if all are, 0 if none was begun."""
        at = 0
        for at, epoch in self.epochs.items():
            if not epoch.is_settled:
                return at
        return at + bool(self.epochs)

    def done_set(self) -> DoneSet:
        """Return what is settled, for a checkpoint: how far each epoch under way is, and what is missing below that.

        These are all from the first unsettled epoch on; if all are settled, it is the next one, with nothing done.
        """
        # Settled ones too: behind the last epoch of a checkpoint the next one is opened, so it would be done again.
        first = self.unsettled()
        done = tuple(EpochDone(at, epoch.fresh, epoch.missing()) for at, epoch in self.epochs.items() if at >= first)
        return DoneSet(done or (EpochDone(first, 0, ()),))

    def rewind(self, done: DoneSet, batches: dict[int, int], incarnation: int, serial: int) -> None:
        """Begin another generation in which exactly `done` is settled; `batches` are the sizes of its epochs.

        All trainers lose their leases, and are called. `incarnation` and `serial` are kept in `rewound_by`. Raise a
        KeyError if `batches` lacks an epoch; that `done` fits it, the caller checks.
        """
        for fact in self._undo_epochs():
            self._keep(fact)
        self._keep(TableRewound(*self._name, self.generation + 1, incarnation, serial))
        for epoch in done.epochs:
            missing = list(accumulate(epoch.missing))
            self._keep(EpochOpened(*self._name, epoch.epoch, batches[epoch.epoch], epoch.fresh, len(missing)))
            for number in missing:
                self._keep_number((epoch.epoch, number), OutNumber())
        self._forget_dead()
        # Trainers that hold leases of the old generation learn of it when they are called: what they do until then is
        # refused, because the restored model lacks it.
        for trainer in self.trainers.values():
            trainer.lose_all()
        self.call_all()

    def _undo_epochs(self) -> list[LeaseFact]:
        """Return the facts that undo all epochs and the numbers that are out in them.

        The journal keeps only facts that nothing has undone, so each has to be undone by its own key.
        """
        facts: list[LeaseFact] = []
        for at, epoch in self.epochs.items():
            facts += [NumberDone(*self._name, at, number) for number in epoch.out]
            facts.append(EpochClosed(*self._name, at))
        return facts

    def _forget_dead(self) -> None:
        """Forget given-up numbers that are not settled in the new generation: they are to be done again."""
        for at, number in list(self.dead):
            epoch = self.epochs.get(at)
            if at >= self.unsettled() if epoch is None else number >= epoch.fresh:
                self._keep(NumberDone(*self._name, at, number))
