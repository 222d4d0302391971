"""Which want is built next: trainers in turn, urgent heads first.

Rules: pure. Within one trainer urgent wants go first, and wants keep their order otherwise. A trainer with many wants
delays another by one batch at most, or by two if it has urgent ones: once one of them went before all lines, its next
one does so only when every trainer that waited has had its turn. Whose next want may not be built yet holds up nobody
but its trainer.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WantQueue"]

K = TypeVar("K")
J = TypeVar("J")


class _Line(Generic[J]):
    """The wants of one trainer."""

    __slots__ = ("later", "urgent")

    def __init__(self) -> None:
        self.urgent: deque[J] = deque()
        self.later: deque[J] = deque()

    def __len__(self) -> int:
        return len(self.urgent) + len(self.later)

    def first(self) -> J:
        return (self.urgent or self.later)[0]

    def pop(self) -> J:
        return (self.urgent or self.later).popleft()

    def remove(self, job: J) -> bool:
        for jobs in (self.urgent, self.later):
            if job in jobs:
                jobs.remove(job)
                return True
        return False


def _any(_trainer: object, _job: object) -> bool:
    """All may be built."""
    return True


class WantQueue(Generic[K, J]):
    """Jobs by the trainer that wants them."""

    def __init__(self) -> None:
        #: In the order of their turns.
        self._lines: OrderedDict[K, _Line[J]] = OrderedDict()
        #: Trainers whose urgent want goes before all lines, in the order in which these came.
        self._ahead: dict[K, None] = {}
        #: Turns so far, and after how many a trainer may go before all lines again.
        self._turns = 0
        self._again: dict[K, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def waiting(self, may: Callable[[K, J], bool]) -> int:
        """Jobs of the trainers whose next one may be built."""
        return sum(len(line) for trainer, line in self._lines.items() if may(trainer, line.first()))

    def put(self, trainer: K, job: J, *, urgent: bool) -> None:
        """Add a job at the end of its trainer's line, or (urgent) before the others in it, and before all lines."""
        line = self._lines.setdefault(trainer, _Line())
        (line.urgent if urgent else line.later).append(job)
        if urgent and self._turns >= self._again.get(trainer, 0):
            self._ahead[trainer] = None

    def take(self, may: Callable[[K, J], bool] = _any) -> J | None:
        """The next job that may be built; its trainer goes to the end of the turn."""
        for trainer in self._ahead:
            if may(trainer, self._lines[trainer].first()):
                self._again[trainer] = self._turns + len(self._lines)
                del self._ahead[trainer]
                return self._pop(trainer)
        for trainer, line in self._lines.items():
            if may(trainer, line.first()):
                self._turns += 1
                self._lines.move_to_end(trainer)
                return self._pop(trainer)
        return None

    def _pop(self, trainer: K) -> J:
        job = self._lines[trainer].pop()
        self._tidy(trainer)
        return job

    def remove(self, trainer: K, job: J) -> bool:
        """Take a job out; False if it is no longer here."""
        line = self._lines.get(trainer)
        if line is None or not line.remove(job):
            return False
        self._tidy(trainer)
        return True

    def _tidy(self, trainer: K) -> None:
        line = self._lines[trainer]
        if not line.urgent:
            self._ahead.pop(trainer, None)
        if not line:
            del self._lines[trainer]

    def drop(self, trainer: K) -> list[J]:
        """Take out all jobs of a trainer, which is gone."""
        self._again.pop(trainer, None)
        self._ahead.pop(trainer, None)
        line = self._lines.pop(trainer, None)
        return [*line.urgent, *line.later] if line is not None else []
