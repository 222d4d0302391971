"""Where the receive thread and the consumers meet: batches go one way, facts and errors the other.

Rules: a consumer pops what is offered under the one lock here, without a hop between threads, and never touches a
socket. What consumers do is left as facts in one ordered deque, which takes no lock, because a batch's finaliser may
run in any thread, at any moment, inside garbage collection. An item carries its finaliser before it is offered, so
that a signal at any instruction loses no slot. One reader is served at a time; the newest one that waits goes before,
because frameworks abandon iterators without a word.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from shared.errors import ClosedError
from trainer_client.core.events import HandedBack, Opened, Took
from trainer_client.core.inbox import Inbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shared.messages import Pushed
    from trainer_client.core.events import Event
    from trainer_client.core.instructions import Offer
    from trainer_client.core.upcoming import Position, UpcomingBatch

__all__ = ["Item", "Outbox", "Reader"]

#: How long the reader in service has to pause before an older one may take over.
_LEFT_BEHIND_S = 0.1

_SERIALS = itertools.count()


class Item:
    """A batch that lies whole in its slot; when the last reference to it goes, the slot is handed back."""

    __slots__ = ("_hand_back", "batch", "header", "seq", "slot")

    def __init__(self, offer: Offer, hand_back: Callable[[int, int], None]) -> None:
        self.seq = offer.seq
        self.slot = offer.slot
        self.batch: UpcomingBatch = offer.batch
        self.header: Pushed = offer.header
        self._hand_back: Callable[[int, int], None] | None = hand_back

    def disarm(self) -> None:
        """It is taken back: the core knows, and nobody hands anything back."""
        self._hand_back = None

    def __del__(self) -> None:
        if self._hand_back is not None:
            self._hand_back(self.seq, self.slot)


class Reader:
    """A reader's way from `start` to the end of that epoch, and how much of it was taken."""

    __slots__ = ("closed", "ended", "serial", "start", "taken")

    def __init__(self, start: Position) -> None:
        self.serial = next(_SERIALS)
        self.start = start
        self.taken = 0
        self.ended = False
        self.closed = False


