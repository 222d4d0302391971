"""A trainer's upcoming batches: the endless sequence of them, lap after lap, and the progress of the next ones.

Rules: pure. A lap is one pass from a position to the end of its epoch; after it comes the next epoch from its
beginning or, in an evaluation stream, the same pass again. The number of batches of an epoch comes from outside, and
the sequence extends only as far as that is known. Batches are numbered (`seq`) in the order in which they will be
consumed. Numbers only grow: a reader that starts elsewhere goes on counting where the last one ended, so that an answer
for an old number is never taken for a new one. The position of the sequence is kept here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shared.rounds import rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.errors import StokerError
    from shared.wire.message_parts import Lease, Ticket
    from shared.wire.messages import Pushed

__all__ = ["Course", "Entry", "Position", "Ranks", "Upcoming", "UpcomingBatch"]


@dataclass(frozen=True, slots=True)
class Position:
    """A position between two rounds: the next batch number of an epoch, and the size of its groups."""

    epoch: int
    number: int
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of this trainer: `replicas` of the `world`, from `rank` on."""

    rank: int
    replicas: int
    world: int


@dataclass(frozen=True, slots=True)
class UpcomingBatch:
    """One batch for this trainer: `position` is where its round starts, `replica` the index of the rank it is for.

    `last` marks the end of its lap. In queue mode it has a `lease` of a `generation`, and its lap is that lease's
    epoch.
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
    """An upcoming batch and its progress.

    Several modules decide about it, but only the transitions below change it.
    """

    batch: UpcomingBatch
    #: How many workers died, or may have died, while they held a ticket for it.
    attempt: int = 0
    #: The header and slot of a batch that has arrived.
    header: Pushed | None = None
    slot: int = -1
    #: Whether its rows were counted as delivered already.
    counted: bool = False
    #: Whether a second worker was asked although the first one is well.
    hedged: bool = False
    #: Do not ask another worker before this time; the pause (back-off) doubles each time.
    again_s: float = 0.0
    patience_s: float = 0.0
    #: Refusals, by the worker's incarnation.
    refused: dict[int, StokerError] = field(default_factory=dict)
    #: Failures of machines through no fault of the data, each "worker: reason".
    failures: list[str] = field(default_factory=list)
    #: Workers (by incarnation) that hold a ticket for it.
    askers: dict[int, Ticket] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Return whether the batch has arrived."""
        return self.header is not None

    def lend(self, incarnation: int, ticket: Ticket) -> None:
        """Note that this worker holds a ticket for the batch; it must not hold one already."""
        # With two, its answer to the first would leave the slot of the second lent for ever.
        assert incarnation not in self.askers
        self.askers[incarnation] = ticket

    def take_ticket_back(self, incarnation: int) -> None:
        """Note that this worker's ticket is answered or void, so that another worker may be asked at once.

        Raise KeyError if the worker holds none.
        """
        del self.askers[incarnation]
        self.again_s = 0.0

    def arrive(self, header: Pushed, slot: int) -> None:
        """Note that the batch has arrived, in this slot; it must not have arrived already."""
        # The first valid answer wins: a hedged or suspected worker's later answer must not replace a batch that a
        # consumer may be reading.
        assert self.header is None
        self.header, self.slot = header, slot

    def retract(self) -> None:
        """Note that the batch, which must have arrived, was taken back unread, so that it will be asked for again."""
        assert self.header is not None
        self.header, self.slot = None, -1

    def refuse(self, incarnation: int, error: StokerError) -> None:
        """Never ask this worker for the batch again; its ticket must be closed already."""
        # Without this a refusal and a resend cross, and the want goes round for ever.
        assert incarnation not in self.askers
        self.refused[incarnation] = error

    def blame(self) -> None:
        """Note that the batch may have killed a worker, so that the next builder tries its samples in a child first."""
        # It may have arrived from another worker meanwhile; the count matters if it is taken back and asked for again.
        self.attempt += 1

    def fail_at(self, machine: str, pause_s: float, now_s: float) -> None:
        """Note a failure through no fault of the data; the batch then waits `pause_s` times its failures."""
        self.failures.append(machine)
        self.again_s = now_s + pause_s * len(self.failures)

    def wait_longer(self, first_s: float, now_s: float) -> None:
        """Double the back-off before another worker is asked; the first pause is `first_s`.

        Only a batch that a silent worker holds waits like this.
        """
        # Without back-off, a fleet that is merely slow would be asked for the same batch in every turn.
        assert self.askers
        self.patience_s = 2 * self.patience_s or first_s
        self.again_s = now_s + self.patience_s

    def hedge(self) -> None:
        """Note that a second worker is asked although the first one is well; allowed once per batch."""
        assert not self.hedged
        self.hedged = True

    def count_rows(self) -> bool:
        """Return whether the batch's rows are still to be counted: True the first time, False from then on."""
        # A batch that was taken back for the head and comes again delivers no new rows: counted twice, its bad samples
        # could end a job that is within its limit.
        is_first, self.counted = not self.counted, True
        return is_first


