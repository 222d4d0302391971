"""What lies ahead of a trainer: the endless sequence of its batches, lap after lap, and how far the next ones are.

Rules: pure. A lap is one pass from a position to the end of its epoch; after it comes the next epoch from its
beginning or, in an evaluation stream, the same pass again. How many batches an epoch has is learnt from outside, and
the sequence goes as far as that is known. Batches are numbered (`seq`) in the order in which they will be consumed.
Numbers only grow: a reader that starts elsewhere goes on counting where the last one ended, so that an answer for an
old number is never taken for a new one. The position of the sequence is kept here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shared.rounds import rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.errors import StokerError
    from shared.wire.messages import Pushed
    from shared.wire.parts import Lease, Ticket

__all__ = ["Course", "Entry", "Position", "Ranks", "Upcoming", "UpcomingBatch"]


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two rounds: the next batch number of an epoch, and the size of its groups."""

    epoch: int
    number: int
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Which ranks of the world this trainer occupies."""

    rank: int
    replicas: int
    world: int


@dataclass(frozen=True, slots=True)
class UpcomingBatch:
    """One batch that this trainer gets: `position` is where its round starts, `replica` which of our ranks it is for.

    `last` says that its lap ends after it. In queue mode it has a `lease` of a `generation`, and its lap is that
    lease's epoch.
    """

    position: Position
    replica: int
    lap: int
    number: int
    empty: bool
    last: bool = False
    lease: Lease | None = None
    generation: int = 0


@dataclass(slots=True)
class Entry:
    """An upcoming batch, and how far it is.

    Several modules decide what becomes of it, but only the transitions below change it.
    """

    batch: UpcomingBatch
    #: How many workers died, or may have died, while they had it.
    attempt: int = 0
    #: Once the batch is here: its header and slot.
    header: Pushed | None = None
    slot: int = -1
    #: Its rows were already counted as delivered.
    counted: bool = False
    hedged: bool = False
    #: Do not ask another worker before this time; the pause doubles with each asking.
    again_s: float = 0.0
    patience_s: float = 0.0
    #: What each worker (by incarnation) that refused it said.
    refused: dict[int, StokerError] = field(default_factory=dict)
    #: What each machine said that failed at it through no fault of the data.
    failures: list[str] = field(default_factory=list)
    #: Workers (by incarnation) that hold a ticket for it.
    askers: dict[int, Ticket] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether the batch is here."""
        return self.header is not None

    def lend(self, incarnation: int, ticket: Ticket) -> None:
        """Note that this worker holds a ticket for the batch.

        A worker never holds two, or its answer to the first would leave the second one's slot lent for ever.
        """
        assert incarnation not in self.askers
        self.askers[incarnation] = ticket

    def take_ticket_back(self, incarnation: int) -> None:
        """Note that this worker's ticket is answered or void, so that the next asking need not wait."""
        del self.askers[incarnation]
        self.again_s = 0.0

    def arrive(self, header: Pushed, slot: int) -> None:
        """Note that the batch is here.

        The first valid answer wins: a hedged or suspected worker's later answer must not replace a batch that a
        consumer may be reading.
        """
        assert self.header is None
        self.header, self.slot = header, slot

    def retract(self) -> None:
        """Note that the batch was taken back before a consumer had it, so that it is asked for again."""
        assert self.header is not None
        self.header, self.slot = None, -1

    def refuse(self, incarnation: int, error: StokerError) -> None:
        """Never ask this worker for the batch again; its ticket is closed already."""
        assert incarnation not in self.askers
        self.refused[incarnation] = error

    def blame(self) -> None:
        """Note that the batch may have killed a worker, so that the next builder tries its samples in a child first.

        It may be here by now, from another worker; the count still stands if it is taken back and asked for again.
        """
        self.attempt += 1

    def fail_at(self, machine: str, pause_s: float, now_s: float) -> None:
        """Note a failure through no fault of the data; wait longer after each before the batch is asked for again."""
        self.failures.append(machine)
        self.again_s = now_s + pause_s * len(self.failures)

    def wait_longer(self, first_s: float, now_s: float) -> None:
        """Put the next asking off twice as far as the last.

        Only a batch that a silent worker holds waits like this: without the pauses, a fleet that is merely slow would
        be asked for the same batch by every turn.
        """
        assert self.askers
        self.patience_s = 2 * self.patience_s or first_s
        self.again_s = now_s + self.patience_s

    def hedge(self) -> None:
        """Note that a second worker is asked although the first one is fine, which happens once."""
        assert not self.hedged
        self.hedged = True

    def count_rows(self) -> bool:
        """Return True the first time: a batch that was taken back and comes again delivers no new rows."""
        is_first, self.counted = not self.counted, True
        return is_first


