"""Where the receive thread and the consumers meet: batches go one way, slots and errors the other.

Rules: consumers take from the inbox under its one lock and never touch a socket; what they did is left in deques for
the receive thread, because a slot's finaliser may run in any thread, at any moment, and must not take a lock. One
line is served at a time; the newest one that waits goes before, because frameworks abandon iterators without a word.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import ClosedError
from trainer_client.inbox import Inbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shared.messages import Pushed
    from trainer_client.course import Position, Target

__all__ = ["Handover", "Item", "Line"]

#: How long the line in service has to pause before an older one may take over.
_LEFT_BEHIND_S = 0.1

_SERIALS = itertools.count()


@dataclass(frozen=True, slots=True)
class Item:
    """A batch that lies whole in its slot."""

    target: Target
    slot: int
    header: Pushed


class Line:
    """A reader's way from `start` to the end of that epoch, and how much of it was taken."""

    __slots__ = ("closed", "ended", "serial", "start", "taken")

    def __init__(self, start: Position) -> None:
        self.serial = next(_SERIALS)
        self.start = start
        self.taken = 0
        self.ended = False
        self.closed = False


class Handover:
    """`wake` wakes the receive thread; `focus` asks it to serve a line."""

    def __init__(self, wake: Callable[[], None], focus: Callable[[Line], None]) -> None:
        self.error: BaseException | None = None
        self._wake = wake
        self._focus = focus
        self._ready = threading.Condition()
        self._inbox: Inbox[Item] = Inbox()
        self._served: Line | None = None
        self._wanted: Line | None = None
        self._waiting: dict[int, Line] = {}
        self._taken_s = 0.0
        self._closed = False
        #: Slots handed out, each with whether only a copy of it was.
        self.handed: deque[tuple[int, bool]] = deque()
        #: Slots whose last view is gone.
        self.returned: deque[int] = deque()
        # What the receive thread waits for. It turns whenever a batch arrives, and looks at the rest then anyway.
        #: Whether nothing can be asked for before a slot comes back.
        self.wants_slots = False
        #: Whether workers have so little left to do that more should be asked for as soon as a batch is taken.
        self.wants_room = True
        self._out = 0
        self._back = 0

    # --- for consumers, in any thread ---

    def take(self, line: Line) -> Item | None:
        """The next batch of this line, waiting for it; None at the end."""
        with self._ready:
            self._waiting[line.serial] = line
            try:
                return self._waited(line)
            finally:
                del self._waiting[line.serial]

    def _waited(self, line: Line) -> Item | None:
        while True:
            if self.error is not None:
                raise self.error
            if self._closed or line.closed:
                raise _closed()
            if line.ended:
                return None
            if self._served is line and self._inbox.has_next():
                return self._taken(line)
            newest = line.serial == max(self._waiting)
            if self._wanted is not line and newest and self._may_take_over(line):
                self._wanted = line
                self._focus(line)
            self._ready.wait(None if newest and self._wanted is line else _LEFT_BEHIND_S)

    def _may_take_over(self, line: Line) -> bool:
        """A newer line goes before; an older one only when the one in service has paused."""
        served = self._served
        if served is None or served.closed or served.ended or line.serial > served.serial:
            return True
        return time.monotonic() - self._taken_s > _LEFT_BEHIND_S

    def _taken(self, line: Line) -> Item:
        self._taken_s = time.monotonic()
        item = self._inbox.take()
        line.taken += 1
        line.ended = item.target.last
        if self.wants_room or line.ended:
            self._wake()
        return item

    def take_alike(self, line: Line, first: Item, most: int) -> list[Item]:
        """Up to so many more that are there already and have the shape of the first."""
        alike: list[Item] = []
        with self._ready:
            while len(alike) < most and self._served is line and not line.ended:
                item = self._inbox.peek()
                if item is None or item.header.shape != first.header.shape:
                    break
                alike.append(self._taken(line))
        return alike

    def out(self) -> int:
        """How many slots consumers hold; it may say too many for a moment, never too few."""
        return self._out - self._back - len(self.returned)

    def hand_out(self, slot: int, *, copied: bool) -> None:
        """The consumer has the slot, or (copied) only what lay in it."""
        self._out += not copied
        self.handed.append((slot, copied))
        if copied:
            self._wake()

    def give_back(self, slot: int) -> None:
        """The last view of a slot is gone; safe in a finaliser."""
        self.returned.append(slot)
        if self.wants_slots:
            self._wake()

    def leave(self, line: Line) -> None:
        """Nobody reads this line any more."""
        with self._ready:
            line.closed = True
            self._ready.notify_all()

    def interrupt(self, error: BaseException) -> None:
        """Whoever waits, or comes to wait, gets this error; the first one counts."""
        with self._ready:
            self.error = self.error or error
            self._ready.notify_all()

    def nudge(self) -> None:
        """Whoever waits runs a little Python, and with it handlers of signals, before waiting on."""
        with self._ready:
            self._ready.notify_all()

    def forget_interrupt(self) -> None:
        """A Ctrl-C that was answered is no reason not to begin anew."""
        with self._ready:
            if isinstance(self.error, KeyboardInterrupt):
                self.error = None

    def close(self) -> None:
        """Whoever waits learns that the feed is closed."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    # --- for the receive thread ---

    @property
    def head(self) -> int:
        """The next number that a consumer will take."""
        return self._inbox.head

    def deliver(self, items: Iterable[tuple[int, Item]]) -> None:
        """Batches are there."""
        with self._ready:
            for seq, item in items:
                self._inbox.put(seq, item)
            self._ready.notify_all()

    def retract(self, seq: int) -> Item | None:
        """Take a batch back, if no consumer was faster."""
        with self._ready:
            return self._inbox.retract(seq)

    def restart(self, head: int) -> list[Item]:
        """Begin anew at `head`; the batches that were here."""
        with self._ready:
            self._served = None
            return self._inbox.restart(head)

    def serve(self, line: Line) -> None:
        """From now on the inbox holds what this line needs."""
        with self._ready:
            self._served = line
            self._ready.notify_all()

    def take_back(self) -> list[int]:
        """The slots that came back since the last call."""
        slots = []
        while self.returned:
            slots.append(self.returned.popleft())
            self._back += 1
        return slots


def _closed() -> ClosedError:
    return ClosedError(expected="an open feed", got="a closed one", where="feed", remedy="Open another: connect(...).")
