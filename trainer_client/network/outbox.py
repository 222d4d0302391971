"""The meeting point of the receive thread and the consumers: batches and errors go one way, facts the other.

Rules: a consumer pops an offered batch under the one lock here, without a hop between threads, and never touches a
socket. Consumers' actions are left as facts in one ordered deque. One reader is served at a time; the newest one that
waits takes precedence, because frameworks abandon iterators without notice.

A signal handler may raise at any instruction of a consumer's Python, so nothing here depends on two instructions both
being reached: the interpreter itself takes and releases the locks, a reader counts a batch before the one step that
takes it out (and takes it again if that step was not reached), and a weak reference reports that a slot came back,
without running any Python.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from shared.errors import ClosedError
from shared.tracing.ring import StampKind, StampRing, bare_key
from trainer_client.core.events import HandedBack, Opened, Took
from trainer_client.network.inbox import Inbox
from trainer_client.network.offered_batch import Claim, Loan, OfferedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shared.errors import EndedError
    from trainer_client.core.events import Event
    from trainer_client.core.instructions import Offer
    from trainer_client.core.upcoming import Position

__all__ = ["NOTHING_READ", "OfferedBatch", "Outbox", "Reader", "Waiting"]

#: How long the served reader has to pause before an older one may take over.
_LEFT_BEHIND_S = 0.1

#: A position before the first round.
NOTHING_READ = (-1, 0)

_SERIALS = itertools.count()


class Reader:
    """One reader, from `start` to the end of that epoch, and its progress."""

    __slots__ = ("begun", "closed", "end", "first", "passed", "serial", "start", "taken")

    def __init__(self, start: Position) -> None:
        self.serial = next(_SERIALS)
        self.start = start
        self.taken = 0
        #: By epoch and number: `begun` is the first round of which it took no batch, `passed` the first of which it did
        #: not take the batches of all our ranks.
        self.begun = self.passed = (start.epoch, start.number)
        #: The sequence number of its first batch, and the number after its last one (None while that is not known).
        self.first = 0
        self.end: int | None = None
        self.closed = False

    @property
    def ended(self) -> bool:
        """Return whether no batch is left for this reader; False while its end is not known."""
        return self.end is not None and self.first + self.taken >= self.end

    def begin(self, head: int) -> None:
        """Note that the reader is served from this number on, after the batches that it took; its end is open again."""
        self.first, self.end = head - self.taken, None

    def count(self, offered: OfferedBatch, replicas: int) -> None:
        """Count a batch that is about to be taken, for one of our `replicas`; note the end if it is the last."""
        # Counting twice changes nothing: the count follows from the batch's number, so a signal before the batch is
        # taken out does no harm.
        self.taken = offered.seq + 1 - self.first
        at = offered.batch.position
        self.begun = (at.epoch, at.number + 1)
        self.passed = self.begun if offered.batch.replica + 1 == replicas else (at.epoch, at.number)
        self.end = offered.seq + 1 if offered.batch.last else None

    def ends_before(self, offered: OfferedBatch) -> bool:
        """Return whether this batch belongs to a later epoch, and if so note the reader's end.

        In queue mode nothing else tells where an epoch ends; in lockstep return False.
        """
        is_later = offered.batch.lease is not None and offered.batch.lap > self.start.epoch
        if is_later:
            self.end = offered.seq
        return is_later

    def is_due(self, offered: OfferedBatch) -> bool:
        """Return whether this batch is still to be taken, even by a reader that counted it and was interrupted."""
        return not self.ended or offered.seq < self.first + self.taken


class Waiting:
    """Readers that wait, each at a bell (a lock) of its own."""

    # A condition variable would not do: a signal handler that raises could leave its lock taken.

    def __init__(self) -> None:
        #: The waiting readers, by bell.
        self.readers: dict[threading.Lock, Reader] = {}

    def newest(self) -> int:
        """Return the serial of the newest waiting reader; raise ValueError if no reader waits."""
        return max(reader.serial for reader in list(self.readers.values()))

    def add(self, bell: threading.Lock, reader: Reader) -> None:
        """Add a reader, and take its bell's lock so that waiting blocks until the bell is rung."""
        bell.acquire(blocking=False)
        self.readers[bell] = reader

    def wait(self, bell: threading.Lock, timeout_s: float) -> None:
        """Wait until the bell rings, at most this long, or for ever if -1; return at once if it rang already."""
        bell.acquire(timeout=timeout_s)

    def ring(self) -> None:
        """Wake all waiting readers."""
        for bell in list(self.readers):
            if bell.locked():  # one that rang already is unlocked, and releasing it again would raise
                bell.release()


