"""Synchronous data-parallel training of one stream, as a user would run it: ranks in step, a checkpoint now and then.

Rules: all ranks take their batches of a round, then all train on them at once. Model and cursor are committed together.
Where one rank dies all of them start again at the checkpoint, perhaps in another world. The model is the list of the
batches that it was trained on: it has to be the plan, in its order, with nothing twice and nothing missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.errors import StokerError
from shared.wire.message_parts import Cursor
from tests.support.simulation.consumer import Consumer
from tests.support.simulation.scheduler import Broken
from tests.support.simulation.trainer import Interrupted
from trainer_client.core.upcoming import Position
from trainer_client.network.outbox import Reader

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.support.simulation.consumer import Doing, Pause
    from tests.support.simulation.trainer import Trainer
    from tests.support.simulation.world import World
    from trainer_client.core.upcoming import UpcomingBatch

__all__ = ["Training", "TrainingRank"]


@dataclass(slots=True)
class _Run:
    """One start of all ranks."""

    number: int
    world: int
    trainers: list[Trainer] = field(default_factory=list)
    #: What each trainer has of the round that comes next.
    round: dict[int, list[UpcomingBatch]] = field(default_factory=dict)
    steps: int = 0
    #: Where the last step ended.
    at: Position | None = None


class Training:
    """The job as its user sees it."""

    def __init__(self, world: World, stream: str) -> None:
        self.world = world
        self.stream = stream
        #: What the model was trained on: (epoch, number).
        self.model: list[tuple[int, int]] = []
        self.at: Position | None = None
        self._saved: tuple[int, Position | None] = (0, None)
        self.run: _Run | None = None
        self._runs = 0
        self.epochs_done = 0

    # --- starts and ends ---

    def start(self, shares: list[int]) -> None:
        """Start all ranks at the checkpoint: one trainer for each share, with so many replicas."""
        length, self.at = self._saved
        del self.model[length:]
        self._runs += 1
        run = self.run = _Run(self._runs, sum(shares))
        rank = 0
        for place, replicas in enumerate(shares):
            pause_s = self.world.scheduler.between(0.0, 0.3)
            self.world.scheduler.after(pause_s, self._start_trainer, run, place, rank, replicas)
            rank += replicas
        self._trainers_due = len(shares)

    def _start_trainer(self, run: _Run, place: int, rank: int, replicas: int) -> None:
        if self.run is not run:
            return
        trainer = self.world.new_trainer(f"{self.stream}{place}", self.stream, rank, replicas, run.world)
        run.trainers.append(trainer)
        TrainingRank(self.world, trainer, self, run)

    def end(self) -> list[Trainer]:
        """Give the ranks up; the trainers that were there, for the caller to kill."""
        run, self.run = self.run, None
        return run.trainers if run is not None else []

    def has(self, trainer: Trainer) -> bool:
        """Whether it has ranks of the present run."""
        return self.run is not None and trainer in self.run.trainers

    def claims(self, trainer: Trainer) -> bool:
        """Whether the present run has a trainer for one of its ranks."""
        ranks = trainer.settings.ranks
        return self.run is not None and ranks.rank < self.run.world

    def save(self) -> None:
        """Commit model and cursor."""
        self._saved = (len(self.model), self.at)

    @property
    def saved_at(self) -> Position | None:
        return self._saved[1]

    # --- steps ---

    def arrive(self, run: _Run, trainer: Trainer, position: Position, batches: list[UpcomingBatch]) -> None:
        """A trainer has its batches of the next round; the last one to arrive lets all of them train."""
        if run is not self.run:
            return
        if self.at is None:
            self.at = position
        if position != self.at:
            raise Broken(f"S1: {trainer} stands at {position}, the model at {self.at}")
        run.round[trainer.incarnation] = batches
        if len(run.round) == self._trainers_due:
            self._step(run)

    def _step(self, run: _Run) -> None:
        assert self.at is not None
        places = [batch for trainer in sorted(run.trainers, key=lambda trainer: trainer.settings.ranks.rank)
                  for batch in run.round[trainer.incarnation]]  # fmt: skip
        numbers = [batch.number for batch in places if not batch.empty]
        due = list(range(self.at.number, self.at.number + len(numbers)))
        if numbers != due or not numbers or len(places) != run.world:
            raise Broken(f"S1, S2: at {self.at} the world of {run.world} trains on {places}")
        self.model += [(self.at.epoch, number) for number in numbers]
        run.round.clear()
        run.steps += 1
        run.at = self.at = Position(self.at.epoch, due[-1] + 1, self.at.group)
        for trainer in run.trainers:
            trainer.poke()

    def finish_epoch(self, run: _Run, epoch: int, next_group: int) -> None:
        """A trainer has read the epoch to its end."""
        if run is not self.run or self.at is None or self.at.epoch != epoch:
            return
        batches = self.world.streams[self.stream].batches(epoch, self.at.group)
        trained = [number for trained_epoch, number in self.model if trained_epoch == epoch]
        if trained != list(range(batches)):
            raise Broken(f"S2: epoch {epoch} has {batches} batches, the model was trained on {trained}")
        self.at = Position(epoch + 1, 0, next_group)
        self.epochs_done += 1


class TrainingRank(Consumer):
    """What one trainer of a run does."""

    def __init__(self, world: World, trainer: Trainer, training: Training, run: _Run) -> None:
        self._training = training
        self._run_of = run
        super().__init__(world, trainer)

    def work(self) -> Doing:
        try:
            yield from self._start()
            while True:
                yield from self._epoch()
        except StokerError as error:
            self.world.on_trainer_failed(self.trainer, error)

    def _start(self) -> Generator[Pause, None, None]:
        """Connect, and restore the checkpoint if there is one; with other ranks there, say in any case where we are."""
        yield from self._attach(None)
        assert self.position is not None
        saved = self._training.saved_at
        ranks = self.trainer.settings.ranks
        if saved is not None or ranks.world > ranks.replicas:
            at = saved or self.position
            if self.world.scheduler.chance(0.7):
                yield self.world.scheduler.between(0.0, 0.1), False
            yield from self._attach(self._cursor(at))

    def _cursor(self, at: Position) -> Cursor:
        return Cursor(at.epoch, at.number, at.group, self.world.streams[self._training.stream].digest)

    def _epoch(self) -> Generator[Pause, None, None]:
        """Read the epoch of the cursor to its end, perhaps by several iterators."""
        ended = False
        while not ended:
            try:
                ended = yield from self._read()
            except Interrupted:
                continue
        position = self.position
        assert position is not None
        self._training.finish_epoch(self._run_of, position.epoch, self.next_group)
        self._move(Position(position.epoch + 1, 0, self.next_group))

    def _move(self, to: Position) -> None:
        self.position = to
        self.trainer.trained_to = (to.epoch, to.number)

    def _read(self) -> Generator[Pause, None, bool]:
        """One iterator, from the cursor on: whether it came to its end."""
        world, trainer = self.world, self.trainer
        chance = world.scheduler.chance
        assert self.position is not None
        reader = Reader(self.position)
        follow = world.checks.follow(trainer, self.position)
        while True:
            batches: list[UpcomingBatch] = []
            for _ in range(trainer.settings.ranks.replicas):
                trainer.facts.interrupt_next = chance(world.setting.interrupts)
                item = yield from self._take(reader)
                if item is None:
                    world.checks.on_end(follow)
                    return True
                world.checks.on_taken(trainer, follow, item)
                batches.append(item.batch)
                self._keep(item)
                del item
            if chance(world.setting.abandons):
                if chance(0.5):
                    trainer.outbox.leave(reader)
                return False
            yield from self._step(batches)

    def _step(self, batches: list[UpcomingBatch]) -> Generator[Pause, None, None]:
        run, world = self._run_of, self.world
        steps = run.steps
        position = self.position
        assert position is not None
        yield world.scheduler.between(0.3, 1.7) * world.setting.step_s, False
        self._training.arrive(run, self.trainer, position, batches)
        while run.steps == steps:
            yield float("inf"), True
        assert run.at is not None
        self._move(run.at)
        if self.trainer.settings.ranks.rank == 0 and world.scheduler.chance(world.setting.saves):
            self._training.save()
