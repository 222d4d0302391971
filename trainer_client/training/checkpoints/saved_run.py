"""The checkpoints of our training loop: variables, cursor, totals, and what was evaluated, all in one file.

Rules: the file is the one that `FeedCheckpoint` writes, so `fit` goes on where the loop stopped and the other way
round, and `evaluate` and `predict` read both. It must not know when to save.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder
from trainer_client.training.checkpoints.variables import assign_values, plain_value
from trainer_client.training.runs.noted import NotedMeans
from trainer_client.training.runs.until import RunTotals

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainer_client.session.feed_session import FeedSession
    from trainer_client.training.runs.early_stop import EarlyStop

__all__ = ["SavedRun"]


class SavedRun:
    """A folder of checkpoints of one model, its optimizer and its feed; `writes` says whether this process writes."""

    def __init__(self, folder: Path, keep: int, *, writes: bool) -> None:
        self._folder = CheckpointFolder(folder, keep)
        self._writes = writes

    def begin(self) -> None:
        """Mark the folder as unfinished, so that its followers wait for checkpoints."""
        if self._writes:
            self._folder.mark(finished=False)

    def finish(self) -> None:
        """Mark the folder as finished, so that its followers stop waiting."""
        if self._writes:
            self._folder.mark(finished=True)

    def commit(
        self,
        model: Any,
        feed: Mapping[str, Any],
        totals: RunTotals,
        noted: NotedMeans,
        early_stop: EarlyStop | None,
    ) -> Path | None:
        """Commit one checkpoint, whole or not at all; return its path, or None in a process that does not write.

        The cursor `feed` has to be taken together with the variables. All processes read their variables, because
        reading may need all of them.
        """
        arrays = {str(at): plain_value(variable) for at, variable in enumerate(_variables(model))}
        record = {
            "epoch": totals.epochs,
            "feed": feed,
            "step": totals.steps,
            "model_variables": len(model.variables),
            "run": totals.state(),
            "noted": noted.state(),
        }
        if early_stop is not None:
            record["early_stop"] = early_stop.state()
        return self._folder.write(arrays, record) if self._writes else None

    def restore(
        self,
        model: Any,
        session: FeedSession,
        early_stop: EarlyStop | None,
    ) -> tuple[RunTotals, NotedMeans]:
        """Restore the newest checkpoint, and return its totals and the means noted so far.

        Without one the feed goes to its beginning, and the model stays as it is.
        """
        found = self._folder.read_last()
        record: dict[str, Any] = {}
        if found is None:
            session.cursor.rewind()
        else:
            arrays, record = found
            session.cursor.restore(record["feed"])
            assign_values(_variables(model), [arrays[str(at)] for at in range(len(arrays))])
            session.note_saved(self._folder.newest_used, record.get("step", 0))
        if early_stop is not None:
            early_stop.restore(record.get("early_stop", {}))
        done = {"steps": record.get("step", 0)} | record.get("run", {}) | {"epochs": record.get("epoch", 0)}
        return RunTotals.of(done), NotedMeans.of(record.get("noted", {}))

    def read(self, model: Any, early_stop: EarlyStop | None) -> RunTotals | None:
        """Restore the newest checkpoint, but not the feed's place; return its totals, or None if there is none."""
        found = self._folder.read_last()
        if found is None:
            return None
        arrays, record = found
        assign_values(_variables(model), [arrays[str(at)] for at in range(len(arrays))])
        if early_stop is not None:
            early_stop.restore(record.get("early_stop", {}))
        return RunTotals.of({"steps": record.get("step", 0)} | record.get("run", {}) | {"epochs": record["epoch"]})


def _variables(model: Any) -> list[Any]:
    return [*model.variables, *model.optimizer.variables]
