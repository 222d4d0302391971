"""Trainers that share a stream in queue mode, and what must hold of what they did with its batches.

Rules: each trainer leases batches, trains on them, and says that they are done or that it failed; it is the account of
leases that ships (`LeaseAccount`) that reports it. The books here are kept from the facts of the coordinator's journal
and from what consumers did, and from nothing else. A trainer takes a checkpoint now and then, and another restores it.
What follows holds of each generation, which begins with what its checkpoint says. Q1: a number is done once in its
epoch. Q2: what is done was trained on. Q3: a lease has one trainer, which trains on it once. Q4: a closed epoch
has every number done or given up. Q5: what a checkpoint says is done is what the journal has, and all that its trainer
did.
"""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from loader_server.leases.lease_book import EpochClosed, EpochOpened, NumberDone, NumberOut, TableRewound
from shared.errors import StokerError
from shared.wire.message_parts import DoneSet, EpochDone
from tests.support.simulation.consumer import Consumer
from tests.support.simulation.scheduler import Broken
from tests.support.simulation.trainer import Interrupted
from trainer_client.network.outbox import Reader
from trainer_client.session.lease_account import LeaseAccount

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from loader_server.coordinator.events import Fact
    from shared.wire.message_parts import Lease
    from tests.support.simulation.consumer import Doing, Pause
    from tests.support.simulation.trainer import Trainer
    from tests.support.simulation.world import World
    from trainer_client.network.outbox import OfferedBatch

__all__ = ["Sharer", "Sharing"]

#: So many deadlines a batch may be held by somebody who does not come to it, and then fail so often elsewhere.
_DEADLINES = 30


class Sharing:
    """What was done with the batches of the stream, by all trainers."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: By epoch: how many batches it has, and which are done, and given up.
        self.batches: dict[int, int] = {}
        self._done: dict[int, set[int]] = {}
        self._dead: dict[int, set[int]] = {}
        self._generation = 1
        #: By generation and lease.
        self._holder: dict[tuple[int, Lease], int] = {}
        self._trained: set[tuple[int, Lease]] = set()
        #: By generation, epoch and number.
        self._trained_numbers: set[tuple[int, int, int]] = set()
        #: Checkpoints that were taken; at first the beginning, where a model without one is.
        self.saved: list[DoneSet] = [DoneSet((EpochDone(0, 0, ()),))]

    @property
    def epochs_done(self) -> int:
        """How many epochs are settled, from the first on."""
        at = 0
        while at in self.batches and self._is_settled(at):
            at += 1
        return at

    def _is_settled(self, epoch: int) -> bool:
        return len(self._done[epoch] | self._dead[epoch]) == self.batches[epoch]

    # --- the journal ---

    def on_kept(self, facts: Sequence[Fact]) -> None:
        """The coordinator has these on disk, all or none."""
        rewound = [place for place, fact in enumerate(facts) if isinstance(fact, TableRewound)]
        if rewound:
            self._begin_generation(facts[rewound[-1] :])
            return
        for fact in facts:
            self._on_fact(fact)

    def _begin_generation(self, facts: Sequence[Fact]) -> None:
        """The table is as a checkpoint says: of what was done, only that counts."""
        opened = {fact.epoch: fact for fact in facts if isinstance(fact, EpochOpened)}
        out = {(fact.epoch, fact.number) for fact in facts if isinstance(fact, NumberOut)}
        begins = {
            at: (fact.fresh, sorted(number for epoch, number in out if epoch == at)) for at, fact in opened.items()
        }
        if begins not in [{epoch.epoch: (epoch.fresh, list(accumulate(epoch.missing))) for epoch in done.epochs}
                          for done in self.saved]:  # fmt: skip
            raise Broken(f"Q5: a generation begins with {begins}, which is no checkpoint")
        self._generation += 1
        self.batches |= {at: fact.batches for at, fact in opened.items()}
        for at in self.batches:
            settled = self._settled_at(at, max(opened), begins)
            self._dead[at] = self._dead.get(at, set()) & settled
            self._done[at] = settled - self._dead[at]
            self._trained_numbers |= {(self._generation, at, number) for number in self._done[at]}
        self._world.shared_goal = min(self._world.shared_goal, self.epochs_done + 1)

    def _settled_at(self, at: int, last: int, begins: dict[int, tuple[int, list[int]]]) -> set[int]:
        """Of an epoch that is not mentioned all, if it comes before one that is."""
        fresh, missing = begins.get(at, (self.batches[at] if at < last else 0, []))
        return set(range(fresh)) - set(missing)

    def _on_fact(self, fact: Fact) -> None:
        if isinstance(fact, EpochOpened):
            self.batches[fact.epoch] = fact.batches
            self._done.setdefault(fact.epoch, set())
            self._dead.setdefault(fact.epoch, set())
        elif isinstance(fact, NumberDone):
            self._on_done(fact.epoch, fact.number)
        elif isinstance(fact, NumberOut) and fact.dead:
            self._dead[fact.epoch].add(fact.number)
        elif isinstance(fact, EpochClosed) and not self._is_settled(fact.epoch):
            left = set(range(self.batches[fact.epoch])) - self._done[fact.epoch] - self._dead[fact.epoch]
            raise Broken(f"Q4: epoch {fact.epoch} is closed, and {sorted(left)} are neither done nor given up")

    def _on_done(self, epoch: int, number: int) -> None:
        if number in self._done[epoch]:
            raise Broken(f"Q1: batch {number} of epoch {epoch} is done a second time")
        if (self._generation, epoch, number) not in self._trained_numbers:
            raise Broken(f"Q2: batch {number} of epoch {epoch} is done, and nobody trained on it")
        self._dead[epoch].discard(number)
        self._done[epoch].add(number)

    # --- trainers ---

    def on_taken(self, trainer: Trainer, item: OfferedBatch) -> None:
        """A consumer has a batch that is its trainer's."""
        lease = item.batch.lease
        assert lease is not None
        if self._holder.setdefault((item.batch.generation, lease), trainer.incarnation) != trainer.incarnation:
            raise Broken(f"Q3: {trainer} has {lease}, which another trainer has had")

    def on_trained(self, trainer: Trainer, item: OfferedBatch) -> None:
        """It was trained on, and nobody else knows yet."""
        lease = item.batch.lease
        assert lease is not None
        if (item.batch.generation, lease) in self._trained:
            raise Broken(f"Q3: {trainer} trains on {lease} a second time")
        self._trained.add((item.batch.generation, lease))
        self._trained_numbers.add((item.batch.generation, lease.epoch, lease.number))

    # --- checkpoints ---

    def on_saved(self, trainer: Trainer, done: DoneSet, mine: set[tuple[int, int]]) -> None:
        """A trainer took a checkpoint, after it did these batches of the present generation."""
        left = {(part.epoch, number) for part in done.epochs for number in accumulate(part.missing)}
        for epoch, number in mine:
            fresh = next((part.fresh for part in done.epochs if part.epoch == epoch), None)
            if (epoch, number) in left or (number >= fresh if fresh is not None else epoch > done.epochs[-1].epoch):
                raise Broken(f"Q5: {trainer} did batch {number} of epoch {epoch}, and its checkpoint says {done}")
        self.saved.append(done)


