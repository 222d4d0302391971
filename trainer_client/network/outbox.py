"""Where the receive thread and the consumers meet: batches go one way, facts and errors the other.

Rules: a consumer pops what is offered under the one lock here, without a hop between threads, and never touches a
socket. What consumers did is left as facts in one ordered deque. One reader is served at a time; the newest one that
waits takes precedence, because frameworks abandon iterators without a word.

A signal handler may raise at any instruction of a consumer's Python, so nothing here depends on two instructions both
being reached: the interpreter itself takes and releases the locks, a reader counts a batch before the one step that
takes it out (and takes it again if that step was not reached), and a weak reference reports that a slot came back,
without running any Python.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING

from shared.errors import ClosedError
from trainer_client.core.events import HandedBack, Opened, Took
from trainer_client.network.inbox import Inbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shared.errors import EndedError
    from shared.wire.messages import Pushed
    from trainer_client.core.events import Event
    from trainer_client.core.instructions import Offer
    from trainer_client.core.upcoming import Position, UpcomingBatch

__all__ = ["NOTHING_READ", "Item", "Outbox", "Reader", "Waiting"]

#: How long the reader that is served has to pause before an older one may take over.
_LEFT_BEHIND_S = 0.1

#: Before the first round of all.
NOTHING_READ = (-1, 0)

_SERIALS = itertools.count()


class _Claim:
    """Lives for as long as anybody references a slot."""

    __slots__ = ("__weakref__",)


class _Loan(weakref.ref[_Claim]):
    """Watches a claim; when the claim dies, it passes itself to a built-in method, so no Python runs."""

    __slots__ = ("seq", "slot")

    seq: int
    slot: int


class _Knock:
    """Calls a function as it dies; apart from the claim, so that an error from this finaliser keeps no claim alive."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call()


class Item:
    """A complete batch in its slot; when the last reference to it goes, the slot is handed back."""

    __slots__ = ("_claim", "_knock", "batch", "header", "seq", "slot")  # released in alphabetical order

    def __init__(self, offer: Offer, claim: _Claim, gone: Callable[[], None]) -> None:
        self.seq = offer.seq
        self.slot = offer.slot
        self.batch: UpcomingBatch = offer.batch
        self.header: Pushed = offer.header
        self._claim = claim
        self._knock = _Knock(gone)


class Reader:
    """One reader, from `start` to the end of that epoch, and how far it has come."""

    __slots__ = ("begun", "closed", "end", "first", "passed", "serial", "start", "taken")

    def __init__(self, start: Position) -> None:
        self.serial = next(_SERIALS)
        self.start = start
        self.taken = 0
        #: The first round, by epoch and number, of which it took no batch, and of which it did not take all of ours.
        self.begun = self.passed = (start.epoch, start.number)
        #: In the sequence of upcoming batches: the number of its first one, and the number after its last one.
        self.first = 0
        self.end: int | None = None
        self.closed = False

    @property
    def ended(self) -> bool:
        """Whether nothing is left for it."""
        return self.end is not None and self.first + self.taken >= self.end

    def begin(self, head: int) -> None:
        """The reader is served from this number on."""
        self.first, self.end = head - self.taken, None

    def count(self, item: Item, replicas: int) -> None:
        """The reader takes this one, which is for one of our `replicas`."""
        self.taken = item.seq + 1 - self.first
        at = item.batch.position
        self.begun = (at.epoch, at.number + 1)
        self.passed = self.begun if item.batch.replica + 1 == replicas else (at.epoch, at.number)
        self.end = item.seq + 1 if item.batch.last else None

    def ends_before(self, item: Item) -> bool:
        """Whether this one belongs to a later epoch than the reader's: in queue mode nothing else tells the end."""
        is_later = item.batch.lease is not None and item.batch.lap > self.start.epoch
        if is_later:
            self.end = item.seq
        return is_later

    def is_due(self, item: Item) -> bool:
        """Whether this one is still to be taken."""
        return not self.ended or item.seq < self.first + self.taken


class Waiting:
    """Readers that wait, each at its own bell: a signal handler could leave a condition's lock taken."""

    def __init__(self) -> None:
        #: Who is waiting, by bell.
        self.readers: dict[threading.Lock, Reader] = {}

    def newest(self) -> int:
        """The serial of the newest reader that is waiting."""
        return max(reader.serial for reader in list(self.readers.values()))

    def add(self, bell: threading.Lock, reader: Reader) -> None:
        """Add a reader that waits at this bell, which has not been rung yet."""
        bell.acquire(blocking=False)
        self.readers[bell] = reader

    def wait(self, bell: threading.Lock, timeout_s: float) -> None:
        """Wait until the bell rings, unless it has since the last wait; at most this long, or for ever if negative."""
        bell.acquire(timeout=timeout_s)

    def ring(self) -> None:
        """Wake everyone who is waiting."""
        for bell in list(self.readers):
            if bell.locked():
                bell.release()


