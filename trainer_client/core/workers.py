"""What is known of each worker: one incarnation, its pace, its silence, its tickets; and which should have a want.

Rules: pure. A want is for the worker that should be through with it first. A worker's pace counts how long the want in
its hand takes already; one whose pace is not known yet is taken for a usual one; equals are told apart by an order that
is another for each trainer. What is to be done about workers is decided in `wants` and `connections`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shared.wire.parts import Ticket
    from trainer_client.core.upcoming import Entry

__all__ = ["QUICKEST_S", "Ask", "KnownWorker", "least_busy", "longest_waiting", "usual_pace_s"]

#: Differences of pace below this do not count: of two quick workers the one with less to do is asked.
QUICKEST_S = 0.001


@dataclass(slots=True)
class Ask:
    """A ticket that a worker holds, or held when it was last heard."""

    seq: int
    in_slot: bool
    sent_s: float
    #: The last ping that was sent before this want: an answer to a later one must list it.
    after_ping: int
    #: Its batch is already held to be one that may kill.
    blamed: bool = False
    #: Its answer is here, and is being looked at.
    arrived: bool = False


@dataclass(slots=True, eq=False)
class KnownWorker:
    """One incarnation of a worker, as it looks from here."""

    incarnation: int
    name: str
    #: The connection over which it is reached; None once another incarnation answers there.
    connection_id: int | None
    #: Breaks ties: another order of workers for each trainer.
    rank: int
    in_slot: bool
    lock_byte: int
    heard_s: float
    pinged_s: float
    #: About how long it takes for one want, and when its last answer came.
    service_s: float = 0.0
    answered_s: float = 0.0
    #: Nothing came from it for too long, or its connection is gone.
    silent: bool = False
    #: Its connection is gone, and it has not welcomed us again: what it said before may still come.
    cut: bool = False
    #: It takes nothing new.
    takes_no_wants: bool = False
    #: It said that it drains: when it is gone it did not crash.
    in_good_order: bool = False
    #: It asked to be left alone until then.
    busy_until_s: float = 0.0
    #: Its connection broke: it may hold tickets that are void here.
    unlisted: bool = False
    asks: dict[Ticket, Ask] = field(default_factory=dict)

    def in_hand_s(self, ask: Ask, now_s: float) -> float:
        """Seconds since it could begin with this."""
        return now_s - max(ask.sent_s, self.answered_s)

    def serve(self, service_s: float, now_s: float) -> None:
        """Note that it took so long for a want."""
        self.service_s += 0.3 * (service_s - self.service_s) if self.service_s else service_s
        self.answered_s = now_s

    def is_in_doubt(self, since_s: float) -> bool:
        """Whether there is something to ask it: it was not heard since then, or has had a want for longer."""
        return self.unlisted or self.heard_s <= since_s or any(ask.sent_s <= since_s for ask in self.asks.values())

    def pace_s(self, now_s: float) -> float:
        """Seconds a want, counting how long the one in hand takes already."""
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
        return self.may_be_asked and now_s >= self.busy_until_s

    def could_write(self) -> bool:
        """Whether it holds tickets for writing in place."""
        return any(ask.in_slot for ask in self.asks.values())


def usual_pace_s(workers: Iterable[KnownWorker]) -> float:
    """The mean pace of those that have one."""
    paces = [worker.service_s for worker in workers if worker.service_s]
    return sum(paces) / len(paces) if paces else QUICKEST_S


def least_busy(workers: Iterable[KnownWorker], entry: Entry, usual_s: float, now_s: float) -> KnownWorker | None:
    """The one that should be through first with all that it has, of those that neither have nor refused this batch."""
    able = [
        worker
        for worker in workers
        if worker.incarnation not in entry.askers
        and worker.incarnation not in entry.refused
        and now_s >= worker.busy_until_s
    ]
    return min(able, key=lambda worker: _through_s(worker, usual_s, now_s), default=None)


def _through_s(worker: KnownWorker, usual_s: float, now_s: float) -> tuple[float, int, int]:
    """Seconds until it should be through with one more want; then what tells equals apart."""
    pace_s, unanswered = worker.pace_s(now_s), len(worker.asks)
    if not worker.service_s:
        pace_s = max(pace_s, usual_s)
    return (unanswered + 1) * pace_s, unanswered, worker.rank


def longest_waiting(
    donors: Iterable[KnownWorker], thief: KnownWorker, entries: Mapping[int, Entry], enough_s: float, now_s: float
) -> tuple[int, KnownWorker, Ticket] | None:
    """Of the wants that these workers have not begun, the next in line whose wait there is longer than `enough_s`."""
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
