"""The state of each worker (its incarnation, pace, silence and tickets), and the choice of one for a want.

Rules: pure. A want goes to the worker that should finish it first. A worker's pace is the time from one answer to the
next when it has enough to do: with fewer wants than it works on at a time, which it tells with each batch, answers come
at longer intervals, and those count for less. Otherwise a worker that got few wants would look slow and get fewer. The
pace includes the time that the current want has taken beyond its usual time; a worker without a known pace is assumed
to be average. Ties are broken by an order that differs from trainer to trainer. Decisions about workers are made in
`wants` and `connections`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.stations.service_times import wants_at_a_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shared.wire.message_parts import Ticket
    from trainer_client.core.upcoming import Entry

__all__ = ["QUICKEST_S", "Ask", "KnownWorker", "least_busy", "longest_waiting", "usual_pace_s"]

#: Paces below this count as equal: of two quick workers, the one with less to do is asked.
QUICKEST_S = 0.001

#: Weight of the latest answer in the moving averages.
_NEWEST = 0.3
#: Weight in that of what a worker could serve, which is compared with a rate: chance would look like idle workers.
_NEWEST_WORKED = 0.1
#: Reads that take longer are worth waking a thread for, so that a reader is not idle.
_SLOW_READ_S = 0.005


@dataclass(slots=True)
class Ask:
    """A want that a worker holds: the batch `seq`, sent at `sent_s`, to be written in place if `in_slot`."""

    seq: int
    in_slot: bool
    sent_s: float
    #: The last ping that was sent before this want: a Pong to any later one must list the ticket.
    after_ping: int
    #: Whether its batch was counted already as one that may have killed this worker.
    blamed: bool = False
    #: Whether its answer has arrived and is being checked.
    arrived: bool = False

    def arrive(self) -> None:
        """Note that the answer has arrived and is being checked, so that a second push of it is stale."""
        assert not self.arrived
        self.arrived = True

    def blame(self) -> None:
        """Note that the batch was counted as one that may have killed this worker."""
        # A cut is counted at once, and the proof of death that may follow must not count the same batch again.
        assert not self.blamed
        self.blamed = True

    def excuse(self, now_s: float) -> None:
        """Restart the timer, because we stalled."""
        self.sent_s = now_s


@dataclass(slots=True, eq=False)
class KnownWorker:
    """One incarnation of a worker, as this trainer sees it."""

    incarnation: int
    name: str
    #: The connection to it; None once another incarnation answers there, or the connection is closed.
    connection_id: int | None
    #: A tie-breaker, different in each trainer: trainers that broke ties alike would all ask the same worker first.
    rank: int
    #: Whether it writes into our slots; only then is its lock, by byte of our memory, the proof that it lives.
    in_slot: bool
    lock_byte: int
    #: When it was last heard, and when it was last sent a Ping.
    heard_s: float
    pinged_s: float
    #: Its usual time from one answer to the next when it has enough to do (a moving average, 0 if unknown), and when
    #: its last answer came.
    service_s: float = 0.0
    answered_s: float = 0.0
    #: The part of that in which it held the want (a moving average, 0 if unknown): without the time on the way.
    worked_s: float = 0.0
    #: How long a want takes to read and to build there, as it tells (moving averages), and how many wants it therefore
    #: works on at a time.
    read_s: float = 0.0
    build_s: float = 0.0
    at_a_time: float = 1.0
    #: How long the way there and back takes for a short message.
    delay_s: float = 0.0
    #: Whether nothing was heard from it for too long, or its connection is gone.
    silent: bool = False
    #: Whether its connection is gone and it has not welcomed us again; earlier messages may still arrive.
    cut: bool = False
    #: Whether it drains, or does not know us at the moment.
    takes_no_wants: bool = False
    #: Whether it announced that it drains, so that its end is no crash.
    in_good_order: bool = False
    #: Until when it asked to be left alone.
    busy_until_s: float = 0.0
    #: Whether it has not listed its tickets since its Welcome, so that some of ours may be unknown to it.
    owes_list: bool = False
    asks: dict[Ticket, Ask] = field(default_factory=dict)

    # --- what happens to it ---

    def hear(self, now_s: float) -> bool:
        """Note a sign of life; return whether it ends a silence.

        It ends none of a worker that was cut off, until that welcomes us again.
        """
        self.heard_s = now_s
        # A worker that was cut stays silent until its next Welcome: this message was on its way before the cut.
        is_back = self.silent and not self.cut
        if is_back:
            self.silent = False
        return is_back

    def fall_silent(self) -> None:
        """Note that the worker, which counts as live, was not heard for too long, or that its connection is gone."""
        assert not self.silent
        self.silent = True

    def cut_off(self) -> None:
        """Note that its connection is gone: it stays silent until it welcomes us again; it must be silent already."""
        assert self.silent
        self.cut = True

    def stop_wants(self) -> None:
        """Give it no more wants until it welcomes us again."""
        self.takes_no_wants = True

    def announce_leaving(self) -> None:
        """Note that it drains, so that its end is no crash and no batch is blamed."""
        self.in_good_order = True

    def rest_until(self, time_s: float) -> None:
        """Send it no wants before this time."""
        self.busy_until_s = time_s

    def note_ping(self, now_s: float) -> None:
        """Note that a ping was sent to it at this time."""
        self.pinged_s = now_s

    def note_list(self) -> None:
        """Note that it has listed its tickets since its Welcome."""
        self.owes_list = False

    def excuse(self, now_s: float) -> None:
        """Restart its timers, and those of its tickets, because we stalled."""
        self.heard_s = self.answered_s = now_s
        for ask in self.asks.values():
            ask.excuse(now_s)

    def begin_to_serve(self, connection_id: int, *, shared: bool, lock_byte: int, delay_s: float) -> None:
        """Note a Welcome on this connection, `delay_s` after the Hello, and the lock byte that the worker holds.

        It takes wants from now on, writes in place if `shared`, is no longer cut off, and owes its list of tickets.
        """
        # Only the worker's list of tickets shows which ones were lost with the former connection, so it owes that list.
        self.connection_id, self.in_slot, self.lock_byte = connection_id, shared, lock_byte
        self.delay_s = delay_s
        self.takes_no_wants, self.owes_list, self.cut = False, True, False

    def part(self) -> None:
        """Note that the worker has no connection any more: it is closed, or another incarnation answers there."""
        self.connection_id = None

    def hold(self, ticket: Ticket, ask: Ask) -> None:
        """Note that the worker holds this ticket; it must not hold it already."""
        assert ticket not in self.asks
        self.asks[ticket] = ask

    def close(self, ticket: Ticket) -> Ask:
        """Remove a ticket that is answered or void, and return its want; raise KeyError if it is not held."""
        return self.asks.pop(ticket)

    # --- pace and state ---

    def in_hand_s(self, ask: Ask, now_s: float) -> float:
        """Return the seconds since the worker could have begun this want: since its sending, or the last answer."""
        return now_s - max(ask.sent_s, self.answered_s)

    def note_times(self, read_s: float, build_s: float) -> None:
        """Note how long it says that a batch took to read and to build, so that it is known what it does at a time."""
        newest = _NEWEST if self.build_s else 1.0
        self.read_s += newest * (read_s - self.read_s)
        self.build_s += newest * (build_s - self.build_s)
        self.at_a_time = wants_at_a_time(self.read_s, self.build_s)

    def serve(self, in_hand_s: float, now_s: float, *, held_s: float | None = None, waiting: int = 0) -> None:
        """Note that an answer came, after `in_hand_s`: update the moving averages of its pace.

        The want must be closed already. `held_s` is how long the worker says that it had the want (None: as long), and
        `waiting` how many wants of all trainers it has left.
        """
        # Of what is read at a time the first takes its full time, and the others follow at once: only over all of them
        # the mean is a pace. With fewer wants than it could work on, it would have answered more in the same time.
        enough = min(1.0, (1 + max(len(self.asks), waiting)) / self.at_a_time)
        worked_s = in_hand_s if held_s is None else min(in_hand_s, held_s)
        if not self.service_s:
            self.service_s, self.worked_s = in_hand_s / self.at_a_time, worked_s / self.at_a_time
        self.service_s += _NEWEST / self.at_a_time * (enough * in_hand_s - self.service_s)
        self.worked_s += _NEWEST_WORKED / self.at_a_time * (enough * worked_s - self.worked_s)
        self.answered_s = now_s

    def is_in_doubt(self, since_s: float) -> bool:
        """Return whether it should be pinged: it was not heard since `since_s`, holds an older want, or owes a list."""
        return self.owes_list or self.heard_s <= since_s or any(ask.sent_s <= since_s for ask in self.asks.values())

    def pace_s(self, now_s: float) -> float:
        """Return the seconds that it takes for a want, more if the oldest open one has taken longer than usual by now.

        It is never less than QUICKEST_S.
        """
        pace_s = max(self.service_s, QUICKEST_S)
        if self.asks:  # tickets are held in the order in which they were sent: the first is the oldest
            oldest = next(iter(self.asks.values()))
            # All that it works on at a time may take this long before the first of them is done.
            pace_s = max(pace_s, self.in_hand_s(oldest, now_s) - (self.at_a_time - 1) * self.service_s)
        return pace_s

    @property
    def at_work(self) -> float:
        """Return how many wants it needs to be busy; 1 where reads are quick, as the next want is there in time."""
        return self.at_a_time if self.read_s >= _SLOW_READ_S else 1.0

    @property
    def may_be_asked(self) -> bool:
        """Return whether it was heard lately and takes wants, though it may be busy."""
        return not (self.silent or self.takes_no_wants)

    def is_live(self, now_s: float) -> bool:
        """Return whether it may be sent a want now: it was heard lately, takes wants, and is not busy."""
        return self.may_be_asked and now_s >= self.busy_until_s

    def could_write(self) -> bool:
        """Return whether it holds any ticket for writing into a slot in place."""
        return any(ask.in_slot for ask in self.asks.values())


def usual_pace_s(workers: Iterable[KnownWorker]) -> float:
    """Return the mean pace of the workers whose pace is known, or QUICKEST_S if none is."""
    paces = [worker.service_s for worker in workers if worker.service_s]
    return sum(paces) / len(paces) if paces else QUICKEST_S


def least_busy(workers: Iterable[KnownWorker], entry: Entry, usual_s: float, now_s: float) -> KnownWorker | None:
    """Return the worker that should finish one more want first; None if all are busy, hold this batch or refused it."""
    able = [
        worker
        for worker in workers
        if worker.incarnation not in entry.askers
        and worker.incarnation not in entry.refused
        and now_s >= worker.busy_until_s
    ]
    return min(able, key=lambda worker: _through_s(worker, usual_s, now_s), default=None)


def _through_s(worker: KnownWorker, usual_s: float, now_s: float) -> tuple[float, int, int]:
    """Return the seconds for one more want and the open ones (at least `usual_s` each if new), their number, rank."""
    pace_s, unanswered = worker.pace_s(now_s), len(worker.asks)
    if not worker.service_s:  # a new worker would look like the quickest, and get all wants at once
        pace_s = max(pace_s, usual_s)
    return (unanswered + 1) * pace_s, unanswered, worker.rank


def longest_waiting(
    donors: Iterable[KnownWorker], thief: KnownWorker, entries: Mapping[int, Entry], enough_s: float, now_s: float
) -> tuple[int, KnownWorker, Ticket] | None:
    """Return the nearest batch that would wait longer than `enough_s` at its worker, with the worker and the ticket.

    The oldest want of a worker counts as begun and is left alone, as are batches that are ready or not upcoming any
    more, that another worker was asked for too, or that the thief refused. Return None if there is no such batch.
    """
    nearest: tuple[int, KnownWorker, Ticket] | None = None
    for donor in donors:
        pace_s = donor.pace_s(now_s)
        for place, (ticket, ask) in enumerate(donor.asks.items()):
            if place * pace_s <= enough_s or (nearest is not None and ask.seq >= nearest[0]):
                continue
            entry = entries.get(ask.seq)
            if entry is None or entry.ready or len(entry.askers) != 1 or thief.incarnation in entry.refused:
                continue
            nearest = (ask.seq, donor, ticket)
    return nearest
