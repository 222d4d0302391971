"""The evaluations of streams in queue mode whose metrics are summed: their members and their lifetime.

Rules: pure. An evaluation has a lease table of its own, so two models never share a batch. A trainer is in one
evaluation at a time. A settled evaluation that everybody has left starts again with the next trainer; an unsettled one
goes on. Only a few idle ones are kept, because each validation of a run has a name of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.leases.evaluation_table import EvaluationTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping

    from loader_server.leases.facts import LeaseFact
    from loader_server.leases.table import LeaseTable
    from shared.wire import messages as m

__all__ = ["Evaluations", "evaluation_in", "is_evaluation", "work_of_evaluation"]

_PREFIX = "evaluate/"

#: Limit of idle evaluations that are kept for a stream.
_MOST_KEPT = 8
#: Limit of evaluations under way at a time; each takes up to 1 MiB, and a few KiB for each leased batch.
_MOST_UNDER_WAY = 32


def work_of_evaluation(evaluation: str) -> str:
    """Return the name of an evaluation's lease table."""
    return _PREFIX + evaluation


def is_evaluation(work: str) -> bool:
    """Return whether a lease table of this name belongs to a single evaluation."""
    return work.startswith(_PREFIX)


def evaluation_in(work: str) -> str:
    """Return the evaluation's name."""
    return work.removeprefix(_PREFIX)


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

    def enter(self, said: m.Outcomes) -> EvaluationTable | None:
        """Return the lease table of the evaluation in a message, moving its sender there; None if there is no room."""
        assert said.states is not None
        key = (said.stream, work_of_evaluation(said.states.evaluation))
        table = self._tables.get(key)
        if table is None or said.incarnation not in table.trainers:
            for other in self._of(said.stream):
                other.leave(said.incarnation)
        if table is None:
            if not self._make_room(said.stream):
                return None
            table = self._make(*key)
        assert isinstance(table, EvaluationTable)
        if table.is_settled and not table.trainers and not said.generation:
            table.begin_anew(said.incarnation, said.serial)
        return table

    def _make_room(self, stream: str) -> bool:
        """Drop the oldest idle evaluations beyond the limit; return whether another one may begin."""
        idle = [table for table in self._of(stream) if not table.trainers]
        for table in idle[: max(0, len(idle) - _MOST_KEPT)]:
            for fact in table.forgotten():
                self._keep(fact)
            del self._tables[stream, table.settings.work]
        return len(self._of(stream)) < _MOST_KEPT + _MOST_UNDER_WAY

    def _of(self, stream: str) -> list[EvaluationTable]:
        return [
            table for (name, _), table in self._tables.items() if name == stream and isinstance(table, EvaluationTable)
        ]

    def report_of(self, stream: str) -> Iterator[dict[str, Any]]:
        """Yield the progress of each evaluation of a stream, the newest last."""
        for table in self._of(stream):
            at = next(iter(table.epochs.values()), None)
            yield {
                "evaluation": evaluation_in(table.settings.work),
                "batches": at.batches if at is not None else None,
                "done": table.summed,
                "given_up": len(table.dead),
                "trainers": len(table.trainers),
            }
