"""What is known of each worker (its incarnation, pace, silence and tickets), and which one should get a want.

Rules: pure. A want goes to the worker that should finish it first. A worker's pace includes how long its current want
has taken so far; one whose pace is not known yet is assumed to be average. Ties are broken by an order that differs
from trainer to trainer. What to do about workers is decided in `wants` and `connections`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shared.wire.parts import Ticket
    from trainer_client.core.upcoming import Entry

__all__ = ["QUICKEST_S", "Ask", "KnownWorker", "least_busy", "longest_waiting", "usual_pace_s"]

#: Paces below this count as equal: of two quick workers, the one with less to do is asked.
QUICKEST_S = 0.001


@dataclass(slots=True)
class Ask:
    """A ticket that a worker holds, as far as is known here."""

    seq: int
    in_slot: bool
    sent_s: float
    #: The last ping that was sent before this want: a Pong to any later one must list the ticket.
    after_ping: int
    #: Its batch was already counted as one that may have killed this worker.
    blamed: bool = False
    #: Its answer is here, and is being checked.
    arrived: bool = False

    def arrive(self) -> None:
        """Note that the answer is here and is being checked, so that a second push of it is stale."""
        assert not self.arrived
        self.arrived = True

    def blame(self) -> None:
        """Note that its batch was counted as one that may have killed this worker.

        A cut is counted at once, and the proof of death that follows must not count the same batch again.
        """
        assert not self.blamed
        self.blamed = True

    def excuse(self, now_s: float) -> None:
        """Restart the timer."""
        self.sent_s = now_s


@dataclass(slots=True, eq=False)
class KnownWorker:
    """One incarnation of a worker, as it looks from here."""

    incarnation: int
    name: str
    #: The connection over which it is reached; None once another incarnation answers there.
    connection_id: int | None
    #: Breaks ties; each trainer orders workers differently.
    rank: int
    in_slot: bool
    lock_byte: int
    heard_s: float
    pinged_s: float
    #: About how long it takes for one want, and when its last answer came.
    service_s: float = 0.0
    answered_s: float = 0.0
    #: Nothing was heard from it for too long, or its connection is gone.
    silent: bool = False
    #: Its connection is gone, and it has not welcomed us again: what it said before may still come.
    cut: bool = False
    #: It drains, or does not know us at the moment.
    takes_no_wants: bool = False
    #: It said that it drains, so when it goes it did not crash.
    in_good_order: bool = False
    #: It asked to be left alone until then.
    busy_until_s: float = 0.0
    #: It has not listed its tickets since it welcomed us: some of them may be void here.
    owes_list: bool = False
    asks: dict[Ticket, Ask] = field(default_factory=dict)

    # --- what happens to it ---

    def hear(self, now_s: float) -> bool:
        """Note that something was heard; return whether it was silent until now.

        One that is cut stays silent: what is heard was on its way before the cut, and its slots need a new Welcome.
        """
        self.heard_s = now_s
        is_back = self.silent and not self.cut
        if is_back:
            self.silent = False
        return is_back

    def fall_silent(self) -> None:
        """Note that nothing was heard for too long, or that its connection is gone."""
        assert not self.silent
        self.silent = True

    def cut_off(self) -> None:
        """Note that its connection is gone; it stays silent until it welcomes us again."""
        assert self.silent
        self.cut = True

    def stop_wants(self) -> None:
        """Give it no more wants until it welcomes us again."""
        self.takes_no_wants = True

    def announce_leaving(self) -> None:
        """Note that it drains, so that its end is no crash and blames no batch."""
        self.in_good_order = True

    def rest_until(self, time_s: float) -> None:
        """Leave it alone until then, as it asked."""
        self.busy_until_s = time_s

    def note_ping(self, now_s: float) -> None:
        """Note that it was sent a ping."""
        self.pinged_s = now_s

    def note_list(self) -> None:
        """Note that it listed its tickets, so that none of them is in doubt."""
        self.owes_list = False

    def excuse(self, now_s: float) -> None:
        """Restart its timers, and those of its tickets."""
        self.heard_s = self.answered_s = now_s
        for ask in self.asks.values():
            ask.excuse(now_s)

    def begin_to_serve(self, connection_id: int, *, shared: bool, lock_byte: int) -> None:
        """Note a Welcome, and which lock byte the worker holds.

        Which tickets were lost with the former connection shows only when the worker lists them, so it owes that list.
        """
        self.connection_id, self.in_slot, self.lock_byte = connection_id, shared, lock_byte
        self.takes_no_wants, self.owes_list, self.cut = False, True, False

    def part(self) -> None:
        """Note that its connection is another incarnation's, or closed."""
        self.connection_id = None

    def hold(self, ticket: Ticket, ask: Ask) -> None:
        """Note that it holds this ticket."""
        assert ticket not in self.asks
        self.asks[ticket] = ask

    def close(self, ticket: Ticket) -> Ask:
        """Take back a ticket that is answered or void; return what it was for."""
        return self.asks.pop(ticket)

    # --- how it does ---

    def in_hand_s(self, ask: Ask, now_s: float) -> float:
        """Seconds since it could have begun with this."""
        return now_s - max(ask.sent_s, self.answered_s)

    def serve(self, service_s: float, now_s: float) -> None:
        """Note that it took this long for a want."""
        self.service_s += 0.3 * (service_s - self.service_s) if self.service_s else service_s
        self.answered_s = now_s

    def is_in_doubt(self, since_s: float) -> bool:
        """Whether to send it a ping: it was not heard since then, or has held a want for longer."""
        return self.owes_list or self.heard_s <= since_s or any(ask.sent_s <= since_s for ask in self.asks.values())

    def pace_s(self, now_s: float) -> float:
        """Seconds for each want, including how long the current one has taken so far."""
        pace_s = max(self.service_s, QUICKEST_S)
        if self.asks:  # tickets are held in the order in which they were sent: the first is the oldest
            oldest = next(iter(self.asks.values()))
            pace_s = max(pace_s, self.in_hand_s(oldest, now_s))
        return pace_s

    @property
    def may_be_asked(self) -> bool:
        """Whether it was heard lately, and takes wants."""
        return not (self.silent or self.takes_no_wants)

    def is_live(self, now_s: float) -> bool:
        """Whether it gets wants."""
        return not (self.silent or self.takes_no_wants or now_s < self.busy_until_s)

    def could_write(self) -> bool:
        """Whether it holds tickets that let it write into slots."""
        return any(ask.in_slot for ask in self.asks.values())