class Outbox:
    """The offered batches of a feed and the facts about them; a round has a batch for each of our `replicas`.

    `wake` is called to wake the receive thread.
    """

    def __init__(self, wake: Callable[[], None], replicas: int = 1, ring: StampRing | None = None) -> None:
        #: What happened to batches, for a look later.
        self.ring = StampRing() if ring is None else ring
        #: The error that stopped the feed.
        self.error: BaseException | None = None
        #: The error for readers where batches end, because the job was ended.
        self.ended: EndedError | None = None
        #: Whether callers that wait for all ranks must give up, because the ranks no longer go on together.
        self.parted = False
        self._replicas = replicas
        self._ends_at_once = False
        #: Whether only rounds before `_last` (epoch and number) are handed out; none while that is not known.
        self._is_still = False
        self._last: tuple[int, int] | None = None
        #: Epoch and number of the first batch that was not read yet, and how many were read; for heartbeats.
        self.read_to, self.batches_read = (0, 0), 0
        #: Epoch and number of the last round of which a batch was taken since the feed attached at a cursor.
        self.furthest = NOTHING_READ
        #: When to wake the receive thread. It also runs whenever a batch arrives, and then reads all facts anyway.
        self.wake_for_room = True
        self.wake_for_slots = False
        self._wake = wake
        #: Consumers' actions, in order.
        self._facts: deque[Event | Loan] = deque()
        #: Loans by slot; that of a returned slot stays, as a dead reference, until its fact is read.
        self._loans: dict[int, Loan] = {}
        # Re-entrant: a signal handler may close the feed in a thread that holds the lock.
        self._lock = threading.RLock()
        self._waiting = Waiting()
        self._inbox: Inbox[OfferedBatch] = Inbox()
        #: The reader that gets batches, and the one that asked to be served last.
        self._served: Reader | None = None
        self._wanted: Reader | None = None
        #: When a batch was taken last, and since when a consumer has been waiting (0: none is).
        self._taken_s = 0.0
        self._waiting_since_s = 0.0
        self._closed = False

    # --- for consumers, in any thread ---

    def take(self, reader: Reader) -> OfferedBatch | None:
        """Wait for the next batch of this reader and return it; None at its epoch's end, or once `serve` ended it.

        Raise the error that stopped the feed, ClosedError if feed or reader is closed, or EndedError if the job ended,
        at once or before this reader's next round.
        """
        # In the usual case the batch is here, and taking it needs the lock once and no bell.
        with self._lock:
            offered = self._take_next(reader)
        return offered if offered is not None or reader.ended else self._wait_and_take(reader)

    def _wait_and_take(self, reader: Reader) -> OfferedBatch | None:
        bell = threading.Lock()
        try:
            while True:
                # Look and queue up under one lock, or a batch that is offered in between would ring no bell.
                with self._lock:
                    offered = self._take_next(reader)
                    if offered is not None or reader.ended:
                        return offered
                    self._waiting.add(bell, reader)
                    pause_s = self._queue_up(reader)
                self._waiting.wait(bell, pause_s)
        finally:
            self._waiting.readers.pop(bell, None)  # a single instruction, whatever happens

    def _take_next(self, reader: Reader) -> OfferedBatch | None:
        if self.error is not None:
            raise self.error
        if self._closed or reader.closed:
            raise _closed()
        if self.ended is not None and (self._ends_at_once or self._has_had_its_last(reader)):
            raise self.ended
        offered = self._inbox.peek() if self._served is reader else None
        if (
            offered is not None
            and not reader.ends_before(offered)
            and reader.is_due(offered)
            and self._may_go_out(offered)
        ):
            self._pop(reader, offered)
            return offered
        return None

    def _has_had_its_last(self, reader: Reader) -> bool:
        """Return whether the job ends before the reader's next round; False at the end of its epoch."""
        # A reader at the end of its epoch ends normally: that end is the same for all ranks, and comes first.
        return self._last is not None and reader.passed >= self._last and not reader.ended

    def _may_go_out(self, offered: OfferedBatch) -> bool:
        at = offered.batch.position
        return not self._is_still or (self._last is not None and (at.epoch, at.number) < self._last)

    def _queue_up(self, reader: Reader) -> float:
        """Ask the core to serve this reader, if it is the newest and may take over; return how long to wait at most.

        The newest reader that has asked is woken by a bell, so it may wait for ever (negative).
        """
        newest = reader.serial == self._waiting.newest()
        if self._wanted is not reader and newest and self._may_take_over(reader):
            self._ask_to_be_served(reader)
        self._waiting_since_s = self._waiting_since_s or time.monotonic()
        return -1 if newest and self._wanted is reader else _LEFT_BEHIND_S

    def _may_take_over(self, reader: Reader) -> bool:
        """Return whether this reader may be served now: no other is, or that one is older, done or has paused."""
        # An iterator that a framework abandoned is never closed, so a pause is the only sign of it.
        served = self._served
        if served is None or served.closed or served.ended or reader.serial > served.serial:
            return True
        return time.monotonic() - self._taken_s > _LEFT_BEHIND_S

    def _ask_to_be_served(self, reader: Reader) -> None:
        self._settle()
        self._wanted = reader
        self.tell(Opened(reader.serial, reader.start, reader.taken))

    def _pop(self, reader: Reader, offered: OfferedBatch) -> None:
        self._taken_s, self._waiting_since_s = time.monotonic(), 0.0
        self.read_to = (offered.batch.position.epoch, offered.batch.number + 1)
        self.batches_read += 1
        self.furthest = max(self.furthest, (offered.batch.position.epoch, offered.batch.position.number))
        # A signal handler may raise between any two of these lines. The count may be repeated, and `_settle` mends it;
        # a batch that was taken and not reported is inferred from later facts.
        reader.count(offered, self._replicas)
        self._inbox.take()
        self._facts.append(Took(offered.seq, offered.slot))
        if self.wake_for_room or reader.ended:
            self._wake()

    def take_alike(self, reader: Reader, first: OfferedBatch, most: int) -> list[OfferedBatch]:
        """Take and return up to `most` further batches that have arrived and have the shape of the first.

        Stop at the first batch of another shape or epoch, or that may not go out because the job ends; never wait.
        Return an empty list if there is none, or if another reader is served now.
        """
        alike: list[OfferedBatch] = []
        with self._lock:
            while len(alike) < most and self._served is reader and not reader.ended:
                offered = self._inbox.peek()
                if offered is None or reader.ends_before(offered) or offered.header.shape != first.header.shape:
                    break
                if not self._may_go_out(offered):
                    break
                self._pop(reader, offered)
                alike.append(offered)
        return alike

    def note_taken(self, offered: OfferedBatch, time_s: float, waited_s: float) -> None:
        """Note that a batch was taken at this time of `time.perf_counter`, after the consumer had waited so long."""
        # On Linux that is the monotonic clock, of which all stamps are.
        self.ring.stamp(StampKind.TAKEN, int(1e9 * time_s), offered.key, int(1e9 * waited_s))

    def note_trained(self, epoch: int, number: int, stop: int) -> None:
        """Note that the batches from `number` to `stop` (excluded) were trained on now."""
        self.ring.stamp(StampKind.TRAINED, time.monotonic_ns(), bare_key(number, epoch), stop)

    def holds_more_than(self, most: int) -> bool:
        """Return whether consumers hold more than `most` slots."""
        with self._lock:
            waiting = len(self._inbox)
            # A cheap upper bound first: loans of returned slots stay until their facts are read.
            if len(self._loans) - waiting <= most:
                return False
            return sum(loan() is not None for loan in list(self._loans.values())) - waiting > most

    def waiting_s(self, now_s: float) -> float:
        """Return for how many seconds a consumer has been waiting for a batch; 0 if none is."""
        since_s = self._waiting_since_s
        return now_s - since_s if since_s else 0.0

    def _wake_for_slot(self) -> None:
        if self.wake_for_slots:
            self._wake()

    def tell(self, event: Event) -> None:
        """Report a fact to the receive thread, and wake it."""
        self._facts.append(event)
        self._wake()

    def leave(self, reader: Reader) -> None:
        """Close this reader, which then raises ClosedError, and wake the threads that wait for a batch."""
        with self._lock:
            reader.closed = True
            self._waiting.ring()

    def interrupt(self, error: BaseException) -> None:
        """Stop the feed with this error, which is raised in all present and later readers; the first error counts."""
        # The first error counts: those that follow are its consequences.
        with self._lock:
            self.error = self.error or error
            self._waiting.ring()

    def stand_still(self) -> tuple[int, int]:
        """Hand out nothing more until the last round is known; return epoch and number of the first round not begun.

        They are those of the reader that asked to be served last, or (0, 0) if there was none.
        """
        # Under the lock: a batch that is taken after this answer would be of a round that the ranks do not train on.
        with self._lock:
            self._is_still = True
            return self._wanted.begun if self._wanted is not None else (0, 0)

    def end(
        self, error: EndedError, *, at_once: bool, last: tuple[int, int] | None = None, parted: bool = True
    ) -> None:
        """Make readers raise this error: at once, before the round `last`, or (by the session) after their batches.

        `parted` says whether callers that wait for all ranks get the error as well. A later call replaces all of this.
        """
        with self._lock:
            self.ended, self._ends_at_once, self._last, self.parted = error, at_once, last, parted
            self._waiting.ring()

    def nudge(self) -> None:
        """Wake waiting readers for a moment, so that pending signal handlers run; then they wait on."""
        with self._lock:
            self._waiting.ring()

    def raise_if_over(self) -> None:
        """Raise the error that stopped the feed, or ClosedError if it is closed; do nothing if only the job ended."""
        if self.error is not None:
            raise self.error
        if self._closed:
            raise _closed()

    def forget_interrupt(self) -> None:
        """Forget an earlier KeyboardInterrupt, so that the feed can be read again; other errors stay."""
        with self._lock:
            if isinstance(self.error, KeyboardInterrupt):
                self.error = None

    def begin_anew(self, error: BaseException) -> None:
        """Raise this error in all readers from now on, in a forked child; locks and waiting readers are replaced."""
        # A thread that does not exist here may have held the lock or a bell, and would never release them.
        self._lock = threading.RLock()
        self._waiting = Waiting()
        self.error = error

    def close(self) -> None:
        """Make present and later readers raise ClosedError, or the error that stopped the feed before."""
        with self._lock:
            self._closed = True
            self._waiting.ring()

    # --- for the receive thread ---

    def read_facts(self) -> Iterator[Event]:
        """Yield the events of consumers since the last call, in order; a slot that came back is a `HandedBack`."""
        while self._facts:
            fact = self._facts.popleft()
            yield self._end_loan(fact) if isinstance(fact, Loan) else fact

    def _end_loan(self, loan: Loan) -> HandedBack:
        if self._loans.get(loan.slot) is loan:
            del self._loans[loan.slot]
        return HandedBack(loan.seq, loan.slot)

    @property
    def has_facts(self) -> bool:
        """Return whether consumers reported anything since the last `read_facts`."""
        return bool(self._facts)

    def offer(self, offers: Iterable[Offer]) -> None:
        """Make these batches available to consumers, and wake them; raise AssertionError if a number came already."""
        with self._lock:
            now_ns = time.monotonic_ns()
            for offer in offers:
                claim = Claim()
                loan = self._loans[offer.slot] = Loan(claim, self._facts.append)
                loan.seq, loan.slot = offer.seq, offer.slot
                offered = OfferedBatch(offer, claim, self._wake_for_slot)
                self.ring.stamp(StampKind.OFFERED, now_ns, offered.key)
                self._inbox.put(offer.seq, offered)
            self._waiting.ring()

    def take_back(self, seq: int) -> bool:
        """Take an offered batch back; return False if a consumer was faster, or if it was not on offer."""
        # The consumer pops under the same lock, so exactly one of the two gets it.
        with self._lock:
            offered = self._inbox.retract(seq)
            if offered is not None:
                # The core frees the slot itself, and without its loan the dying batch reports nothing.
                del self._loans[offered.slot]
            return offered is not None

    def serve(self, serial: int, head: int, *, ended: bool = False) -> None:
        """Serve this reader with the batches from `head` on, or end it, and wake waiting readers.

        Do nothing for a reader if another has asked to be served since. If batches were taken meanwhile, so that `head`
        is not the next, ask the core once more to serve this reader.
        """
        with self._lock:
            reader = self._reader_of(serial)
            if reader is not None and ended:
                reader.end = reader.first + reader.taken
            elif reader is not None and head != self._inbox.head:
                # Another reader took some of them after the core decided: this one would begin in the midst.
                self._ask_to_be_served(reader)
            elif reader is not None:
                self._begin(reader)
            self._waiting.ring()

    def restart(self, serial: int, head: int) -> None:
        """Start over at `head` for this reader; the slots of dropped batches are handed back.

        If another reader has asked to be served since, none is served for now.
        """
        with self._lock:
            self._settle()
            dropped = self._inbox.restart(head)
            self._served = None
            reader = self._reader_of(serial)
            if reader is not None:
                self._begin(reader)
            self._waiting.ring()
        del dropped  # outside the lock, because this runs finalisers

    def _begin(self, reader: Reader) -> None:
        self._settle()
        reader.begin(self._inbox.head)
        self._served = reader

    def _settle(self) -> None:
        """Set the served reader's count to what was popped since it came; do nothing without one."""
        # A signal may have come after the reader counted a batch and before it took the batch.
        if self._served is not None:
            self._served.taken = self._inbox.head - self._served.first

    def _reader_of(self, serial: int) -> Reader | None:
        """Return the reader with this serial if it asked to be served last; None if another one has asked since."""
        wanted = self._wanted
        return wanted if wanted is not None and wanted.serial == serial else None


def _closed() -> ClosedError:
    return ClosedError(expected="an open feed", got="a closed one", where="feed", remedy="Open another: connect(...).")