class Outbox:
    """`wake` wakes the receive thread; a round has a batch for each of our `replicas`."""

    def __init__(self, wake: Callable[[], None], replicas: int = 1) -> None:
        self.error: BaseException | None = None
        #: The job was ended: raised where batches end.
        self.ended: EndedError | None = None
        #: What ranks do together will not come about any more.
        self.parted = False
        self._replicas = replicas
        self._ends_at_once = False
        #: Nothing more is handed out, but for rounds before the last, by epoch and number, if it is known.
        self._is_still = False
        self._last: tuple[int, int] | None = None
        #: Epoch and number of the first batch that was not read yet; shown to people.
        self.read_to = (0, 0)
        #: Epoch and number of the last round of which a batch was taken since the feed attached at a cursor.
        self.furthest = NOTHING_READ
        #: What to wake the receive thread for. It also runs whenever a batch arrives, and sees the rest then anyway.
        self.wake_for_room = True
        self.wake_for_slots = False
        self._wake = wake
        #: What consumers did, in order.
        self._facts: deque[Event | _Loan] = deque()
        #: By slot; the loans of slots that came back are dead references, until that was read.
        self._loans: dict[int, _Loan] = {}
        self._lock = threading.RLock()  # a signal handler may close a feed
        self._waiting = Waiting()
        self._inbox: Inbox[Item] = Inbox()
        self._served: Reader | None = None
        self._wanted: Reader | None = None
        self._taken_s = 0.0
        self._waiting_since_s = 0.0
        self._closed = False

    # --- for consumers, in any thread ---

    def take(self, reader: Reader) -> Item | None:
        """The next batch of this reader, waiting for it; None at the end."""
        with self._lock:
            item = self._take_next(reader)
        return item if item is not None or reader.ended else self._wait_and_take(reader)

    def _wait_and_take(self, reader: Reader) -> Item | None:
        bell = threading.Lock()
        try:
            while True:
                with self._lock:
                    item = self._take_next(reader)
                    if item is not None or reader.ended:
                        return item
                    self._waiting.add(bell, reader)
                    pause_s = self._queue_up(reader)
                self._waiting.wait(bell, pause_s)
        finally:
            self._waiting.readers.pop(bell, None)  # a single instruction, whatever happens

    def _take_next(self, reader: Reader) -> Item | None:
        if self.error is not None:
            raise self.error
        if self._closed or reader.closed:
            raise _closed()
        if self.ended is not None and (self._ends_at_once or self._has_had_its_last(reader)):
            raise self.ended
        item = self._inbox.peek() if self._served is reader else None
        if item is not None and not reader.ends_before(item) and reader.is_due(item) and self._may_go_out(item):
            self._pop(reader, item)
            return item
        return None

    def _has_had_its_last(self, reader: Reader) -> bool:
        """Whether the job ends before its next round; the end of an epoch is one for all ranks, and comes first."""
        return self._last is not None and reader.passed >= self._last and not reader.ended

    def _may_go_out(self, item: Item) -> bool:
        at = item.batch.position
        return not self._is_still or (self._last is not None and (at.epoch, at.number) < self._last)

    def _queue_up(self, reader: Reader) -> float:
        """Ask to be served, if it is time to; returns how long to wait at most before looking again."""
        newest = reader.serial == self._waiting.newest()
        if self._wanted is not reader and newest and self._may_take_over(reader):
            self._ask_to_be_served(reader)
        self._waiting_since_s = self._waiting_since_s or time.monotonic()
        return -1 if newest and self._wanted is reader else _LEFT_BEHIND_S

    def _may_take_over(self, reader: Reader) -> bool:
        """A newer reader takes precedence; an older one may take over only if the one being served has paused."""
        served = self._served
        if served is None or served.closed or served.ended or reader.serial > served.serial:
            return True
        return time.monotonic() - self._taken_s > _LEFT_BEHIND_S

    def _ask_to_be_served(self, reader: Reader) -> None:
        self._settle()
        self._wanted = reader
        self.tell(Opened(reader.serial, reader.start, reader.taken))

    def _pop(self, reader: Reader, item: Item) -> None:
        self._taken_s, self._waiting_since_s = time.monotonic(), 0.0
        self.read_to = (item.batch.position.epoch, item.batch.number + 1)
        self.furthest = max(self.furthest, (item.batch.position.epoch, item.batch.position.number))
        reader.count(item, self._replicas)
        self._inbox.take()
        self._facts.append(Took(item.seq, item.slot))
        if self.wake_for_room or reader.ended:
            self._wake()

    def take_alike(self, reader: Reader, first: Item, most: int) -> list[Item]:
        """Take up to this many more that are there already and have the same shape as the first."""
        alike: list[Item] = []
        with self._lock:
            while len(alike) < most and self._served is reader and not reader.ended:
                item = self._inbox.peek()
                if item is None or reader.ends_before(item) or item.header.shape != first.header.shape:
                    break
                if not self._may_go_out(item):
                    break
                self._pop(reader, item)
                alike.append(item)
        return alike

    def holds_more_than(self, most: int) -> bool:
        """Whether consumers hold more slots than this."""
        with self._lock:
            waiting = len(self._inbox)
            if len(self._loans) - waiting <= most:
                return False
            return sum(loan() is not None for loan in list(self._loans.values())) - waiting > most

    def waiting_s(self, now_s: float) -> float:
        """How long a consumer has been waiting for a batch by now."""
        since_s = self._waiting_since_s
        return now_s - since_s if since_s else 0.0

    def _wake_for_slot(self) -> None:
        if self.wake_for_slots:
            self._wake()

    def tell(self, event: Event) -> None:
        """Tell the receive thread something, and wake it."""
        self._facts.append(event)
        self._wake()

    def leave(self, reader: Reader) -> None:
        """Close this reader: nobody will read it any more."""
        with self._lock:
            reader.closed = True
            self._waiting.ring()

    def interrupt(self, error: BaseException) -> None:
        """Raise this error in whoever is waiting, or will be; the first error counts."""
        with self._lock:
            self.error = self.error or error
            self._waiting.ring()

    def stand_still(self) -> tuple[int, int]:
        """Hand out nothing more until the end is known; the first round of which nothing was handed out."""
        with self._lock:
            self._is_still = True
            return self._wanted.begun if self._wanted is not None else (0, 0)

    def end(
        self, error: EndedError, *, at_once: bool, last: tuple[int, int] | None = None, parted: bool = True
    ) -> None:
        """No more batches come than are here, or before the round `last`; or none is to be taken any more."""
        with self._lock:
            self.ended, self._ends_at_once, self._last, self.parted = error, at_once, last, parted
            self._waiting.ring()

    def nudge(self) -> None:
        """Make whoever is waiting run a little Python, and with it signal handlers, before waiting on."""
        with self._lock:
            self._waiting.ring()

    def raise_if_over(self) -> None:
        """Raise what stopped the feed, if anything did."""
        if self.error is not None:
            raise self.error
        if self._closed:
            raise _closed()

    def forget_interrupt(self) -> None:
        """A Ctrl-C that was dealt with must not keep the feed from being read again."""
        with self._lock:
            if isinstance(self.error, KeyboardInterrupt):
                self.error = None

    def begin_anew(self, error: BaseException) -> None:
        """Raise this from now on, in a forked child, whose threads are gone: one of them may have had the lock."""
        self._lock = threading.RLock()
        self._waiting = Waiting()
        self.error = error

    def close(self) -> None:
        """Tell whoever is waiting that the feed is closed."""
        with self._lock:
            self._closed = True
            self._waiting.ring()

    # --- for the receive thread ---

    def read_facts(self) -> Iterator[Event]:
        """Yield what consumers did since the last call, in order."""
        while self._facts:
            fact = self._facts.popleft()
            yield self._end_loan(fact) if isinstance(fact, _Loan) else fact

    def _end_loan(self, loan: _Loan) -> HandedBack:
        if self._loans.get(loan.slot) is loan:
            del self._loans[loan.slot]
        return HandedBack(loan.seq, loan.slot)

    @property
    def has_facts(self) -> bool:
        """Whether consumers did anything since the last `read_facts`."""
        return bool(self._facts)

    def offer(self, offers: Iterable[Offer]) -> None:
        """Make these batches available to consumers."""
        with self._lock:
            for offer in offers:
                claim = _Claim()
                loan = self._loans[offer.slot] = _Loan(claim, self._facts.append)
                loan.seq, loan.slot = offer.seq, offer.slot
                self._inbox.put(offer.seq, Item(offer, claim, self._wake_for_slot))
            self._waiting.ring()

    def take_back(self, seq: int) -> bool:
        """Take a batch back; False if a consumer was faster."""
        with self._lock:
            item = self._inbox.retract(seq)
            if item is not None:
                del self._loans[item.slot]  # the core knows about it: nothing is handed back
            return item is not None

    def serve(self, serial: int, head: int, *, ended: bool = False) -> None:
        """Give what is here from `head` on to this reader; if some of it was taken meanwhile, it has to ask again."""
        with self._lock:
            reader = self._reader_of(serial)
            if reader is not None and ended:
                reader.end = reader.first + reader.taken
            elif reader is not None and head != self._inbox.head:
                self._ask_to_be_served(reader)
            elif reader is not None:
                self._begin(reader)
            self._waiting.ring()

    def restart(self, serial: int, head: int) -> None:
        """Start over at `head` for this reader; the batches that were here are handed back."""
        with self._lock:
            self._settle()
            left = self._inbox.restart(head)
            self._served = None
            reader = self._reader_of(serial)
            if reader is not None:
                self._begin(reader)
            self._waiting.ring()
        del left  # outside the lock, because this runs finalisers

    def _begin(self, reader: Reader) -> None:
        self._settle()
        reader.begin(self._inbox.head)
        self._served = reader

    def _settle(self) -> None:
        """Trust what was taken out: a signal may have come after a reader counted a batch, before it took it."""
        if self._served is not None:
            self._served.taken = self._inbox.head - self._served.first

    def _reader_of(self, serial: int) -> Reader | None:
        """The reader that asked to be served; None if another one has asked since."""
        wanted = self._wanted
        return wanted if wanted is not None and wanted.serial == serial else None


def _closed() -> ClosedError:
    return ClosedError(expected="an open feed", got="a closed one", where="feed", remedy="Open another: connect(...).")