class Outbox:
    """`wake` wakes the receive thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        #: What consumers did, in order; the receive thread empties it.
        self.facts: deque[Event] = deque()
        #: The first batch that was not yet read, by epoch and number: for people.
        self.read_to = (0, 0)
        #: When the receive thread is to be woken. It turns whenever a batch arrives, and looks at the rest then anyway.
        self.wake_for_room = True
        self.wake_for_slots = False
        self._wake = wake
        self._changed = threading.Condition()
        self._inbox: Inbox[Item] = Inbox()
        self._served: Reader | None = None
        self._wanted: Reader | None = None
        self._waiting: dict[int, Reader] = {}
        self._taken_s = 0.0
        self._waiting_since_s = 0.0
        self._closed = False
        #: Slots that consumers look into. Adding and discarding are whole steps of the interpreter: no lock is needed.
        self._held: set[int] = set()

    # --- for consumers, in any thread ---

    def take(self, reader: Reader) -> Item | None:
        """The next batch of this reader, waiting for it; None at the end."""
        with self._changed:
            self._waiting[reader.serial] = reader
            try:
                return self._wait_for_next(reader)
            finally:
                del self._waiting[reader.serial]

    def _wait_for_next(self, reader: Reader) -> Item | None:
        while True:
            if self.error is not None:
                raise self.error
            if self._closed or reader.closed:
                raise _closed()
            if reader.ended:
                return None
            if self._served is reader and self._inbox.has_next():
                return self._pop(reader)
            newest = reader.serial == max(self._waiting)
            if self._wanted is not reader and newest and self._may_take_over(reader):
                self._ask_to_be_served(reader)
            self._waiting_since_s = self._waiting_since_s or time.monotonic()
            self._changed.wait(None if newest and self._wanted is reader else _LEFT_BEHIND_S)

    def _may_take_over(self, reader: Reader) -> bool:
        """A newer reader goes before; an older one only when the one in service has paused."""
        served = self._served
        if served is None or served.closed or served.ended or reader.serial > served.serial:
            return True
        return time.monotonic() - self._taken_s > _LEFT_BEHIND_S

    def _ask_to_be_served(self, reader: Reader) -> None:
        self._wanted = reader
        self.facts.append(Opened(reader.serial, reader.start, reader.taken))
        self._wake()

    def _pop(self, reader: Reader) -> Item:
        self._taken_s, self._waiting_since_s = time.monotonic(), 0.0
        item = self._inbox.take()
        self._held.add(item.slot)
        self.facts.append(Took(item.seq, item.slot))
        reader.taken += 1
        reader.ended = item.batch.last
        self.read_to = (item.batch.position.epoch, item.batch.number + 1)
        if self.wake_for_room or reader.ended:
            self._wake()
        return item

    def take_alike(self, reader: Reader, first: Item, most: int) -> list[Item]:
        """Up to so many more that are there already and have the shape of the first."""
        alike: list[Item] = []
        with self._changed:
            while len(alike) < most and self._served is reader and not reader.ended:
                item = self._inbox.peek()
                if item is None or item.header.shape != first.header.shape:
                    break
                alike.append(self._pop(reader))
        return alike

    def held(self) -> int:
        """How many slots consumers hold."""
        return len(self._held)

    def waiting_s(self, now_s: float) -> float:
        """How long a consumer has been waiting for a batch by now."""
        since_s = self._waiting_since_s
        return now_s - since_s if since_s else 0.0

    def hand_back(self, seq: int, slot: int) -> None:
        """The last view of a batch is gone; called by finalisers."""
        self._held.discard(slot)
        self.facts.append(HandedBack(seq, slot))
        if self.wake_for_slots:
            self._wake()

    def leave(self, reader: Reader) -> None:
        """Nobody reads this any more."""
        with self._changed:
            reader.closed = True
            self._changed.notify_all()

    def interrupt(self, error: BaseException) -> None:
        """Whoever waits, or comes to wait, gets this error; the first one counts."""
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()

    def nudge(self) -> None:
        """Whoever waits runs a little Python, and with it handlers of signals, before waiting on."""
        with self._changed:
            self._changed.notify_all()

    def forget_interrupt(self) -> None:
        """A Ctrl-C that was answered is no reason not to begin anew."""
        with self._changed:
            if isinstance(self.error, KeyboardInterrupt):
                self.error = None

    def close(self) -> None:
        """Whoever waits learns that the feed is closed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- for the receive thread ---

    def offer(self, offers: Iterable[Offer]) -> None:
        """Batches are there."""
        items = [Item(offer, self.hand_back) for offer in offers]
        with self._changed:
            for item in items:
                self._inbox.put(item.seq, item)
            self._changed.notify_all()

    def take_back(self, seq: int) -> bool:
        """Take a batch back; False if a consumer was faster."""
        with self._changed:
            item = self._inbox.retract(seq)
            if item is not None:
                item.disarm()
            return item is not None

    def serve(self, serial: int, head: int, *, ended: bool = False) -> None:
        """What is here from `head` on is for this reader; where a consumer took of it meanwhile it has to ask anew."""
        with self._changed:
            reader = self._reader_of(serial)
            if reader is not None and ended:
                reader.ended = True
            elif reader is not None and head != self._inbox.head:
                self._ask_to_be_served(reader)
            elif reader is not None:
                self._served = reader
            self._changed.notify_all()

    def restart(self, serial: int, head: int) -> None:
        """Begin anew at `head` for this reader; the batches that were here are handed back."""
        with self._changed:
            left = self._inbox.restart(head)
            self._served = self._reader_of(serial)
            self._changed.notify_all()
        del left  # outside of the lock, for this runs finalisers

    def _reader_of(self, serial: int) -> Reader | None:
        """None if another one has asked to be served since."""
        wanted = self._wanted
        return wanted if wanted is not None and wanted.serial == serial else None


def _closed() -> ClosedError:
    return ClosedError(expected="an open feed", got="a closed one", where="feed", remedy="Open another: connect(...).")