class Course:
    """The sequence of batches from `start` on; `next_group` is the group size of later epochs.

    `known` holds the number of batches by (epoch, group). With `repeats`, every lap is the one from `start`.
    """

    def __init__(
        self, start: Position, ranks: Ranks, known: dict[tuple[int, int], int], *, next_group: int, repeats: bool
    ) -> None:
        self._ranks = ranks
        self._start = start
        self._next_group = next_group
        self._repeats = repeats
        self._at = start
        self._lap = 0
        #: How many batches an epoch has, by (epoch, group); `Upcoming.learn` adds to it.
        self._known = known
        self._lap_batches: Iterator[UpcomingBatch] | None = None

    def next_lap(self) -> Position | None:
        """Return where the next lap starts; None in the middle of a lap.

        A lap counts as ended only once `advance` has been called after its last batch.
        """
        return self._at if self._lap_batches is None else None

    def missing(self) -> tuple[int, int] | None:
        """Return the (epoch, group) whose size must be learnt before the course goes on; None if none is needed now.

        None is needed in the middle of a lap, or if the size of the next lap's epoch is known.
        """
        key = (self._at.epoch, self._at.group)
        return None if self._lap_batches is not None or key in self._known else key

    def advance(self) -> UpcomingBatch | None:
        """Return the next batch; None while `missing` a size, or if the lap to repeat is empty.

        Epochs that have no batches left are passed over, unless laps repeat. Raise ValueError if the world exceeds the
        group.
        """
        while True:
            if self._lap_batches is None:
                if self.missing() is not None:
                    return None
                if self._repeats and self._at.number >= self._known[self._at.epoch, self._at.group]:
                    return None  # the lap is empty, and to repeat it would never end
                self._lap_batches = self._batches_of_lap()
            batch = next(self._lap_batches, None)
            if batch is not None:
                return batch
            self._lap += 1
            self._lap_batches = None
            self._at = self._start if self._repeats else Position(self._at.epoch + 1, 0, self._next_group)

    def _batches_of_lap(self) -> Iterator[UpcomingBatch]:
        """Yield the batches of one lap, each only once the next is known, so that the last can be marked.

        An empty lap yields none. Raise ValueError if the world exceeds the group.
        """
        at, ranks = self._at, self._ranks
        batches = self._known[at.epoch, at.group]
        previous: UpcomingBatch | None = None
        for round_ in rounds(at.number, batches, at.group, ranks.world):
            start = replace(at, number=round_.start)
            for replica in range(ranks.replicas):
                place = round_.place(ranks.rank + replica)
                if previous is not None:
                    yield previous
                previous = UpcomingBatch(start, replica, self._lap, place.number, place.empty)
        if previous is not None:
            yield replace(previous, last=True)


class Upcoming:
    """The batches from `head` to `end` with their progress, and the course that continues them."""

    def __init__(self, start: Position, ranks: Ranks, *, repeats: bool) -> None:
        self.epochs: dict[tuple[int, int], int] = {}
        #: The group size of later epochs.
        self.next_group = start.group
        self.head = 0
        self.end = 0
        self.entries: dict[int, Entry] = {}
        self._ranks = ranks
        self._repeats = repeats
        self._course = self._new_course(start)

    def learn(self, epoch: int, group: int, batches: int) -> None:
        """Note how many batches an epoch has, read in groups of this size."""
        self.epochs[epoch, group] = batches

    def regroup(self, group: int) -> None:
        """Read later epochs in groups of this size, from the next redirection on."""
        self.next_group = group

    def missing(self) -> tuple[int, int] | None:
        """Return the (epoch, group) whose size must be learnt before more batches follow; None if none is needed."""
        return self._course.missing()

    def is_over(self, position: Position) -> bool | None:
        """Return whether the epoch has no batch from this position on; None while its size is not known."""
        batches = self.epochs.get((position.epoch, position.group))
        return None if batches is None else position.number >= batches

    def extend(self, most: int) -> range:
        """Add up to `most` batches, as far as sizes of epochs are known; return their numbers.

        They are fewer, perhaps none, if a size is not known yet or the lap to repeat is empty. Raise ValueError if the
        world exceeds the group.
        """
        first = self.end
        while self.end - first < most:
            batch = self._course.advance()
            if batch is None:
                break
            self.entries[self.end] = Entry(batch)
            self.end += 1
        return range(first, self.end)

    def pass_to(self, head: int) -> None:
        """Move the head to this number, and drop the batches before it, as consumed; a lower number changes nothing."""
        for seq in range(self.head, head):
            del self.entries[seq]
        self.head = max(self.head, head)

    def ready_to(self, known: int) -> int:
        """Return the first number from the head on whose batch has not arrived; all before `known` count as arrived."""
        seq = max(self.head, known)
        while (entry := self.entries.get(seq)) is not None and entry.ready:
            seq += 1
        return seq

    def leads_on(self, start: Position, taken: int) -> bool:
        """Return whether the upcoming batches are exactly those of a reader that begins at `start`.

        False for a reader that has taken some already: it is redirected to where it stands.
        """
        if taken:
            return False
        # Batches that were prefetched for a reader that was dropped before it took any are still the right ones:
        # keeping them saves building an epoch's first batches twice.
        first = self.entries.get(self.head)
        if first is not None:
            return first.batch.position == start and first.batch.replica == 0
        return self._course.next_lap() == start

    def redirect(self, start: Position, taken: int) -> None:
        """Drop the upcoming batches, and go on where a reader stands that began at `start` and took `taken` batches.

        Sizes of epochs must be known up to there. Raise ValueError if the world exceeds the group.
        """
        # Numbers go on from the last one: an answer from before a restore must not be taken for one after it.
        self._course = self._new_course(start)
        for _ in range(taken):
            self._course.advance()
        self.entries.clear()
        self.head = self.end

    def _new_course(self, start: Position) -> Course:
        return Course(start, self._ranks, self.epochs, next_group=self.next_group, repeats=self._repeats)
