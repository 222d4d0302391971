"""The trainers of a stream: the ranks they hold, their positions, how long they wait, and the answer that admits them.

Rules: pure. A trainer is identified by its incarnation. Each rank of a training stream has one holder; readers of an
evaluation stream hold nothing, nor do verifiers. The work for a heartbeat does not grow with the world.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from loader_server.coordinator.events import Advanced, GroupFixed, RankTaken, ResultsFact
from loader_server.coordinator.pace.lately import TRAINER_COUNTS, Lately
from loader_server.coordinator.streams.stream_results import StreamResults
from loader_server.coordinator.streams.succession import Succession
from shared.wire import messages as m
from shared.wire.topics.work_messages import MEASURE, VERIFY

if TYPE_CHECKING:
    from loader_server.coordinator.events import CoordinatorSettings, StreamFact, StreamView
    from shared.wire.message_parts import BookMark, Cursor

__all__ = ["COUNTING_MS", "AttachedReader", "AttachedTrainer", "Position", "StreamTrainers", "wait_for_count"]

#: Epoch and batch number.
Position = tuple[int, int]

#: Retry interval of a trainer that waits for batches to be counted.
COUNTING_MS = 250

#: Length of the moving average of waiting that is shown to people.
_LOOKS_BACK_S = 10.0


@dataclass(slots=True, kw_only=True)
class AttachedReader:
    """An attached verifier, or what a trainer has in common with one."""

    peer: bytes
    attach: m.Attach
    cursor: Cursor
    #: Batches in the cursor's epoch.
    batches: int
    heard_s: float
    #: Position up to which it has read.
    read: Position
    #: The tenure of its ranks; None if it claims none.
    tenure: int | None = None


@dataclass(slots=True, kw_only=True)
class AttachedTrainer(AttachedReader):
    """An attached trainer."""

    #: Position up to which it has trained.
    trained: Position
    #: Share of its recent time that it waited for data, in thousandths; None until it reads.
    waited_permille: float | None = None
    #: Its last heartbeat.
    progress: m.Progress | None = None
    lately: Lately = field(default_factory=partial(Lately, TRAINER_COUNTS))
    #: Microseconds that it has waited since it attached.
    _waited_us: float = 0.0
    #: The time that the average covers so far.
    _known_s: float = 0.0
    #: When the last heartbeat came; other messages come in between. None before the first.
    _beat_s: float | None = None

    @property
    def ranks(self) -> range:
        """Return the consecutive ranks that it claims, one for each of its replicas, from the rank of its Attach."""
        return range(self.attach.rank, self.attach.rank + self.attach.replicas)

    def hear(self, peer: bytes, progress: m.Progress, now_s: float) -> None:
        """Take in a heartbeat, except for the trained position, which `StreamTrainers.move` records.

        The average of waiting begins once the trainer has read or waited.
        """
        read = (progress.read_epoch, progress.read_number)
        over_s = now_s - (self.heard_s if self._beat_s is None else self._beat_s)
        if self.waited_permille is not None or progress.waited_permille or read != self.read:
            self._average(progress.waited_permille, over_s)
        self._waited_us += 1000 * progress.waited_permille * over_s
        self._beat_s = now_s
        counts = (progress.batches_read, self._waited_us, progress.wire_us, progress.computed_us)
        self.lately.note(counts, now_s)
        self.peer, self.heard_s, self.read, self.progress = peer, now_s, read, progress

    def _average(self, permille: int, over_s: float) -> None:
        """Update the average: over all time at first, over the last 10 seconds from then on."""
        over_s = min(over_s, _LOOKS_BACK_S)
        self._known_s = min(self._known_s + over_s, _LOOKS_BACK_S)
        before = self.waited_permille or 0.0
        self.waited_permille = before + (permille - before) * (over_s / self._known_s if self._known_s else 1.0)


@dataclass(slots=True)
class StreamTrainers:
    """A stream, and the trainers that are attached to it."""

    view: StreamView
    group: int = 0
    #: The position of the slowest rank, as kept in the journal.
    trained: Position = (0, 0)
    #: By incarnation; to be changed only through the methods.
    trainers: dict[int, AttachedTrainer] = field(default_factory=dict)
    succession: Succession = field(default_factory=Succession)
    #: Since when each trainer that disagrees with the others has been waiting, by incarnation.
    waiting_since_s: dict[int, float] = field(default_factory=dict)
    results: StreamResults = field(init=False)
    _positions: Counter[Position] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.results = StreamResults(evaluation=self.view.evaluation)

    def recover(self, fact: StreamFact) -> None:
        """Apply a fact about this stream, new or from the journal: group, position, holder of a rank, or results."""
        match fact:
            case GroupFixed():
                self.group = fact.group
            case Advanced():
                self.trained = (fact.epoch, fact.number)
            case RankTaken():
                self.succession.set_order(fact.rank, fact.incarnations, fact.tenure)
            case ResultsFact():
                self.results.recover(fact)

    # --- what trainers do with its batches ---

    @property
    def usual_work(self) -> str:
        """Return the work of trainers that name none: "evaluate" on a stream for evaluation, else "train"."""
        return "evaluate" if self.view.evaluation else "train"

    def needs_leases(self, attach: m.Attach) -> bool:
        """Return whether the request needs a stream in queue mode: it has a done-set, or names work that needs leases.

        Measuring does not, nor does evaluating on a stream that is for evaluation.
        """
        only_reads = attach.work == MEASURE or (attach.work == "evaluate" and self.view.evaluation)
        return attach.done is not None or (attach.work is not None and not only_reads)

    def grant(
        self,
        settings: CoordinatorSettings,
        reader: AttachedReader,
        members: m.Members,
        book: BookMark | None,
    ) -> m.Attached:
        """Return the answer to an attach request that is granted; `book` is None in lockstep.

        In lockstep, and to a verifier, the answer has neither book nor work.
        """
        view, attach, group = self.view, reader.attach, reader.cursor.group
        verifies = attach.work == VERIFY
        next_group = group if verifies else settings.group or (group if view.evaluation else self.group)
        leases = book is not None and not verifies
        return m.Attached(
            serial=attach.serial,
            job=settings.job,
            stream=attach.stream,
            evaluation=view.evaluation,
            work=attach.work or self.usual_work if leases else None,
            book=book if leases else None,
            cursor=reader.cursor,
            next_group=next_group,
            tenure=reader.tenure,
            batches=reader.batches,
            most_batches=view.most_batches(max(next_group, group)),
            fields=view.fields,
            shapes=view.shapes,
            producers=view.producers,
            base_fields=view.base_fields,
            heartbeat_timeout_ms=int(1000 * settings.heartbeat_timeout_s),
            max_bad=settings.max_bad.share,
            max_bad_samples=settings.max_bad.samples,
            members=members.version,
            workers=members.workers,
        )

    # --- ranks and positions ---

    def holder(self, rank: int) -> AttachedTrainer | None:
        """Return the attached holder of this rank; None if there is none."""
        holder = self.succession.holder(rank)
        return self.trainers.get(holder) if holder is not None else None

    def attach_of(self, rank: int) -> m.Attach | None:
        """Return the request of the attached holder of this rank; None if there is none."""
        holder = self.holder(rank)
        return holder.attach if holder is not None else None

    def is_superseded(self, attach: m.Attach) -> bool:
        """Return whether another trainer has taken one of its ranks since it held them.

        That is so if one of these ranks has a higher tenure than it shows, or a later incarnation in a rank that it
        held, as far as is remembered. ValueError of `last_tenure` passes through.
        """
        # By its tenure even if its incarnation is forgotten: only the latest few are remembered, and a journal on a
        # full disk lacks the newest.
        ranks = range(attach.rank, attach.rank + attach.replicas)
        is_older = attach.tenure is not None and self.succession.last_tenure(ranks) > attach.tenure
        return is_older or self.succession.is_superseded(attach.incarnation)

    def former(self, peer: bytes, incarnation: int) -> list[int]:
        """Return the other trainers that were attached on this connection, by incarnation; empty if none were."""
        # A connection speaks for one trainer: the process of the others has ended or begun anew.
        return [other for other, trainer in self.trainers.items() if trainer.peer == peer and other != incarnation]

    def add(self, trainer: AttachedTrainer) -> None:
        """Add a trainer that is attached now, replacing its earlier self."""
        self.remove(trainer.attach.incarnation)
        self.trainers[trainer.attach.incarnation] = trainer
        self._positions[trainer.trained] += 1

    def remove(self, incarnation: int) -> None:
        """Remove a trainer; do nothing if it is not attached."""
        trainer = self.trainers.pop(incarnation, None)
        if trainer is not None:
            self._uncount(trainer.trained)

    def move(self, trainer: AttachedTrainer, trained: Position) -> None:
        """Record how far a trainer, which has to be attached, has trained."""
        self._uncount(trainer.trained)
        trainer.trained = trained
        self._positions[trained] += 1

    def _uncount(self, position: Position) -> None:
        self._positions[position] -= 1
        if not self._positions[position]:
            del self._positions[position]

    def last(self) -> Position:
        """Return the slowest trainer's position; raise a ValueError if none is attached."""
        # Positions are counted, so this costs as much as there are distinct ones, and a world's ranks are at few.
        return min(self._positions)

    def remove_silent(self, since_s: float) -> int:
        """Remove trainers that were last heard before this time, and waits that began before it.

        Return how many trainers it removed.
        """
        silent = [known for known, trainer in self.trainers.items() if trainer.heard_s < since_s]
        for incarnation in silent:
            self.remove(incarnation)
        self.waiting_since_s = {known: at_s for known, at_s in self.waiting_since_s.items() if at_s >= since_s}
        return len(silent)


def wait_for_count(attach: m.Attach, epoch: int) -> m.Wait:
    """Return the answer to a request that has to wait until an epoch's batches are counted."""
    return m.Wait(serial=attach.serial, reason=f"counting the batches of epoch {epoch}", retry_ms=COUNTING_MS)
