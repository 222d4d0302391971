"""The evaluations of streams in queue mode whose metrics are summed: their lease tables, members and lifetime.

Rules: pure. An evaluation has a lease table of its own, so two models never share a batch. States are added with the
first report that their batch is done, and the sum is a fact of the same turn, so a restart forgets neither without the
other. States that take more than a message come in pieces: what a trainer has sent of an unfinished batch is kept in
memory only, and asked for again after a restart. A trainer is in one evaluation at a time. A settled evaluation that
everybody has left starts again with the next trainer; an unsettled one goes on. Only a few idle ones are kept, because
each validation of a run has a name of its own. Nothing here knows a metric.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.leases.lease_book import NumberDone, StatesForgotten, StatesSummed, TableForgotten
from loader_server.leases.lease_table import LeaseTable
from loader_server.leases.table_counts import TableCounts
from shared.wire.message_parts import PIECE_BYTES, DoneSet, EpochDone, MetricSums

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, MutableMapping

    from numpy.typing import NDArray

    from loader_server.leases.lease_book import LeaseBook, LeaseFact
    from loader_server.leases.lease_table import LeaseSettings
    from loader_server.leases.lease_trainer import LeaseTrainer
    from shared.wire.message_parts import Lease, MetricStates
    from shared.wire.messages import Leases, Outcomes

__all__ = ["EvaluationTable", "Evaluations", "is_evaluation"]

_FLOAT64 = np.dtype("<f8")

#: The name of an evaluation's lease table is this, and the evaluation's own name.
_PREFIX = "evaluate/"

#: Limit of idle evaluations that are kept for a stream.
_MOST_KEPT = 8
#: Limit of evaluations under way at a time; each takes up to 1 MiB, and a few KiB for each leased batch.
_MOST_UNDER_WAY = 32


class EvaluationTable(LeaseTable):
    """A lease table of one epoch, with the sums of the metric states of its finished batches."""

    def __init__(self, settings: LeaseSettings, batches: Callable[[int], int | None], book: LeaseBook) -> None:
        super().__init__(settings, batches, book)
        #: The number of batches in the sums.
        self.summed = 0
        self._sums: NDArray[np.float64] = np.zeros(0)
        #: By trainer: the beginning of a batch's states, whose rest is still to come.
        self._pieces: dict[int, bytes] = {}
        #: Trainers whose last report was dropped, because the beginning of its states was lost with a restart.
        self._lost: set[int] = set()
        #: The states of each finished lease in the report that is being applied.
        self._states: dict[Lease, NDArray[np.float64]] = {}

    @property
    def is_settled(self) -> bool:
        """Return whether all batches are done or given up; False before the epoch is opened."""
        return self.unsettled() > 0

    # --- what survives ---

    def recover(self, fact: LeaseFact) -> None:
        """Apply a fact, from the journal or new: sums replace those here, the others as `LeaseTable.recover` does.

        Raise a KeyError if it closes an epoch that is not under way.
        """
        if isinstance(fact, StatesSummed):
            self.summed, self._sums = fact.batches, np.frombuffer(base64.b64decode(fact.sums), _FLOAT64)
        else:
            super().recover(fact)

    def incomplete(self) -> list[int]:
        """Return the epochs of which facts are missing; empty if none are.

        If no epoch lacks any, it is epoch 0 if the sums are over another number of batches than is done.
        """
        done = sum(epoch.fresh - len(epoch.out) for epoch in self.epochs.values()) - len(self.dead)
        return super().incomplete() or ([0] if done != self.summed else [])

    def _keep_sums(self) -> None:
        sums = base64.b64encode(self._sums.astype(_FLOAT64).tobytes()).decode()
        self._keep(StatesSummed(*self._name, self.summed, sums))

    def forgotten(self) -> Iterator[LeaseFact]:
        """Yield the facts that undo every fact about this table, because it is dropped; apply none of them."""
        yield from self._undo_epochs()
        yield from (NumberDone(*self._name, at, number) for at, number in self.dead)
        yield TableForgotten(*self._name)
        yield StatesForgotten(*self._name)

    # --- what trainers say ---

    def begin_anew(self, incarnation: int, serial: int) -> None:
        """Begin another generation, in which nothing is done or summed, for the request of this incarnation and serial.

        Trainers lose their leases and are called: that all have left, the caller looks. Raise a KeyError if epoch 0 is
        not under way.
        """
        batches = {at: epoch.batches for at, epoch in self.epochs.items()}
        self.rewind(DoneSet((EpochDone(0, 0, ()),)), batches, incarnation, serial)
        self.summed, self._sums = 0, np.zeros(0)
        self._keep_sums()

    def report(self, outcomes: Outcomes, now_s: float) -> Leases | None:
        """Take in what became of leases, lease more as `LeaseTable.report` does, and answer with a piece of the sums.

        Finished batches count only if their states are complete and fit. The sums are empty until all batches are
        settled or if none are asked for, and left out if the report has no states. Return None if the trainer has
        reported with a later serial already.
        """
        answer = super().report(outcomes, now_s)
        if answer is None or outcomes.states is None:
            return answer
        return replace(answer, sums=self._answer(outcomes.states, lost=outcomes.incarnation in self._lost))

    def _answer(self, asked: MetricStates, *, lost: bool) -> MetricSums:
        """Return a piece of the sums, which is empty until all batches are settled, or if none was asked for.

        With it come whether the sender's last report was dropped (`lost`), whether all batches are settled, and how
        many are summed and given up.
        """
        # The first trainer that finds nothing left to lease would take earlier sums for the whole.
        content = b""
        if self.is_settled and asked.sums_from is not None:
            content = self._sums.astype(_FLOAT64).tobytes()[asked.sums_from : asked.sums_from + PIECE_BYTES]
        return MetricSums(lost, self.is_settled, self.summed, len(self.dead), content)

    def _settle(self, outcomes: Outcomes, trainer: LeaseTrainer, now_s: float) -> None:
        """Apply a report; its batches count as done only if their states are complete and fit.

        What failed or was given back counts in any case.
        """
        states, summed = self._joined(outcomes), self.summed
        self._states = {} if states is None else dict(zip(outcomes.done, states, strict=True))
        super()._settle(outcomes if states is not None else replace(outcomes, done=()), trainer, now_s)
        # The sums are a fact of the same turn as the batches in them: with a restart between the two a batch would be
        # summed twice, or never.
        if self.summed != summed:
            self._keep_sums()

    def _joined(self, outcomes: Outcomes) -> list[NDArray[np.float64]] | None:
        """Return the states of each finished lease; None if only a piece came, or states that do not fit.

        A piece that comes without finished leases is kept for the rest to come. Return None as well if the report has
        no states, or their beginning was lost with a restart: then the sender is noted as `lost`.
        """
        states, incarnation = outcomes.states, outcomes.incarnation
        before = self._pieces.pop(incarnation, b"")
        self._lost.discard(incarnation)
        # This process was restarted between two pieces and lacks the first: nothing of this report counts, and the
        # answer has `lost` set.
        if states is None or len(before) < states.start:
            self._lost.add(incarnation)
            return None
        # Cut at `start`: a piece that is sent again replaces its earlier copy.
        content = before[: states.start] + states.content
        if len(content) == len(outcomes.done) * states.nbytes and states.nbytes % _FLOAT64.itemsize == 0:
            values = np.frombuffer(content, _FLOAT64).reshape(len(outcomes.done), states.nbytes // _FLOAT64.itemsize)
            return list(values) if self._fits(values) else None
        if not outcomes.done and len(content) < states.nbytes:
            self._pieces[incarnation] = content
        return None

    def _fits(self, states: NDArray[np.float64]) -> bool:
        return not self.summed or not len(states) or states.shape[1] == len(self._sums)

    def _finish(self, incarnation: int, lease: Lease) -> bool:
        """Mark a number as done, and add its states if this is the first report that counts; return whether it is."""
        is_first = super()._finish(incarnation, lease)
        if is_first:
            # Only for the first report: a batch that was leased again after a kill, and that both trainers report,
            # counts once.
            self._sums = self._states[lease] + (self._sums if self.summed else 0.0)
            self.summed += 1
        return is_first

    def leave(self, incarnation: int) -> None:
        """Forget a trainer that is gone, with the pieces that it sent, and give back its leases, if it has any."""
        self._pieces.pop(incarnation, None)
        self._lost.discard(incarnation)
        super().leave(incarnation)


def is_evaluation(work: str) -> bool:
    """Return whether a lease table of this name belongs to a single evaluation."""
    return work.startswith(_PREFIX)


class Evaluations:
    """The evaluations of all streams.

    `tables` are the lease tables by stream and work, shared with other kinds of work; `keep` takes facts for the
    journal.
    """

    def __init__(
        self,
        tables: MutableMapping[tuple[str, str], LeaseTable],
        make: Callable[[str, str], LeaseTable],
        keep: Callable[[LeaseFact], None],
    ) -> None:
        self._tables = tables
        self._make = make
        self._keep = keep
        #: The counts of dropped evaluations by stream, of which only reasons are kept.
        self._dropped: dict[str, TableCounts] = {}

    def enter(self, outcomes: Outcomes) -> EvaluationTable | None:
        """Return the lease table of the evaluation in a message with states; None if there is no room for another one.

        A sender that is new to the table leaves all other evaluations of the stream, even if there is no room. A
        settled evaluation that everybody has left is begun anew for a sender that has no generation yet.
        """
        assert outcomes.states is not None
        key = (outcomes.stream, _PREFIX + outcomes.states.evaluation)
        table = self._tables.get(key)
        # What it left unread in another evaluation would wait for its deadline there.
        if table is None or outcomes.incarnation not in table.trainers:
            for other in self._of(outcomes.stream):
                other.leave(outcomes.incarnation)
        if table is None:
            if not self._make_room(outcomes.stream):
                return None
            table = self._make(*key)
        assert isinstance(table, EvaluationTable)
        # Otherwise its results would outlive the code that made them.
        if table.is_settled and not table.trainers and not outcomes.generation:
            table.begin_anew(outcomes.incarnation, outcomes.serial)
        return table

    def _make_room(self, stream: str) -> bool:
        """Drop the oldest idle evaluations beyond the limit; return whether another one may begin."""
        idle = [table for table in self._of(stream) if not table.trainers]
        for table in idle[: max(0, len(idle) - _MOST_KEPT)]:
            for fact in table.forgotten():
                self._keep(fact)
            # Otherwise the counters of a stream would fall, which Prometheus takes for a restart.
            dropped = self._dropped.setdefault(stream, TableCounts())
            for reason, times in table.counts.reasons.items():
                dropped.add_reason(reason, times)
            del self._tables[stream, table.settings.work]
        return len(self._of(stream)) < _MOST_KEPT + _MOST_UNDER_WAY

    def _of(self, stream: str) -> list[EvaluationTable]:
        return [
            table for (name, _), table in self._tables.items() if name == stream and isinstance(table, EvaluationTable)
        ]

    def dropped_reasons(self, stream: str) -> Counter[str]:
        """Return the lost tries of the stream's dropped evaluations, by reason; empty if there were none."""
        return self._dropped.get(stream, TableCounts()).reasons

    def report_of(self, stream: str) -> Iterator[dict[str, Any]]:
        """Yield the progress of each evaluation of a stream, the newest last; `batches` is None before it has any."""
        for table in self._of(stream):
            epoch = next(iter(table.epochs.values()), None)
            yield {
                "evaluation": table.settings.work.removeprefix(_PREFIX),
                "batches": epoch.batches if epoch is not None else None,
                "done": table.summed,
                "given_up": len(table.dead),
                "trainers": len(table.trainers),
            }
