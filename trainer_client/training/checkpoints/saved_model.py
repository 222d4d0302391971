"""A model's variables as plain arrays, and the checkpoints of our training loop: all in one file.

Rules: every value comes back exactly, whatever its dtype. The file is the one that `FeedCheckpoint` writes, so `fit`
goes on where the loop stopped and the other way round, and `evaluate` and `predict` read both. It must not know when to
save.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from shared.errors import DataError, LostError
from trainer_client.network.trainer_log import process_log
from trainer_client.training.checkpoints.checkpoint_folder import TABLES, CheckpointFolder
from trainer_client.training.checkpoints.initial_values import variable_names
from trainer_client.training.checkpoints.saved_tables import SavedTables, record_of_tables
from trainer_client.training.runs.until import NotedMeans, RunTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from trainer_client.session.feed_session import FeedSession
    from trainer_client.training.checkpoints.checkpoint_folder import Arrays, StreamedArray
    from trainer_client.training.runs.early_stop import EarlyStop

__all__ = ["SavedRun", "assign_arrays", "assign_values", "model_record", "plain_arrays", "plain_value"]


class SavedRun:
    """A folder of checkpoints of one model, its optimizer and its feed; `writes` says whether this process writes.

    `initial` gives the model its first values if there is no checkpoint yet.
    """

    def __init__(self, folder: Path, keep: int, *, writes: bool, initial: Callable[..., object] | None = None) -> None:
        self._folder = CheckpointFolder(folder, keep)
        self._writes = writes
        self._initial = initial
        self._log = process_log()
        #: The served tables of the checkpoint that was read last; None: there was none.
        self.tables: SavedTables | None = None

    def mark(self, *, finished: bool) -> None:
        """Mark the folder as finished, so that its followers stop waiting for checkpoints, or as unfinished.

        Do nothing in a process that does not write. Raise MachineError if a link or the like is in the place of the
        mark, and OSError if the system refuses to make or remove it.
        """
        if self._writes:
            self._folder.mark(finished=finished)

    def commit(  # noqa: PLR0913, PLR0917 - each is a part of its own
        self,
        model: Any,
        feed: Mapping[str, Any],
        totals: RunTotals,
        noted: NotedMeans,
        early_stop: EarlyStop | None,
        tables: Iterable[StreamedArray] = (),
    ) -> Path | None:
        """Commit one checkpoint, whole or not at all; return its path, or None in a process that does not write.

        Arrays of `tables` are written as they come, and their errors are passed on. The cursor `feed` has to be taken
        together with the variables. Raise MachineError or OSError if the system refuses to write.
        """
        record = {
            "epoch": totals.epochs,
            "feed": feed,
            "step": totals.steps,
            **model_record(model),
            "run": totals.state(),
            "noted": noted.state(),
        }
        if early_stop is not None:
            record["early_stop"] = early_stop.state()
        if described := record_of_tables(model):
            record["tables"] = described
        # Read by all, though one writes: under a strategy, reading a variable may be an exchange of all processes.
        arrays = plain_arrays(_variables(model))
        return self._folder.write(arrays, record, tables) if self._writes else None

    def restore(
        self,
        model: Any,
        session: FeedSession,
        early_stop: EarlyStop | None,
        compare: Callable[[Mapping[str, str]], None] | None = None,
    ) -> tuple[RunTotals, NotedMeans]:
        """Restore the newest checkpoint, and return its totals and the means noted so far.

        Before, `compare` gets what several processes have to begin with alike; its errors are passed on.

        Without one the feed goes to its beginning, and the model gets its initial values, if there are any. Raise
        DataError if all checkpoints are damaged, or if the newest intact one is of another model, and SettingsError if
        it is of another job, stream or plan. The feed's errors of attaching at the cursor (RefusedError, LostError) and
        errors of initial values are passed on, and OSError if the folder cannot be read.
        """
        checkpoint = self._read_alike(compare)
        self.tables = None
        if checkpoint is None:
            session.cursor.rewind()
            if early_stop is not None:
                early_stop.restore({})
            if self._initial is not None:
                self._initial(model, prints=self._writes)
            return RunTotals(), NotedMeans()
        if self._initial is not None:
            self._log.info("initial values are not loaded: there is a checkpoint", file=self._folder.newest_used)
        arrays, record = checkpoint
        # The cursor first: one of another plan is refused before the model has changed.
        session.cursor.restore(record["feed"])
        totals = self._take_in(model, early_stop, arrays, record)
        session.note_saved(self._folder.newest_used, record.get("step", 0))
        return totals, NotedMeans.of(record.get("noted", {}))

    def _read_alike(self, compare: Callable[[Mapping[str, str]], None] | None) -> tuple[Arrays, dict[str, Any]] | None:
        """Return the newest intact checkpoint, or None without any, once `compare` has seen what a run begins with.

        Errors of `compare` are passed on. Raise DataError if all checkpoints are damaged, and OSError if the folder
        cannot be read; `compare` is called before, and its DataError or LostError counts for nothing then.
        """
        try:
            checkpoint = self._folder.read_last()
        except (DataError, OSError):
            # The other processes wait for this one in `compare`. What is wrong here says more than that it differs.
            if compare is not None:
                with suppress(DataError, LostError):
                    compare(_beginning("unreadable", {}))
            raise
        # Before anything else: at different positions of the feed, processes would wait for each other.
        if compare is not None:
            compare(_beginning("none", {}) if checkpoint is None else _beginning("one", checkpoint[1]))
        return checkpoint

    def read(self, model: Any, early_stop: EarlyStop | None) -> RunTotals | None:
        """Restore the newest checkpoint, but not the feed's place; return its totals, or None if there is none.

        Raise DataError if all checkpoints are damaged, or if the newest intact one is of another model, and OSError if
        the folder cannot be read.
        """
        checkpoint = self._folder.read_last()
        return None if checkpoint is None else self._take_in(model, early_stop, *checkpoint)

    def _take_in(
        self, model: Any, early_stop: EarlyStop | None, arrays: Arrays, record: Mapping[str, Any]
    ) -> RunTotals:
        """Restore variables and early stopping from a checkpoint, note its tables, and return its totals.

        Raise DataError if the checkpoint's values are of another number or have other shapes than the model's
        variables, or if it has other tables.
        """
        tables = SavedTables(arrays, record)
        tables.refuse_another_model(model)
        assign_arrays(_variables(model), {name: array for name, array in arrays.items() if not name.startswith(TABLES)})
        self.tables = tables
        if early_stop is not None:
            early_stop.restore(record.get("early_stop", {}))
        return RunTotals.of_checkpoint(record)


def _beginning(checkpoint: str, record: Mapping[str, Any]) -> dict[str, str]:
    """Return what a run begins with besides variables, as JSON texts by names for people; always the same names.

    `checkpoint`, returned as it is, says whether there is one; `record` is the checkpoint's, or empty (`null` each).
    """
    parts = {"totals": "run", "feed position": "feed", "early stopping": "early_stop"}
    texts = {name: json.dumps(record.get(key), sort_keys=True) for name, key in parts.items()}
    return {"checkpoint": checkpoint} | texts


def model_record(model: Any) -> dict[str, Any]:
    """Return what a checkpoint's record says of the model: how many variables it has, and their names."""
    return {"model_variables": len(model.variables), "names": variable_names(model)}


