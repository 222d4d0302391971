"""What lies ahead of a trainer, numbered: the targets that are in the line now, and the course behind them.

Rules: pure. Numbers only grow: a new course goes on counting where the last one ended, so that an answer to an old
number is never taken for a new one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from trainer_client.course import Course, Position, Seat, Target

if TYPE_CHECKING:
    from trainer_client.handover import Line

__all__ = ["Road"]


class Road:
    """The way from `start`; `epochs` is what is known of lengths, by (epoch, group)."""

    def __init__(self, start: Position, seat: Seat, *, repeats: bool) -> None:
        self.epochs: dict[tuple[int, int], int] = {}
        #: The group of later epochs.
        self.next_group = start.group
        self._seat = seat
        self._repeats = repeats
        self._first = 0
        self._ahead: deque[Target] = deque()
        self._course = self._new_course(start)

    def learn(self, epoch: int, group: int, batches: int) -> None:
        """An epoch has so many batches."""
        self.epochs[epoch, group] = batches
        self._course.learn(epoch, group, batches)

    def missing(self) -> tuple[int, int] | None:
        """The (epoch, group) that has to be learnt before the road goes on."""
        return self._course.missing()

    def extend(self, most: int) -> tuple[Target, ...]:
        """Up to so many more targets, which are in the line from now on."""
        more: list[Target] = []
        while len(more) < most:
            target = self._course.advance()
            if target is None:
                break
            more.append(target)
        self._ahead.extend(more)
        return tuple(more)

    def pass_to(self, head: int) -> bool:
        """Everything before number `head` was taken; whether that is news."""
        passed = head - self._first
        for _ in range(passed):
            self._ahead.popleft()
        self._first = head
        return passed > 0

    def leads_on(self, line: Line) -> bool:
        """Whether what lies ahead is just what a line that starts now needs."""
        if line.taken:
            return False
        if self._ahead:
            return self._ahead[0].position == line.start and self._ahead[0].replica == 0
        lap = self._course.lap_ahead()
        return lap is not None and lap[0] == line.start

    def turn(self, line: Line) -> int:
        """Lead where the line needs to go on instead; the number of its next batch."""
        self._course = self._new_course(line.start)
        for _ in range(line.taken):
            self._course.advance()
        self._first += len(self._ahead)
        self._ahead.clear()
        return self._first

    def _new_course(self, start: Position) -> Course:
        course = Course(start, self._seat, next_group=self.next_group, repeats=self._repeats)
        for (epoch, group), batches in self.epochs.items():
            course.learn(epoch, group, batches)
        return course