class Sharer(Consumer):
    """What one of the trainers does."""

    def __init__(self, world: World, trainer: Trainer, sharing: Sharing) -> None:
        self._sharing = sharing
        self._account: LeaseAccount | None = None
        #: What it trained on: generation, epoch and number.
        self._did: set[tuple[int, tuple[int, int]]] = set()
        super().__init__(world, trainer)

    @property
    def patience_s(self) -> float:
        """How much longer it may wait than for batches of its own: others may have the last ones of an epoch."""
        return _DEADLINES * self.world.setting.lease_s

    def work(self) -> Doing:
        try:
            answer = yield from self._attach(None)
            self._account = LeaseAccount(self._receiver(), _NoAccounts(), answer)  # type: ignore[arg-type]
            while True:
                try:
                    yield from self._read(self._account)
                    yield from self._save_or_restore(self._account)
                except Interrupted:
                    continue
        except StokerError as error:
            self.world.on_trainer_failed(self.trainer, error)

    def _receiver(self) -> Any:
        """What the account sees of the receive thread."""
        stream = self.trainer.core.stream
        assert stream is not None
        standing = SimpleNamespace(trained_to=(0, 0))
        return SimpleNamespace(stream=stream, spec=stream.spec, outbox=self.trainer.outbox, standing=standing)

    def _read(self, account: LeaseAccount) -> Doing:
        """One iterator, to the end of its epoch or not."""
        world, chance = self.world, self.world.scheduler.chance
        start = account.begin_reading()
        reader = Reader(start)
        while (item := (yield from self._take_mine(reader, account))) is not None:
            self._keep(item)
            yield world.scheduler.between(0.3, 4.0) * world.setting.step_s, False
            if chance(world.setting.abandons):
                if chance(0.5):
                    self.trainer.outbox.leave(reader)
                return
            self._settle(account, item)
            del item
        account._move(start.epoch + 1)

    def _save_or_restore(self, account: LeaseAccount) -> Doing:
        """As a user's checkpoints do, while there are faults: in the end all has to go on."""
        world = self.world
        if not world.setting.rewinds:
            return
        if world.scheduler.chance(world.setting.rewinds):
            yield from self._save()
        if world.healed_s is None and world.scheduler.chance(world.setting.rewinds):
            done = world.scheduler.random.choice(self._sharing.saved)
            account._taken.clear()
            answer = yield from self._attach(None, done)
            account._move(answer.cursor.epoch)

    def _save(self) -> Doing:
        answers: list[DoneSet] = []

        def answered(done: DoneSet) -> None:
            answers.append(done)
            self.poke()

        stream = self.trainer.core.stream
        assert stream is not None
        generation = stream.leases._generation
        self._wait("to know what is done")
        self.trainer.ask_state(answered)
        while not answers:
            if self.trainer.error is not None:
                raise self.trainer.error
            yield 0.2, True
        self._wait_no_more()
        mine = {at for began, at in self._did if began == generation == stream.leases._generation}
        self._sharing.on_saved(self.trainer, answers[0], mine)

    def _settle(self, account: LeaseAccount, item: OfferedBatch) -> None:
        """It is trained on, or the user fails at it."""
        world = self.world
        done = world.healed_s is not None or not world.scheduler.chance(world.setting.failures)
        if done:
            self._sharing.on_trained(self.trainer, item)
            assert item.batch.lease is not None
            self._did.add((item.batch.generation, (item.batch.lease.epoch, item.batch.lease.number)))
        account.settle(item.batch, done=done)

    def _take_mine(self, reader: Reader, account: LeaseAccount) -> Generator[Pause, None, OfferedBatch | None]:
        self.trainer.facts.interrupt_next = self.world.scheduler.chance(self.world.setting.interrupts)
        while (item := (yield from self._take(reader))) is not None:
            if account.take(item):
                self._sharing.on_taken(self.trainer, item)
                return item
        return None


class _NoAccounts:
    """Nobody looks at the figures."""

    def count_trained(self, *_batch: object, **_more: object) -> None:
        """As the real one."""

    def count_given_back(self, *_batch: object) -> None:
        """As the real one."""