def _variables(model: Any) -> list[Any]:
    return [*model.variables, *model.optimizer.variables]


# --- variables ---


def plain_value(variable: Any) -> NDArray[np.generic]:
    """Return the value in a dtype that a file of plain arrays can hold.

    Of a dtype that NumPy lacks, such as bfloat16, it becomes a float32, which represents a bfloat16 exactly.
    """
    value: NDArray[np.generic] = tf.convert_to_tensor(variable).numpy()
    return value if value.dtype.isbuiltin == 1 else value.astype(np.float32)


def plain_arrays(variables: Sequence[Any]) -> dict[str, NDArray[np.generic]]:
    """Return the values as `plain_value` does, under their places ("0", "1" …), as the arrays of a checkpoint."""
    return {str(at): plain_value(variable) for at, variable in enumerate(variables)}


def assign_arrays(variables: Sequence[Any], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Assign what `plain_arrays` returned; raise DataError if the number of values, or a shape, differs."""
    assign_values(variables, [arrays[str(at)] for at in range(len(arrays))])


def assign_values(variables: Sequence[Any], arrays: Sequence[NDArray[np.generic]]) -> None:
    """Assign each variable its value, cast to its dtype; raise DataError if their number or a shape differs."""
    if [tuple(v.shape) for v in variables] != [a.shape for a in arrays]:
        raise _another_model(variables, arrays)
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(tf.cast(array, variable.dtype))


def _another_model(variables: Sequence[Any], arrays: Sequence[NDArray[np.generic]]) -> DataError:
    """Return the DataError that says how many values there are, and names the first of another shape, if any."""
    odd = [
        (place, variable, array)
        for place, (variable, array) in enumerate(zip(variables, arrays, strict=False))
        if tuple(variable.shape) != array.shape
    ]
    expected, got = f"the model's {len(variables)} variables", f"{len(arrays)} values"
    if odd:
        place, variable, array = odd[0]
        name = getattr(variable, "path", None) or variable.name
        expected += f", of which number {place} is {name} with shape {tuple(variable.shape)}"
        got += f", of which number {place} has shape {array.shape}" + (
            f", and {len(odd) - 1} more have other shapes" if len(odd) > 1 else ""
        )
    return DataError(
        expected=expected, got=got, where="the checkpoint",
        remedy="Train the same model with the same optimizer, or use another folder.",
    )  # fmt: skip
