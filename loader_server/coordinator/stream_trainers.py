"""The trainers of a stream: which ranks they hold, how far they are, how long they wait for data.

Rules: pure. A trainer is its incarnation. Ranks of a training stream have one holder each; readers of an evaluation
stream hold nothing. What is done for a heartbeat does not grow with the world.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loader_server.coordinator.succession import Succession

if TYPE_CHECKING:
    from loader_server.coordinator.events import StreamView
    from shared.wire import messages as m
    from shared.wire.parts import Cursor

__all__ = ["AttachedTrainer", "Position", "StreamTrainers"]

#: Epoch and batch number.
Position = tuple[int, int]

#: The share of waiting that people are shown looks back over about so long.
_LOOKS_BACK_S = 10.0


@dataclass(slots=True, kw_only=True)
class AttachedTrainer:
    """A trainer that is attached."""

    peer: bytes
    attach: m.Attach
    cursor: Cursor
    #: Batches in the cursor's epoch.
    batches: int
    heard_s: float
    #: How far it has trained, and read.
    trained: Position
    read: Position
    #: Thousandths of its time in which it waited for data, of late; None until it reads.
    waited_permille: float | None = None
    #: Time that this share is of.
    _known_s: float = 0.0

    @property
    def ranks(self) -> range:
        """The ranks that it claims."""
        return range(self.attach.rank, self.attach.rank + self.attach.replicas)

    @property
    def stated(self) -> bool:
        """Whether the trainer has said where it stands, rather than just come."""
        return self.attach.cursor is not None

    def hear(self, peer: bytes, progress: m.Progress, now_s: float) -> None:
        """Its heartbeat; how far it has trained is for `StreamTrainers.move`."""
        read = (progress.read_epoch, progress.read_number)
        if self.waited_permille is not None or progress.waited_permille or read != self.read:
            self._average(progress.waited_permille, now_s - self.heard_s)
        self.peer, self.heard_s, self.read = peer, now_s, read

    def _average(self, permille: int, over_s: float) -> None:
        """Over all that is known at first, and over the last seconds from then on."""
        over_s = min(over_s, _LOOKS_BACK_S)
        self._known_s = min(self._known_s + over_s, _LOOKS_BACK_S)
        before = self.waited_permille or 0.0
        self.waited_permille = before + (permille - before) * (over_s / self._known_s if self._known_s else 1.0)


@dataclass(slots=True)
class StreamTrainers:
    """A stream, and who is attached to it."""

    view: StreamView
    group: int = 0
    #: How far the last rank has trained, as it is kept.
    trained: Position = (0, 0)
    #: By incarnation; to change through the methods only.
    trainers: dict[int, AttachedTrainer] = field(default_factory=dict)
    succession: Succession = field(default_factory=Succession)
    #: Trainers that disagree with the others, since when.
    waiting_since_s: dict[int, float] = field(default_factory=dict)
    _positions: Counter[Position] = field(default_factory=Counter)

    def holder(self, rank: int) -> AttachedTrainer | None:
        """Who is attached with this rank."""
        holder = self.succession.holder(rank)
        return self.trainers.get(holder) if holder is not None else None

    def add(self, trainer: AttachedTrainer) -> None:
        """It is attached now, in place of itself as it was."""
        self.remove(trainer.attach.incarnation)
        self.trainers[trainer.attach.incarnation] = trainer
        self._positions[trainer.trained] += 1

    def remove(self, incarnation: int) -> None:
        """It is not attached any more."""
        trainer = self.trainers.pop(incarnation, None)
        if trainer is not None:
            self._uncount(trainer.trained)

    def move(self, trainer: AttachedTrainer, trained: Position) -> None:
        """It has trained so far."""
        self._uncount(trainer.trained)
        trainer.trained = trained
        self._positions[trained] += 1

    def _uncount(self, position: Position) -> None:
        self._positions[position] -= 1
        if not self._positions[position]:
            del self._positions[position]

    def last(self) -> Position:
        """How far the last of them has trained; there has to be one. Ranks of a world stand at few places."""
        return min(self._positions)

    def remove_silent(self, since_s: float) -> None:
        """Give up those that were last heard before then."""
        for incarnation in [one for one, trainer in self.trainers.items() if trainer.heard_s < since_s]:
            self.remove(incarnation)
        self.waiting_since_s = {one: at_s for one, at_s in self.waiting_since_s.items() if at_s >= since_s}
