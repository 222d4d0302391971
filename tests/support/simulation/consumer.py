"""Who reads a feed: takes batches from the real outbox without waiting in it, holds them, drops them, is interrupted.

Rules: a consumer is a generator that yields how long it does something else, and whether news from the outbox end that
pause. It keeps what `Feed` promises its users: a batch is copied out where slots run short or it lies in the reserve.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from shared.errors import StokerError
from shared.wire import messages as m
from tests.support.simulation.process import Timer
from tests.support.simulation.trainer import WouldWait
from trainer_client.core.upcoming import Position
from trainer_client.network.outbox import OfferedBatch, Reader

if TYPE_CHECKING:
    from collections.abc import Generator

    from shared.wire.message_parts import Cursor, DoneSet
    from tests.support.simulation.trainer import Trainer
    from tests.support.simulation.world import World

    Pause = tuple[float, bool]
    Doing = Generator[Pause, None, Any]

__all__ = ["Consumer", "Evaluating"]

_FOR_EVER = float("inf")


class Consumer:
    """Runs `work` in one trainer."""

    #: How much longer it may wait than for batches of its own.
    patience_s = 0.0

    def __init__(self, world: World, trainer: Trainer) -> None:
        self.world = world
        self.trainer = trainer
        trainer.consumer = self
        self.position: Position | None = None
        self.next_group = 0
        #: Since when it waits for a batch, or to be attached.
        self.waits_since_s = _FOR_EVER
        self.waits_for = ""
        self.taken = 0
        self.passes = 0
        #: The batch that each reader gets next; by its serial.
        self._hands: deque[OfferedBatch] = deque()
        self._hold = world.scheduler.random.choice((0, 0, 1, 1, 2, 5))
        self._work: Doing | None = self.work()
        self._running = False
        self._poked = False
        self._pokeable = False
        self._pause = Timer(trainer, self._run)
        self._sleep(world.scheduler.between(0.0, 0.05), pokeable=False)

    def work(self) -> Doing:
        """What it does."""
        raise NotImplementedError

    # --- running ---

    def poke(self) -> None:
        """Something may be there for it."""
        if self._running:
            self._poked = True
        elif self._pokeable:
            self._sleep(self.world.turn_pause_s(), pokeable=False)

    def run_early(self) -> None:
        """Its pause ends now."""
        if self._pause.due_s < _FOR_EVER and not self._running:
            self._run()

    def stop(self) -> None:
        """Its process ended."""
        work, self._work = self._work, None
        if work is not None and not self._running:
            work.close()
        self._hands.clear()

    def _sleep(self, pause_s: float, *, pokeable: bool) -> None:
        self._pokeable = pokeable
        self._pause.set(self.world.scheduler.now_s + pause_s)

    def _run(self) -> None:
        if self._work is None:
            return
        self._running, self._poked = True, False
        try:
            pause_s, pokeable = next(self._work)
        except StopIteration:
            self._work = None
            self.waits_since_s = _FOR_EVER
            self._hands.clear()
            return
        finally:
            self._running = False
        if pokeable and self._poked:
            pause_s, pokeable = 0.0, False
        self._sleep(pause_s, pokeable=pokeable)

    # --- what it does ---

    def _attach(self, cursor: Cursor | None, done: DoneSet | None = None) -> Generator[Pause, None, m.Attached]:
        """Attach at this cursor, or with what is done; raises what the coordinator refuses with."""
        answers: list[m.Attached | BaseException] = []

        def answered(answer: m.Attached | BaseException) -> None:
            answers.append(answer)
            self.poke()

        self._wait("to attach")
        self.trainer.ask_to_attach(cursor, answered, done)
        while not answers:
            yield _FOR_EVER, True
        self._wait_no_more()
        if isinstance(answers[0], BaseException):
            raise answers[0]
        answer = answers[0]
        self.world.checks.on_attached(self.trainer, cursor, answer)
        self.position = Position(answer.cursor.epoch, answer.cursor.number, answer.cursor.group)
        self.next_group = answer.next_group
        return answer

    def _batches(self, epoch: int, group: int) -> Generator[Pause, None, int]:
        """How many batches an epoch has, as `Feed` asks for it."""
        stream = self.trainer.core.stream
        assert stream is not None
        known = stream.upcoming.epochs.get((epoch, group))
        if known is not None:
            return known
        answers: list[int] = []

        def answered(answer: int) -> None:
            answers.append(answer)
            self.poke()

        spec = stream.spec
        self._wait("to know how long an epoch is")
        self.trainer.ask(
            m.EpochQuery(stream=spec.stream, plan_digest=spec.plan_digest, epoch=epoch, group=group), answered
        )
        while not answers:
            if self.trainer.error is not None:
                raise self.trainer.error
            yield 0.2, True
        self._wait_no_more()
        return answers[0]

    def _take(self, reader: Reader) -> Generator[Pause, None, OfferedBatch | None]:
        """The next batch; raises what the feed fails with, and Interrupted."""
        self._wait("for a batch")
        while True:
            try:
                item = self.trainer.outbox.take(reader)
            except WouldWait as wait:
                pause_s = wait.args[0]
            else:
                break
            yield pause_s, True
        self._wait_no_more()
        return item

    def _wait(self, what: str) -> None:
        self.waits_since_s, self.waits_for = self.world.scheduler.now_s, what

    def _wait_no_more(self) -> None:
        self.world.checks.on_end_of_wait(self)
        self.waits_since_s = _FOR_EVER

    def _keep(self, item: OfferedBatch) -> None:
        """Look at a batch and hold it for a while, or copy it out."""
        outbox, stream = self.trainer.outbox, self.trainer.core.stream
        assert stream is not None
        slots = stream.slots
        self.taken += 1
        if item.slot == slots.reserve or outbox.holds_more_than(max(1, slots.slots - 2)):
            return
        self._hands.append(item)
        while len(self._hands) > self._hold:
            if self.world.scheduler.chance(0.2):
                self._hands.rotate(1)
            self.world.checks.on_let_go(self.trainer, self._hands[0])
            self._hands.popleft()

    def let_go(self) -> None:
        """Drop all that it holds."""
        for item in self._hands:
            self.world.checks.on_let_go(self.trainer, item)
        self._hands.clear()


class Evaluating(Consumer):
    """Reads an evaluation stream again and again, not always to its end."""

    def work(self) -> Doing:
        try:
            yield from self._attach(None)
            while True:
                yield from self._read()
        except StokerError as error:
            self.world.on_trainer_failed(self.trainer, error)

    def _read(self) -> Doing:
        """One iterator, to its end or not."""
        world, trainer, start = self.world, self.trainer, self.position
        chance, step_s = world.scheduler.chance, world.setting.step_s
        assert start is not None
        reader = Reader(start)
        follow = world.checks.follow(trainer, start)
        early = chance(0.3)
        while not (early and chance(0.2)):
            item = yield from self._take(reader)
            if item is None:
                world.checks.on_end(follow)
                self.passes += 1
                break
            world.checks.on_taken(trainer, follow, item)
            self._keep(item)
            del item
            yield world.scheduler.between(0.0, 2 * step_s), False
        else:
            if chance(0.5):
                trainer.outbox.leave(reader)
        if chance(0.3):
            self.let_go()
        yield world.scheduler.between(0.0, 10 * step_s), False
