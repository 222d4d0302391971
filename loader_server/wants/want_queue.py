"""The order in which wants are built: trainers take turns, and urgent wants go first.

Rules: pure. Of one trainer's wants the urgent ones go first; otherwise wants keep their order. A trainer with many
wants delays another by one batch at most, or by two if it has urgent ones: after one of them jumped the turn, its next
one may do so only once every trainer that waited has had its turn. A trainer whose next want may not be built yet holds
up nobody else.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WantQueue"]

K = TypeVar("K")
W = TypeVar("W")


class _TrainerWants(Generic[W]):
    """The wants of one trainer."""

    __slots__ = ("later", "urgent")

    def __init__(self) -> None:
        self.urgent: deque[W] = deque()
        self.later: deque[W] = deque()

    def __len__(self) -> int:
        return len(self.urgent) + len(self.later)

    def first(self) -> W:
        return (self.urgent or self.later)[0]

    def pop(self) -> W:
        return (self.urgent or self.later).popleft()

    def remove(self, want: W) -> bool:
        for wants in (self.urgent, self.later):
            if want in wants:
                wants.remove(want)
                return True
        return False


def _any(_trainer: object, _want: object) -> bool:
    """Allow every want."""
    return True


class WantQueue(Generic[K, W]):
    """Wants by trainer, with the turns of trainers."""

    def __init__(self) -> None:
        #: Trainers in the order of their turns.
        self._by_trainer: OrderedDict[K, _TrainerWants[W]] = OrderedDict()
        #: Trainers whose urgent want goes before all turns, in the order in which these wants came.
        self._ahead: dict[K, None] = {}
        #: The turns so far, and by trainer the turn from which on it may go first again.
        self._turns = 0
        self._again: dict[K, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_trainer.values()))

    def waiting(self, may: Callable[[K, W], bool]) -> int:
        """Return the number of wants of those trainers whose next want may be built."""
        # The others wait for their own trainer, and would not delay a newcomer.
        return sum(len(wants) for trainer, wants in self._by_trainer.items() if may(trainer, wants.first()))

    def put(self, trainer: K, want: W, *, urgent: bool) -> None:
        """Add a want behind its trainer's others, or before those and before all turns if it is urgent."""
        wants = self._by_trainer.setdefault(trainer, _TrainerWants())
        (wants.urgent if urgent else wants.later).append(want)
        if urgent and self._turns >= self._again.get(trainer, 0):
            self._ahead[trainer] = None

    def take(self, may: Callable[[K, W], bool] = _any) -> W | None:
        """Return the next want that may be built, and take it out; None if there is none.

        Its trainer's next turn comes after those of all others.
        """
        for trainer in self._ahead:
            if may(trainer, self._by_trainer[trainer].first()):
                # After jumping the turn, not again before each trainer that waits now has had a turn: urgent wants
                # alone must not starve the others.
                self._again[trainer] = self._turns + len(self._by_trainer)
                del self._ahead[trainer]
                return self._pop(trainer)
        # A trainer whose next want may not be built yet keeps its turn, and holds up nobody else.
        for trainer, wants in self._by_trainer.items():
            if may(trainer, wants.first()):
                self._turns += 1
                self._by_trainer.move_to_end(trainer)
                return self._pop(trainer)
        return None

    def _pop(self, trainer: K) -> W:
        want = self._by_trainer[trainer].pop()
        self._tidy(trainer)
        return want

    def remove(self, trainer: K, want: W) -> bool:
        """Take a want out; return False if it is no longer here."""
        wants = self._by_trainer.get(trainer)
        if wants is None or not wants.remove(want):
            return False
        self._tidy(trainer)
        return True

    def _tidy(self, trainer: K) -> None:
        wants = self._by_trainer[trainer]
        # An urgent want that was taken out must leave its trainer no place before all turns.
        if not wants.urgent:
            self._ahead.pop(trainer, None)
        if not wants:
            del self._by_trainer[trainer]

    def drop(self, trainer: K) -> list[W]:
        """Take out and return all wants of a trainer that is gone."""
        # It begins afresh if it comes back.
        self._again.pop(trainer, None)
        self._ahead.pop(trainer, None)
        wants = self._by_trainer.pop(trainer, None)
        return [*wants.urgent, *wants.later] if wants is not None else []