def usual_pace_s(workers: Iterable[KnownWorker]) -> float:
    """The mean pace of those that have one."""
    paces = [worker.service_s for worker in workers if worker.service_s]
    return sum(paces) / len(paces) if paces else QUICKEST_S


def least_busy(workers: Iterable[KnownWorker], entry: Entry, usual_s: float, now_s: float) -> KnownWorker | None:
    """The one that should finish all it has first, of those that neither hold nor refused this batch."""
    able = [
        worker
        for worker in workers
        if worker.incarnation not in entry.askers
        and worker.incarnation not in entry.refused
        and now_s >= worker.busy_until_s
    ]
    return min(able, key=lambda worker: _through_s(worker, usual_s, now_s), default=None)


def _through_s(worker: KnownWorker, usual_s: float, now_s: float) -> tuple[float, int, int]:
    """Seconds until it should be done with one more want; then the tie-breakers."""
    pace_s, unanswered = worker.pace_s(now_s), len(worker.asks)
    if not worker.service_s:
        pace_s = max(pace_s, usual_s)
    return (unanswered + 1) * pace_s, unanswered, worker.rank


def longest_waiting(
    donors: Iterable[KnownWorker], thief: KnownWorker, entries: Mapping[int, Entry], enough_s: float, now_s: float
) -> tuple[int, KnownWorker, Ticket] | None:
    """Of the wants that these workers have not begun, the nearest one that will wait there longer than `enough_s`."""
    found: tuple[int, KnownWorker, Ticket] | None = None
    for donor in donors:
        pace_s = donor.pace_s(now_s)
        for place, (ticket, ask) in enumerate(donor.asks.items()):
            if place * pace_s <= enough_s or (found is not None and ask.seq >= found[0]):
                continue
            entry = entries.get(ask.seq)
            if entry is None or entry.ready or len(entry.askers) != 1 or thief.incarnation in entry.refused:
                continue
            found = (ask.seq, donor, ticket)
    return found
