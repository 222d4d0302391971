"""A process's part in evaluations that another process begins and reports.

Rules: it evaluates what the coordinator leases to it, by the description of the model that the other process gave, so
both are in the same evaluation. Nothing is reported from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer_client.training.evaluating.evaluation_sums import sums_of
from trainer_client.training.evaluating.evaluator import Evaluator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_client.feed import Feed
    from trainer_client.training.evaluating.evaluation_sums import Judged

__all__ = ["EvaluationPart"]


class EvaluationPart:
    """A part on the feeds of evaluation streams in queue mode, each with its data, by the loss of a compiled model."""

    def __init__(self, model: Any, data: Sequence[tuple[Feed, Any]], metrics: Sequence[Any]) -> None:
        self._data = data
        self._evaluator = Evaluator(model, model.loss, metrics)

    def take_part(self, judged: Judged) -> dict[str, int]:
        """Evaluate the model as it is until all samples are evaluated, by any process.

        Return how many batches this one evaluated, by stream. `judged` is the other process's description of the model.
        Errors of evaluating are passed on, EndedError among them.
        """
        batches = {}
        for feed, data in self._data:
            before = self._evaluator.batches
            self._evaluator.evaluate(data, sums=sums_of(feed._session, judged))
            batches[feed._session.spec.stream] = self._evaluator.batches - before
        return batches
