"""What must hold: S1 to S4 at each step, and L1 once everything is well again.

Rules: a check looks at what just changed, so that a step stays cheap; it never repairs anything. S1: no batch twice, in
the order of the plan. S2: none missing. S3: what a consumer gets is whole, of the batch that its header names, and is
not written under its hands. S4: no more slots are in use than there are. L1: nobody waits for long once all is well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.rounds import rounds
from tests.support.simulation.scheduler import Broken
from trainer_client.core.slot_states import SlotState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.wire import messages as m
    from shared.wire.message_parts import Cursor
    from tests.support.simulation.consumer import Consumer
    from tests.support.simulation.memory import Memory
    from tests.support.simulation.trainer import Trainer
    from tests.support.simulation.worker import Worker
    from tests.support.simulation.world import World
    from trainer_client.core import instructions as i
    from trainer_client.core.slot_states import SlotStates
    from trainer_client.core.upcoming import Position
    from trainer_client.network.outbox import OfferedBatch

__all__ = ["Checks", "Follow"]


@dataclass(slots=True)
class Follow:
    """What one iterator has to give: (where its round starts, number, empty), each once and in this order."""

    due: Iterator[tuple[int, int, bool]]
    start: Position


class Checks:
    """Raises `Broken`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.longest_wait_s = 0.0

    # --- whose slot is it? ---

    def on_want(self, trainer: Trainer, want: m.Want) -> None:
        """A slot is lent."""
        assert trainer.memory is not None
        writers = trainer.memory.writers.get(want.ticket.slot)
        if writers:
            raise Broken(f"S3: {trainer} lends {want.ticket} while {writers} can still be written")

    def on_drop(self, trainer: Trainer, slot: int) -> None:
        """The memory of a slot is given back."""
        assert trainer.core.stream is not None
        assert trainer.memory is not None
        writers, state = trainer.memory.writers.get(slot), trainer.core.stream.slots.state(slot)
        if writers or state is not SlotState.FREE:
            raise Broken(f"S3: {trainer} drops slot {slot}, which is {state.value}, {writers}")

    def on_accepted(self, worker: Worker, want: m.Want) -> None:
        """A worker may write in place from now on."""
        self._require_lent(worker, want, "accepts")

    def on_write(self, worker: Worker, memory: Memory, want: m.Want) -> None:
        """A worker writes in place."""
        self._require_lent(worker, want, "writes for")

    def _require_lent(self, worker: Worker, want: m.Want, what: str) -> None:
        trainer = self._world.trainers.get(want.trainer)
        if trainer is None or not trainer.alive or trainer.core.stream is None:
            return
        slots, slot = trainer.core.stream.slots, want.ticket.slot
        if slots._generations[slot] != want.ticket.generation or slots.state(slot) is not SlotState.LENT:
            now = f"generation {slots._generations[slot]}, {slots.state(slot).value}"
            raise Broken(f"S3: {worker} {what} {want.ticket} of {trainer}, where the slot is {now}")

    def on_trainers_write(self, trainer: Trainer, header: m.Pushed) -> None:
        """The trainer itself writes what came by TCP."""
        assert trainer.core.stream is not None
        assert trainer.memory is not None
        state = trainer.core.stream.slots.state(header.ticket.slot)
        writers = trainer.memory.writers.get(header.ticket.slot)
        if writers or state in (SlotState.OFFERED, SlotState.OUT):
            raise Broken(f"S3: {trainer} writes for {header.ticket} into a slot that is {state.value}, {writers}")

    def on_offer(self, trainer: Trainer, order: i.Offer) -> None:
        """A worker reports a batch as whole in its slot."""
        self._require_whole(trainer, order)

    def _require_whole(self, trainer: Trainer, of: i.Offer | OfferedBatch) -> None:
        assert trainer.memory is not None
        pieces, header = trainer.memory.slots[of.slot], of.header
        first = pieces[0]
        if first is None or any(piece != first for piece in pieces):
            raise Broken(f"S3: {trainer} has {header.ticket}, but in the slot lies {pieces}")
        claimed = (header.ticket, trainer.settings.stream, of.batch.position.epoch, of.batch.number, of.batch.empty)
        if (first.ticket, first.stream, first.epoch, first.number, first.empty) != claimed:
            raise Broken(f"S3: {trainer} takes {first} for {claimed}")

    # --- what consumers get ---

    def follow(self, trainer: Trainer, start: Position) -> Follow:
        """A reader begins at `start`."""
        ranks = trainer.settings.ranks
        stream = self._world.streams[trainer.settings.stream]

        def due() -> Iterator[tuple[int, int, bool]]:
            for each in rounds(start.number, stream.batches(start.epoch, start.group), start.group, ranks.world):
                for replica in range(ranks.replicas):
                    place = each.place(ranks.rank + replica)
                    yield each.start, place.number, place.empty

        return Follow(due(), start)

    def on_taken(self, trainer: Trainer, follow: Follow, item: OfferedBatch) -> None:
        """A consumer has the next batch."""
        batch = item.batch
        due = next(follow.due, None)
        got = (batch.position.number, batch.number, batch.empty)
        if got != due or (batch.position.epoch, batch.position.group) != (follow.start.epoch, follow.start.group):
            raise Broken(f"S1, S2: {trainer} gets {batch}, due was {due} since {follow.start}")
        self._require_whole(trainer, item)

    def on_end(self, follow: Follow) -> None:
        """An iterator says that this is the end."""
        missing = next(follow.due, None)
        if missing is not None:
            raise Broken(f"S2: the iterator from {follow.start} ends before {missing}")

    def on_let_go(self, trainer: Trainer, item: OfferedBatch) -> None:
        """A consumer drops a batch; nobody wrote into it meanwhile."""
        self._require_whole(trainer, item)

    def on_attached(self, trainer: Trainer, cursor: Cursor | None, answer: m.Attached) -> None:
        """A trainer is attached at the cursor that it asked for."""
        if answer.work:
            return  # in queue mode nobody asks for a position
        asked = (0, 0) if cursor is None else (cursor.epoch, cursor.number)
        if (answer.cursor.epoch, answer.cursor.number) != asked:
            raise Broken(f"S1: {trainer} asked for {cursor} and is attached at {answer.cursor}")

    # --- books ---

    def on_turn(self, trainer: Trainer) -> None:
        """A turn is over: the books agree."""
        stream = trainer.core.stream
        if stream is None:
            return
        slots, outbox = stream.slots, trainer.outbox
        if slots.count(SlotState.LENT) != stream.tickets.unanswered:
            raise Broken(f"S4: {trainer} has {stream.tickets.unanswered} unanswered wants and {_picture(slots)}")
        if not trainer.facts:
            offered, out = slots.count(SlotState.OFFERED), slots.count(SlotState.OUT)
            if offered != len(outbox._inbox) or outbox.holds_more_than(out) or not outbox.holds_more_than(out - 1):
                raise Broken(f"S4: {trainer} offers {len(outbox._inbox)}, not {out} are held; {_picture(slots)}")

    def on_fail(self, trainer: Trainer, error: BaseException) -> None:
        """A feed ends."""
        problem = self._world.objection_to_failing(trainer, error)
        if problem:
            raise Broken(f"{trainer} fails although {problem}: {error}")

    # --- progress ---

    def on_end_of_wait(self, consumer: Consumer) -> None:
        """A consumer has what it waited for."""
        self._look(consumer)

    def look_who_waits(self) -> None:
        """Nobody waits for too long."""
        for trainer in self._world.trainers.values():
            if trainer.alive and trainer.consumer is not None and not trainer.replaced:
                self._look(trainer.consumer)

    def _look(self, consumer: Consumer) -> None:
        world = self._world
        if world.healed_s is None:
            return
        since_s = max(consumer.waits_since_s, world.healed_s)
        waited_s = world.scheduler.now_s - since_s
        if waited_s > self.longest_wait_s:
            self.longest_wait_s = waited_s
            allowed_s = world.patience_s(consumer)
            if waited_s > allowed_s:
                raise Broken(f"L1: {consumer.trainer} waits {consumer.waits_for} for {waited_s:.2f} s, allowed are "
                             f"{allowed_s:.2f} s")  # fmt: skip


def _picture(slots: SlotStates) -> str:
    return "slots " + "".join(state.value[:2] for state in slots._states)
