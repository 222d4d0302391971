"""The trainers of a stream: the ranks they hold, their positions, and how long they wait for data.

Rules: pure. A trainer is identified by its incarnation. Each rank of a training stream has one holder; readers of an
evaluation stream hold nothing. The work for a heartbeat does not grow with the world.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loader_server.coordinator import refusals
from loader_server.coordinator.streams.results import StreamResults
from loader_server.coordinator.streams.succession import Succession

if TYPE_CHECKING:
    from loader_server.coordinator.events import StreamView
    from shared.wire import messages as m
    from shared.wire.message_parts import Cursor

__all__ = ["AttachedTrainer", "Position", "StreamTrainers", "compared", "overlap"]

#: Epoch and batch number.
Position = tuple[int, int]

#: Length of the moving average of waiting that is shown to people.
_LOOKS_BACK_S = 10.0


@dataclass(slots=True, kw_only=True)
class AttachedTrainer:
    """An attached trainer."""

    peer: bytes
    attach: m.Attach
    cursor: Cursor
    #: Batches in the cursor's epoch.
    batches: int
    heard_s: float
    #: Positions up to which it has trained and read.
    trained: Position
    read: Position
    #: Share of its recent time that it waited for data, in thousandths; None until it reads.
    waited_permille: float | None = None
    #: The tenure of its ranks; None if it claims none.
    tenure: int | None = None
    #: The time that the average covers so far.
    _known_s: float = 0.0

    @property
    def ranks(self) -> range:
        """Return the ranks that it claims."""
        return range(self.attach.rank, self.attach.rank + self.attach.replicas)

    @property
    def stated(self) -> bool:
        """Return whether the trainer came with a position of its own."""
        return self.attach.cursor is not None

    def hear(self, peer: bytes, progress: m.Progress, now_s: float) -> None:
        """Take in a heartbeat, except for the trained position, which `StreamTrainers.move` records."""
        read = (progress.read_epoch, progress.read_number)
        if self.waited_permille is not None or progress.waited_permille or read != self.read:
            self._average(progress.waited_permille, now_s - self.heard_s)
        self.peer, self.heard_s, self.read = peer, now_s, read

    def _average(self, permille: int, over_s: float) -> None:
        """Update the average: over all time at first, over the last seconds from then on."""
        over_s = min(over_s, _LOOKS_BACK_S)
        self._known_s = min(self._known_s + over_s, _LOOKS_BACK_S)
        before = self.waited_permille or 0.0
        self.waited_permille = before + (permille - before) * (over_s / self._known_s if self._known_s else 1.0)


@dataclass(slots=True)
class StreamTrainers:
    """A stream, and the trainers that are attached to it."""

    view: StreamView
    group: int = 0
    #: The position of the slowest rank, as kept in the journal.
    trained: Position = (0, 0)
    #: By incarnation; to be changed only through the methods.
    trainers: dict[int, AttachedTrainer] = field(default_factory=dict)
    succession: Succession = field(default_factory=Succession)
    #: Since when each trainer that disagrees with the others has been waiting, by incarnation.
    waiting_since_s: dict[int, float] = field(default_factory=dict)
    results: StreamResults = field(init=False)
    _positions: Counter[Position] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.results = StreamResults(evaluation=self.view.evaluation)

    def holder(self, rank: int) -> AttachedTrainer | None:
        """Return the attached holder of this rank; None if there is none."""
        holder = self.succession.holder(rank)
        return self.trainers.get(holder) if holder is not None else None

    def attach_of(self, rank: int) -> m.Attach | None:
        """Return the request of the attached holder of this rank; None if there is none."""
        holder = self.holder(rank)
        return holder.attach if holder is not None else None

    def is_superseded(self, attach: m.Attach) -> bool:
        """Return whether another trainer has taken one of its ranks since it held them."""
        ranks = range(attach.rank, attach.rank + attach.replicas)
        is_older = attach.tenure is not None and self.succession.last_tenure(ranks) > attach.tenure
        return is_older or self.succession.is_superseded(attach.incarnation)

    def former(self, peer: bytes, incarnation: int) -> list[int]:
        """Return the other trainers that were attached on this connection."""
        return [one for one, trainer in self.trainers.items() if trainer.peer == peer and one != incarnation]

    def add(self, trainer: AttachedTrainer) -> None:
        """Add a trainer that is attached now, replacing its earlier self."""
        self.remove(trainer.attach.incarnation)
        self.trainers[trainer.attach.incarnation] = trainer
        self._positions[trainer.trained] += 1

    def remove(self, incarnation: int) -> None:
        """Remove a trainer; do nothing if it is not attached."""
        trainer = self.trainers.pop(incarnation, None)
        if trainer is not None:
            self._uncount(trainer.trained)

    def move(self, trainer: AttachedTrainer, trained: Position) -> None:
        """Record how far a trainer has trained."""
        self._uncount(trainer.trained)
        trainer.trained = trained
        self._positions[trained] += 1

    def _uncount(self, position: Position) -> None:
        self._positions[position] -= 1
        if not self._positions[position]:
            del self._positions[position]

    def last(self) -> Position:
        """Return the slowest trainer's position; at least one has to be attached.

        Positions are counted, so this costs as much as there are distinct ones, and a world's ranks are at few.
        """
        return min(self._positions)

    def remove_silent(self, since_s: float) -> None:
        """Remove trainers, and waits, that were last heard before this time."""
        for incarnation in [one for one, trainer in self.trainers.items() if trainer.heard_s < since_s]:
            self.remove(incarnation)
        self.waiting_since_s = {one: at_s for one, at_s in self.waiting_since_s.items() if at_s >= since_s}


def overlap(one: range, other: range) -> bool:
    """Return whether two ranges of ranks have one in common."""
    return one.start < other.stop and other.start < one.stop


def compared(attach: m.Attach, cursor: Cursor, other: AttachedTrainer) -> m.NotAttached | None:
    """Return a refusal if two live ranks disagree on the world, or on the cursor once both have stated one."""
    if attach.world != other.attach.world:
        return refusals.another_world(attach, other.attach)
    if attach.cursor is None or not other.stated:
        return None
    theirs = other.cursor
    if (cursor.epoch, cursor.number) != (theirs.epoch, theirs.number):
        return refusals.another_cursor(attach, cursor, other.attach, theirs)
    return None
