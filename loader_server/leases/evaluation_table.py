"""The lease table of one evaluation, whose batches bring metric states that are summed.

Rules: pure. States are added with the first report that their batch is done, and the sum is a fact of the same turn, so
a restart forgets neither without the other. States that take more than a message come in pieces: what a trainer has
sent of an unfinished batch is kept in memory only, and asked for again after a restart. It knows no metric.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from loader_server.leases.facts import NumberDone, StatesForgotten, StatesSummed, TableForgotten
from loader_server.leases.table import LeaseTable
from shared.wire.message_parts import PIECE_BYTES, DoneSet, EpochDone, MetricSums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from loader_server.leases.facts import LeaseFact
    from loader_server.leases.lease_book import LeaseBook
    from loader_server.leases.lease_trainer import LeaseTrainer
    from loader_server.leases.table import LeaseSettings
    from shared.wire.message_parts import Lease, MetricStates
    from shared.wire.messages import Leases, Outcomes

__all__ = ["EvaluationTable"]

_FLOAT64 = np.dtype("<f8")


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
        """Return whether all batches are done or given up."""
        return self.unsettled() > 0

    # --- what survives ---

    def recover(self, fact: LeaseFact) -> None:
        """Apply a fact, from the journal or new."""
        if isinstance(fact, StatesSummed):
            self.summed, self._sums = fact.batches, np.frombuffer(base64.b64decode(fact.sums), _FLOAT64)
        else:
            super().recover(fact)

    def incomplete(self) -> list[int]:
        """Return the epochs of which facts are missing.

        Epoch 0 counts as well if the sums are over another number of batches than is done.
        """
        done = sum(epoch.fresh - len(epoch.out) for epoch in self.epochs.values()) - len(self.dead)
        return super().incomplete() or ([0] if done != self.summed else [])

    def _keep_sums(self) -> None:
        name = self.settings
        sums = base64.b64encode(self._sums.astype(_FLOAT64).tobytes()).decode()
        self._keep(StatesSummed(name.stream, name.work, self.summed, sums))

    def forgotten(self) -> Iterator[LeaseFact]:
        """Yield the facts that undo every fact about this table, because it is dropped."""
        name = (self.settings.stream, self.settings.work)
        for at, epoch in self.epochs.items():
            yield from (NumberDone(*name, at, number) for number in epoch.out)
        yield from (NumberDone(*name, at, number) for at, number in self.dead)
        yield from (self._closed(at) for at in self.epochs)
        yield TableForgotten(*name)
        yield StatesForgotten(*name)

    # --- what trainers say ---

    def begin_anew(self, incarnation: int, serial: int) -> None:
        """Forget everything that is done, for the first trainer after all others have left."""
        batches = {at: epoch.batches for at, epoch in self.epochs.items()}
        self.rewind(DoneSet((EpochDone(0, 0, ()),)), batches, incarnation, serial)
        self.summed, self._sums = 0, np.zeros(0)
        self._keep_sums()

    def report(self, said: Outcomes, now_s: float) -> Leases | None:
        """Take in what became of leases, with the states of finished batches, and answer with the sums.

        Return None if the trainer has reported with a later serial already.
        """
        answer = super().report(said, now_s)
        if answer is None or said.states is None:
            return answer
        lost = said.incarnation in self._lost
        return replace(answer, sums=self._answer(said.states, lost=lost))

    def _answer(self, asked: MetricStates, *, lost: bool) -> MetricSums:
        """Return the sums in pieces, once all batches are settled.

        Before that, they would be taken for the whole by the first trainer that finds nothing left to lease.
        """
        content = b""
        if self.is_settled and asked.sums_from is not None:
            content = self._sums.astype(_FLOAT64).tobytes()[asked.sums_from : asked.sums_from + PIECE_BYTES]
        return MetricSums(lost, self.is_settled, self.summed, len(self.dead), content)

    def _settle(self, said: Outcomes, trainer: LeaseTrainer, now_s: float) -> None:
        """Apply a report; its batches count as done only once their states are complete."""
        whole = self._joined(said)
        self._states = {} if whole is None else dict(zip(said.done, whole, strict=True))
        summed = self.summed
        super()._settle(said if whole is not None else replace(said, done=()), trainer, now_s)
        if self.summed != summed:
            self._keep_sums()

    def _joined(self, said: Outcomes) -> list[NDArray[np.float64]] | None:
        """Return the states of each finished lease; None if only a piece came, or states that do not fit."""
        states, who = said.states, said.incarnation
        before = self._pieces.pop(who, b"")
        self._lost.discard(who)
        # We were restarted between two pieces and lack the first one: nothing of this report counts, and the answer
        # says so (`lost`).
        if states is None or len(before) < states.start:
            self._lost.add(who)
            return None
        # Cut at `start`: a piece that is sent again replaces its earlier copy.
        content = before[: states.start] + states.content
        if len(content) == len(said.done) * states.nbytes and states.nbytes % _FLOAT64.itemsize == 0:
            values = np.frombuffer(content, _FLOAT64).reshape(len(said.done), states.nbytes // _FLOAT64.itemsize)
            return list(values) if self._fits(values) else None
        if not said.done and len(content) < states.nbytes:
            self._pieces[who] = content
        return None

    def _fits(self, states: NDArray[np.float64]) -> bool:
        return not self.summed or not len(states) or states.shape[1] == len(self._sums)

    def _finish(self, incarnation: int, lease: Lease) -> bool:
        """Mark a number as done; add its states if this is the first report that counts."""
        is_first = super()._finish(incarnation, lease)
        if is_first:
            # Only for the first report: a batch that was leased again after a kill, and that both trainers report,
            # counts once.
            self._sums = self._states[lease] + (self._sums if self.summed else 0.0)
            self.summed += 1
        return is_first

    def leave(self, incarnation: int) -> None:
        """Forget a trainer that is gone, with the pieces that it sent, and give back its leases."""
        self._pieces.pop(incarnation, None)
        self._lost.discard(incarnation)
        super().leave(incarnation)
