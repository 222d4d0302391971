"""The lease table of one kind of work on one stream: which trainer has which batch numbers.

Rules, each from an interleaving that failed without it:

- What has to survive is kept as a fact before any trainer gets an answer; `recover` takes the facts back in any order.
- An answer lists all leases that the trainer has, not what is new: so a lost answer, a repeated request and a restarted
  table need no rule of their own.
- A report that a number is done counts whoever has the number by now, if its reporter ever had it in this generation,
  because it was trained on. A failure counts only for the present holder.
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

from loader_server.leases.counts import NO_REASON, TOOK_TOO_LONG, TableCounts, TableNews
from loader_server.leases.epoch_leases import EpochLeases, OutNumber
from loader_server.leases.facts import EpochClosed, EpochOpened, LeaseFact, NumberDone, NumberOut, TableRewound
from loader_server.leases.lease_trainer import Key, LeaseTrainer
from loader_server.leases.pace import Pace
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
        self.counts = TableCounts()
        self.generation = 1
        #: The epochs under way, oldest first. Once one has begun, the last is never forgotten: it says how far the work
        #: is.
        self.epochs: dict[int, EpochLeases] = {}
        self.trainers: dict[int, LeaseTrainer] = {}
        #: Numbers that were given up.
        self.dead: dict[Key, OutNumber] = {}
        #: Events that are not logged yet.
        self.news: list[TableNews] = []
        #: Trainers to call, so that they report and hear about their leases.
        self.calls: list[int] = []
        self._is_news_for_hungry = False
        #: Epochs whose number of out batches differs from the last kept fact, and those kept counts.
        self._changed: set[int] = set()
        self._kept_out: dict[int, int] = {}
        self._pace = Pace(settings.rules.floor_s)
        self._batches = batches
        self._book = book
        self._rewound_by: tuple[int, int] | None = None

    # --- what survives ---

    def recover(self, fact: LeaseFact) -> None:
        """Apply a fact, from the journal or new, in any order."""
        if isinstance(fact, TableRewound):
            self.generation, self._rewound_by = fact.generation, (fact.incarnation, fact.serial)
        elif isinstance(fact, EpochClosed):
            del self.epochs[fact.epoch]
        elif isinstance(fact, EpochOpened):
            epoch = self._epoch(fact.epoch)
            epoch.batches, epoch.fresh = fact.batches, fact.fresh
            self._kept_out[fact.epoch] = fact.out
        elif isinstance(fact, NumberOut) and not fact.dead:
            self.dead.pop((fact.epoch, fact.number), None)
            self._epoch(fact.epoch).put(fact.number, OutNumber(fact.nth, fact.holder, fact.failures, fact.reason))
        elif isinstance(fact, NumberOut | NumberDone):
            self._settle_number(fact)

    def _epoch(self, at: int) -> EpochLeases:
        if at not in self.epochs:
            self.epochs[at] = EpochLeases(0)
            self.epochs = dict(sorted(self.epochs.items()))
        return self.epochs[at]

    def _settle_number(self, fact: NumberOut | NumberDone) -> None:
        """Apply a fact that a number is done or given up."""
        key = (fact.epoch, fact.number)
        self.dead.pop(key, None)
        if isinstance(fact, NumberOut):
            self.dead[key] = OutNumber(fact.nth, 0, fact.failures, fact.reason)
        if fact.epoch in self.epochs:
            self.epochs[fact.epoch].remove(fact.number)

    def incomplete(self) -> list[int]:
        """Return the epochs of which facts are missing after recovery, so that it is unknown which numbers are out."""
        return [at for at, epoch in self.epochs.items() if len(epoch.out) != self._kept_out.get(at)]

    def take_up(self, now_s: float) -> None:
        """Start after all facts are recovered: trainers that had leases get time to be heard again."""
        for at, epoch in sorted(self.epochs.items()):
            for number, one in sorted(epoch.out.items()):
                if one.holder:
                    self._trainer(one.holder, now_s).leases[at, number] = None
        for trainer in self.trainers.values():
            trainer.since_s = now_s

    def _keep(self, fact: LeaseFact) -> None:
        """Write a fact to the book, then apply it."""
        self._book.keep(fact)
        self.recover(fact)

    def _keep_number(self, key: Key, one: OutNumber, *, dead: bool = False) -> None:
        name = self.settings
        self._keep(NumberOut(name.stream, name.work, *key, one.nth, one.holder, one.failures, dead, one.reason))

    def _keep_epoch(self, at: int, batches: int, fresh: int, out: int) -> None:
        self._keep(EpochOpened(self.settings.stream, self.settings.work, at, batches, fresh, out))

    # --- what trainers say ---

    def hear(self, incarnation: int, now_s: float) -> bool:
        """Take in a trainer's heartbeat; return whether the trainer should report on its leases."""
        trainer = self.trainers.get(incarnation)
        if trainer is not None:
            trainer.heard_s = now_s
        return trainer is not None and trainer.called

    def report(self, said: Outcomes, now_s: float) -> Leases | None:
        """Take in what became of a trainer's leases, lease more, and return all leases that it has.

        Return None if the trainer has reported with a later serial already.
        """
        trainer = self._trainer(said.incarnation, now_s)
        if said.serial < trainer.serial:
            self.counts.late += 1
            return None
        # A trainer from before a restored checkpoint: the restored model lacks what it did, so nothing of it counts.
        if said.generation != self.generation:
            self.counts.late += len(said.done) + len(said.failed) + len(said.returned)
        # A repeated serial means that the answer was lost, not the message: it is answered again, but counts once.
        elif said.serial > trainer.serial:
            self._settle(said, trainer, now_s)
        trainer.serial, trainer.heard_s = said.serial, now_s
        in_hand = trainer.is_at(said.in_hand)
        # A trainer that still has in hand what it lost gets nothing: it is stuck on that batch, and would sit on new
        # ones.
        if in_hand or said.in_hand is None:
            self._lease(said, trainer)
        trainer.note_hand(now_s, in_hand=in_hand)
        self._keep_changed()
        trainer.called = False
        leases = tuple(Lease(*key, self.epochs[key[0]].out[key[1]].nth) for key in trainer.leases)
        done = self.done_set() if said.snapshot else None
        return Leases(
            serial=said.serial, book=self._book.advance(), generation=self.generation, leases=leases,
            unsettled=self.unsettled(), done=done,
        )  # fmt: skip

    def _trainer(self, incarnation: int, now_s: float) -> LeaseTrainer:
        return self.trainers.setdefault(incarnation, LeaseTrainer(now_s))

    def _settle(self, said: Outcomes, trainer: LeaseTrainer, now_s: float) -> None:
        """Apply a report: what is done, what failed, and what is given back."""
        # Only the time since the consumer took the batch counts; of several batches at once, each gets an equal share.
        if trainer.in_hand and said.done and trainer.is_at(said.done[0]):
            self._pace.add((now_s - trainer.since_s) / len(said.done))
        for lease in said.done:
            self._finish(said.incarnation, lease)
        for failure in said.failed:
            self._fail(said.incarnation, failure.lease, failure.reason)
        for lease in said.returned:
            self._take_back(said.incarnation, lease)

    def _finish(self, incarnation: int, lease: Lease) -> bool:
        """Mark a number as done; return whether this report counts."""
        one = self._look_up(lease)
        if one is None:
            return False
        # This very leasing was another trainer's. An earlier one (a lower `nth`) counts, although the number was leased
        # again since: its trainer was cut off, but its model has the batch.
        if lease.nth == one.nth and one.holder not in (0, incarnation):
            self._note_unknown(lease)
            return False
        # The number may have another holder by now, or none: it is done all the same, because a model has it.
        self._release((lease.epoch, lease.number), one)
        self._keep(NumberDone(self.settings.stream, self.settings.work, lease.epoch, lease.number))
        self._changed.add(lease.epoch)
        self.counts.done += 1
        return True

    def _fail(self, incarnation: int, lease: Lease, reason: str) -> None:
        """Count a failure of the present holder; a late one, of a trainer that lost the number, burns no try."""
        one = self._look_up(lease)
        if one is None:
            return
        if lease.nth != one.nth or one.holder != incarnation:
            self.counts.late += 1
            return
        self.counts.failed += 1
        self._burn((lease.epoch, lease.number), one, reason or NO_REASON)

    def _take_back(self, incarnation: int, lease: Lease) -> None:
        """Give back a number of the present holder; a late report changes nothing."""
        one = self._look_up(lease)
        if one is None:
            return
        if lease.nth != one.nth or one.holder != incarnation:
            self.counts.late += 1
            return
        self._give_back((lease.epoch, lease.number))

    def _look_up(self, lease: Lease) -> OutNumber | None:
        """Return a number that is out or given up and was leased at least `lease.nth` times; otherwise None.

        Other reports are counted as late or unknown.
        """
        key, epoch = (lease.epoch, lease.number), self.epochs.get(lease.epoch)
        one = (epoch.out.get(lease.number) if epoch is not None else None) or self.dead.get(key)
        if one is not None and 1 <= lease.nth <= one.nth:
            return one
        is_past = lease.epoch < self.unsettled() if epoch is None else lease.number < epoch.fresh
        if one is None and is_past:
            self.counts.late += 1
        else:
            self._note_unknown(lease)
        return None

    def _note_unknown(self, lease: Lease) -> None:
        self.counts.unknown += 1
        self.news.append(TableNews("unknown", (lease.epoch, lease.number)))

    # --- leasing ---

    def _lease(self, said: Outcomes, trainer: LeaseTrainer) -> None:
        """Lease the trainer as many numbers as it asked for and may have."""
        wanted = min(said.wanted, MOST_LEASES)
        while len(trainer.leases) < wanted and self._out() < _MOST_OUT:
            at = self._epoch_with_work(said.before)
            if at is None or len(trainer.leases) >= self._share(at, wanted):
                break
            self._grant(at, said.incarnation, trainer)
        trainer.hungry = len(trainer.leases) < wanted

    def _grant(self, at: int, incarnation: int, trainer: LeaseTrainer) -> None:
        epoch = self.epochs[at]
        number = epoch.next()
        assert number is not None
        one = epoch.out.get(number, OutNumber())
        if number == epoch.fresh:
            epoch.fresh += 1
        self._keep_number((at, number), replace(one, nth=one.nth + 1, holder=incarnation))
        trainer.leases[at, number] = None
        self._changed.add(at)
        self.counts.leased += 1

    def _share(self, at: int, wanted: int) -> int:
        """Return how many leases a trainer may have: at most half of an even share of what is left of the epoch.

        Otherwise the slowest trainer would have the last batches of the epoch alone. It is at least one while any is
        left.
        """
        return min(wanted, -(-self.epochs[at].left // (2 * len(self.trainers))))

    def _out(self) -> int:
        """Return how many numbers are out in all epochs."""
        return sum(len(epoch.out) for epoch in self.epochs.values())

    def _epoch_with_work(self, before: int) -> int | None:
        """Return the oldest epoch before this one with a number to lease, opening the next ones if needed; or None."""
        for at, epoch in self.epochs.items():
            if at < before and epoch.left:
                return at
        at = max(self.epochs, default=-1) + 1
        while at < before and self._open(at):
            if self.epochs[at].left:
                return at
            at += 1
        return None

    def _open(self, at: int) -> bool:
        """Open an epoch; return False if there is no room for one, or its number of batches is not known yet."""
        batches = self._batches(at) if len(self.epochs) < _MOST_EPOCHS else None
        if batches is None:
            return False
        self._keep_epoch(at, batches, 0, 0)
        self._close_settled()
        return True

    def _close_settled(self) -> None:
        """Forget the oldest epochs while they are settled, but never the last: it says how far the work is."""
        while len(self.epochs) > 1:
            at, epoch = next(iter(self.epochs.items()))
            if not epoch.settled:
                return
            # This fact undoes `EpochOpened`: what the journal keeps must not grow with the number of epochs.
            self._keep(self._closed(at))

    def _closed(self, at: int) -> EpochClosed:
        return EpochClosed(self.settings.stream, self.settings.work, at)

    def _keep_changed(self) -> None:
        """Keep the progress of the changed epochs, close settled ones, and call trainers that wait.

        A closed epoch may be among the changed ones, because a number that was given up may still be reported as done.
        """
        for at in sorted(self._changed & self.epochs.keys()):
            epoch = self.epochs[at]
            self._keep_epoch(at, epoch.batches, epoch.fresh, len(epoch.out))
            self._is_news_for_hungry |= epoch.settled
        self._changed.clear()
        self._close_settled()
        self._call_hungry()

    # --- giving back ---

    def _release(self, key: Key, one: OutNumber) -> None:
        """Take a number from its holder."""
        holder = self.trainers.get(one.holder)
        if holder is not None:
            holder.leases.pop(key, None)

    def _burn(self, key: Key, one: OutNumber, reason: str) -> None:
        """Count a failed try; after the last one the number is given up."""
        self._release(key, one)
        self.counts.add_reason(reason)
        dead = one.failures + 1 >= self.settings.rules.tries
        self._keep_number(key, OutNumber(one.nth, 0, one.failures + 1, reason), dead=dead)
        self.news.append(TableNews("dead" if dead else "failed", key, reason))
        if dead:
            self._changed.add(key[0])
        self._is_news_for_hungry = True

    def _give_back(self, key: Key) -> None:
        """Make a number leasable again without counting a try."""
        one = self.epochs[key[0]].out[key[1]]
        self._release(key, one)
        self._keep_number(key, replace(one, holder=0))
        self.counts.returned += 1
        self._is_news_for_hungry = True

    def _call(self, incarnation: int, trainer: LeaseTrainer) -> None:
        """Note that a trainer has to be called, unless it was called already and has not reported since."""
        if not trainer.called:
            self.calls.append(incarnation)
        trainer.called = True

    def call_all(self) -> None:
        """Call every trainer, because the leases of all are void."""
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
        """Forget a trainer that is gone, and give back its leases."""
        trainer = self.trainers.pop(incarnation, None)
        for key in list(trainer.leases) if trainer is not None else ():
            self._give_back(key)
        self._call_hungry()

    def tick(self, now_s: float) -> None:
        """Give back the leases of silent trainers, and expire those that were in hand for too long."""
        for incarnation, trainer in list(self.trainers.items()):
            if now_s - trainer.heard_s > self.settings.gone_s:
                self.leave(incarnation)
            elif trainer.has_taken_too_long(now_s, self._pace.deadline_s):
                self._expire(incarnation, trainer)
        self._keep_changed()

    def _expire(self, incarnation: int, trainer: LeaseTrainer) -> None:
        """Take all leases from a trainer that is stuck; only the batch in its hands loses a try.

        What waits behind that batch goes back as well: the trainer would be stuck on each in turn, one deadline after
        another.
        """
        keys = list(trainer.leases)
        if trainer.in_hand:
            self.counts.expired += 1
            key = keys.pop(0)
            self._burn(key, self.epochs[key[0]].out[key[1]], TOOK_TOO_LONG)
        for key in keys:
            self._give_back(key)
        self._call(incarnation, trainer)

    def excuse(self, now_s: float) -> None:
        """Restart the clocks of all trainers: we stalled and heard nobody, so nothing may expire for that."""
        for trainer in self.trainers.values():
            trainer.heard_s = trainer.since_s = now_s

    # --- checkpoints ---

    def unsettled(self) -> int:
        """Return the first epoch that is not settled."""
        at = 0
        for at, epoch in self.epochs.items():
            if not epoch.settled:
                return at
        return at + bool(self.epochs)

    def done_set(self) -> DoneSet:
        """Return what is settled, for a checkpoint."""
        under_way = [(at, epoch) for at, epoch in self.epochs.items() if not epoch.settled]
        said = [EpochDone(at, epoch.fresh, epoch.missing()) for at, epoch in under_way]
        return DoneSet(tuple(said) or (EpochDone(self.unsettled(), 0, ()),))

    def is_rewound_by(self, incarnation: int, serial: int) -> bool:
        """Return whether this very request began the present generation, and so is a repetition."""
        return self._rewound_by == (incarnation, serial)

    def rewind(self, done: DoneSet, batches: dict[int, int], incarnation: int, serial: int) -> None:
        """Begin another generation in which exactly `done` is settled; `batches` are the sizes of its epochs."""
        name = (self.settings.stream, self.settings.work)
        # Facts undo the old generation one by one, because the journal keeps only facts that nothing has undone.
        for at, epoch in list(self.epochs.items()):
            for number in list(epoch.out):
                self._keep(NumberDone(*name, at, number))
            self._keep(EpochClosed(*name, at))
        self._keep(TableRewound(*name, self.generation + 1, incarnation, serial))
        for said in done.epochs:
            missing = list(accumulate(said.missing))
            self._keep_epoch(said.epoch, batches[said.epoch], said.fresh, len(missing))
            for number in missing:
                self._keep_number((said.epoch, number), OutNumber())
        self._forget_dead()
        for one, trainer in self.trainers.items():
            trainer.lose_all()
            self._call(one, trainer)

    def _forget_dead(self) -> None:
        """Forget given-up numbers that are not settled in the new generation: they are to be done again."""
        for at, number in list(self.dead):
            epoch = self.epochs.get(at)
            if at >= self.unsettled() if epoch is None else number >= epoch.fresh:
                self._keep(NumberDone(self.settings.stream, self.settings.work, at, number))