class Course:
    """The batches from `start` on; `next_group` is the group of later epochs."""

    def __init__(
        self, start: Position, ranks: Ranks, known: dict[tuple[int, int], int], *, next_group: int, repeats: bool
    ) -> None:
        self._ranks = ranks
        self._start = start
        self._next_group = next_group
        self._repeats = repeats
        self._at = start
        self._lap = 0
        #: How many batches an epoch has, by (epoch, group); shared with whoever learns it.
        self._known = known
        self._lap_batches: Iterator[UpcomingBatch] | None = None

    def next_lap(self) -> Position | None:
        """Where the next lap starts; None in the middle of one."""
        return self._at if self._lap_batches is None else None

    def missing(self) -> tuple[int, int] | None:
        """The (epoch, group) whose number of batches must be learnt before the course goes on."""
        key = (self._at.epoch, self._at.group)
        return None if self._lap_batches is not None or key in self._known else key

    def advance(self) -> UpcomingBatch | None:
        """The next batch; None while `missing` something, or where there is nothing to repeat."""
        while True:
            if self._lap_batches is None:
                if self.missing() is not None or (self._repeats and self._is_at_the_end()):
                    return None
                self._lap_batches = self._one_lap()
            batch = next(self._lap_batches, None)
            if batch is not None:
                return batch
            self._finish_lap()

    def _is_at_the_end(self) -> bool:
        return self._at.number >= self._known[self._at.epoch, self._at.group]

    def _finish_lap(self) -> None:
        self._lap += 1
        self._lap_batches = None
        self._at = self._start if self._repeats else Position(self._at.epoch + 1, 0, self._next_group)

    def _one_lap(self) -> Iterator[UpcomingBatch]:
        """The batches of one lap, each held back until the next is known, so that the last one can be marked."""
        at, ranks = self._at, self._ranks
        batches = self._known[at.epoch, at.group]
        previous: UpcomingBatch | None = None
        for one in rounds(at.number, batches, at.group, ranks.world):
            start = replace(at, number=one.start)
            for replica in range(ranks.replicas):
                place = one.place(ranks.rank + replica)
                if previous is not None:
                    yield previous
                previous = UpcomingBatch(start, replica, self._lap, place.number, place.empty)
        if previous is not None:
            yield replace(previous, last=True)


class Upcoming:
    """The batches from `head` on, and the course that continues them."""

    def __init__(self, start: Position, ranks: Ranks, *, repeats: bool) -> None:
        self.epochs: dict[tuple[int, int], int] = {}
        #: The group of later epochs.
        self.next_group = start.group
        self.head = 0
        self.end = 0
        self.entries: dict[int, Entry] = {}
        self._ranks = ranks
        self._repeats = repeats
        self._course = self._new_course(start)

    def learn(self, epoch: int, group: int, batches: int) -> None:
        """An epoch has this many batches."""
        self.epochs[epoch, group] = batches

    def regroup(self, group: int) -> None:
        """Read later epochs in groups of this size, from the next redirection on."""
        self.next_group = group

    def missing(self) -> tuple[int, int] | None:
        """The (epoch, group) whose number of batches must be learnt before the sequence goes on."""
        return self._course.missing()

    def is_over(self, position: Position) -> bool | None:
        """Whether nothing is left of the epoch after this position; None while that is not known."""
        batches = self.epochs.get((position.epoch, position.group))
        return None if batches is None else position.number >= batches

    def extend(self, most: int) -> range:
        """Add up to this many more batches; returns their numbers."""
        first = self.end
        while self.end - first < most:
            batch = self._course.advance()
            if batch is None:
                break
            self.entries[self.end] = Entry(batch)
            self.end += 1
        return range(first, self.end)

    def pass_to(self, head: int) -> None:
        """Everything before this number was consumed."""
        for seq in range(self.head, head):
            del self.entries[seq]
        self.head = max(self.head, head)

    def leads_on(self, start: Position, taken: int) -> bool:
        """Whether what lies ahead is exactly what a reader that begins at `start` needs."""
        if taken:
            return False
        first = self.entries.get(self.head)
        if first is not None:
            return first.batch.position == start and first.batch.replica == 0
        return self._course.next_lap() == start

    def redirect(self, start: Position, taken: int) -> None:
        """Go on where a reader is that began at `start` and took this many; what lay ahead is dropped.

        Numbers go on from where they were: an answer from before a restore must not be taken for one after it.
        """
        self._course = self._new_course(start)
        for _ in range(taken):
            self._course.advance()
        self.entries.clear()
        self.head = self.end

    def _new_course(self, start: Position) -> Course:
        return Course(start, self._ranks, self.epochs, next_group=self.next_group, repeats=self._repeats)
