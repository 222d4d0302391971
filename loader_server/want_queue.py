"""Which want is built next: trainers in turn, urgent heads first.

Rules: pure. Within one trainer wants keep their order; a trainer with many wants delays another by one batch at most.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

__all__ = ["WantQueue"]

K = TypeVar("K")
J = TypeVar("J")


class WantQueue(Generic[K, J]):
    """Jobs by the trainer that wants them."""

    def __init__(self) -> None:
        self._lines: OrderedDict[K, deque[J]] = OrderedDict()
        self._urgent: deque[tuple[K, J]] = deque()

    def __len__(self) -> int:
        return len(self._urgent) + sum(len(line) for line in self._lines.values())

    def put(self, trainer: K, job: J, *, urgent: bool) -> None:
        """Add a job at the end of its trainer's line, or before all lines."""
        if urgent:
            self._urgent.append((trainer, job))
        else:
            self._lines.setdefault(trainer, deque()).append(job)

    def take(self) -> J | None:
        """The next job; its trainer goes to the end of the turn."""
        if self._urgent:
            return self._urgent.popleft()[1]
        if not self._lines:
            return None
        trainer, line = next(iter(self._lines.items()))
        job = line.popleft()
        del self._lines[trainer]
        if line:
            self._lines[trainer] = line
        return job

    def remove(self, trainer: K, job: J) -> bool:
        """Take a job out; False if it is no longer here."""
        line = self._lines.get(trainer, deque())
        if job in line:
            line.remove(job)
            if not line:
                del self._lines[trainer]
            return True
        if (trainer, job) in self._urgent:
            self._urgent.remove((trainer, job))
            return True
        return False

    def drop(self, trainer: K) -> list[J]:
        """Take out all jobs of a trainer."""
        urgent = [job for one, job in self._urgent if one == trainer]
        self._urgent = deque(entry for entry in self._urgent if entry[0] != trainer)
        return [*urgent, *self._lines.pop(trainer, ())]
