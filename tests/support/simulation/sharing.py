"""Trainers that share a stream in queue mode, and what must hold of what they did with its batches.

Rules: each trainer leases batches, trains on them, and says that they are done or that it failed; it is the account of
leases that ships (`LeaseAccount`) that says so. The books here are kept from the facts of the coordinator's journal and
from what consumers did, and from nothing else. Q1: a number is done once in its epoch. Q2: what is done was trained on.
Q3: a lease has one trainer, which trains on it once. Q4: an epoch that is closed has every number done or given up.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from loader_server.leases.facts import EpochClosed, EpochOpened, NumberDone, NumberOut
from shared.errors import StokerError
from tests.support.simulation.consumer import Consumer
from tests.support.simulation.scheduler import Broken
from tests.support.simulation.trainer import Interrupted
from trainer_client.network.outbox import Reader
from trainer_client.session.lease_account import LeaseAccount

if TYPE_CHECKING:
    from collections.abc import Generator

    from loader_server.coordinator.events import Fact
    from shared.wire.parts import Lease
    from tests.support.simulation.consumer import Doing, Pause
    from tests.support.simulation.trainer import Trainer
    from tests.support.simulation.world import World
    from trainer_client.network.outbox import Item

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
        self._holder: dict[Lease, int] = {}
        self._trained: set[Lease] = set()
        self._trained_numbers: set[tuple[int, int]] = set()

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

    def on_kept(self, fact: Fact) -> None:
        """The coordinator has this on disk."""
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
        if (epoch, number) not in self._trained_numbers:
            raise Broken(f"Q2: batch {number} of epoch {epoch} is done, and nobody trained on it")
        self._dead[epoch].discard(number)
        self._done[epoch].add(number)

    # --- trainers ---

    def on_taken(self, trainer: Trainer, item: Item) -> None:
        """A consumer has a batch that is its trainer's."""
        lease = item.batch.lease
        assert lease is not None
        if self._holder.setdefault(lease, trainer.incarnation) != trainer.incarnation:
            raise Broken(f"Q3: {trainer} has {lease}, which another trainer has had")

    def on_trained(self, trainer: Trainer, item: Item) -> None:
        """It was trained on, and nobody else knows yet."""
        lease = item.batch.lease
        assert lease is not None
        if lease in self._trained:
            raise Broken(f"Q3: {trainer} trains on {lease} a second time")
        self._trained.add(lease)
        self._trained_numbers.add((lease.epoch, lease.number))


class Sharer(Consumer):
    """What one of the trainers does."""

    def __init__(self, world: World, trainer: Trainer, sharing: Sharing) -> None:
        self._sharing = sharing
        self._account: LeaseAccount | None = None
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

    def _settle(self, account: LeaseAccount, item: Item) -> None:
        """It is trained on, or the user fails at it."""
        world = self.world
        done = world.healed_s is not None or not world.scheduler.chance(world.setting.failures)
        if done:
            self._sharing.on_trained(self.trainer, item)
        account.settle(item.batch, done=done)

    def _take_mine(self, reader: Reader, account: LeaseAccount) -> Generator[Pause, None, Item | None]:
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
