"""One server's rows of an embedding table: made when a gradient first meets them, each with the optimizer's variables.

Rules: a row that no gradient has met takes no memory; it is made anew each time that it is asked for. Rows are updated
by an optimizer of Keras's own, some at a time in a window: a variable of the model, as far as the optimizer knows, into
which rows and their state are put, and taken out again. So only optimizers fit whose update of a number depends on that
number's own gradient and state (`served_tables` refuses others). Rows that a batch does not name are not touched, nor
is their state: Adam is the lazy one. It decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from trainer_client.layers.initial_rows import initial_rows
from trainer_client.training.servers.row_index import NOWHERE, RowIndex
from trainer_client.training.servers.served_optimizer import OptimizerVariables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shared.wire.message_parts import TableForm

__all__ = ["RowTable"]

#: How many rows are updated at once. A batch of fewer pays for so many, one of more takes several turns.
_WINDOW = 1024
#: By how much arrays grow when they are full.
_GROWTH = 1.25


class RowTable:
    """The rows of one table that one server holds, with a new optimizer that is built here.

    Raise SettingsError if the optimizer is built already.
    """

    def __init__(self, form: TableForm, optimizer: Any) -> None:
        self.form = form
        self._optimizer = optimizer
        self._window = keras.Variable(np.zeros((_WINDOW, form.dim), np.float32), name=form.name)
        #: The optimizer's variables for the window.
        self._slots: list[Any] = OptimizerVariables(optimizer, [self._window]).of_each[0]
        #: What an optimizer's variable is for a row that is new.
        self._begin = [slot.numpy()[0].copy() for slot in self._slots]
        self._index = RowIndex()
        self._ids = np.zeros(0, np.int64)
        #: Rows, and then each of the optimizer's variables for them, by place.
        self._arrays = [np.zeros((0, form.dim), np.float32) for _ in range(1 + len(self._slots))]
        self._update = tf.function(self._step, autograph=False)
        #: Ids, rising, rows and the optimizer's variables as they were when last cut.
        self._cut: list[NDArray[Any]] = [np.zeros(0, np.int64), *(array.copy() for array in self._arrays)]

    def __len__(self) -> int:
        return len(self._index)

    @property
    def arrays(self) -> int:
        """Number of arrays of a row: its numbers, and each of the optimizer's variables for them."""
        return len(self._arrays)

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes, with its id and the optimizer's variables for it."""
        return 8 + 4 * self.form.dim * len(self._arrays)

    def count_new(self, ids: NDArray[np.int64]) -> int:
        """Return how many of these ids have no row yet; one that is named twice counts twice."""
        return int(np.count_nonzero(self._index.find(ids) == NOWHERE))

    # --- rows ---

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the row of each id; one that no gradient has met is made, and not kept."""
        places = self._index.find(ids)
        is_new = places == NOWHERE
        rows = np.empty((len(ids), self.form.dim), np.float32)
        rows[~is_new] = self._arrays[0][places[~is_new]]
        rows[is_new] = initial_rows(self.form, ids[is_new])
        return rows

    def give(self, ids: NDArray[np.int64], arrays: list[NDArray[np.float32]]) -> None:
        """Put rows and their state into the table, in place of any that are there; each id is named once."""
        places = self._places(ids)
        for own, array in zip(self._arrays, arrays, strict=True):
            own[places] = array

    def _places(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each id's place; a row that is not there is made, with its state."""
        new = ids[self._index.find(ids) == NOWHERE]
        if len(new):
            start, stop = len(self._index), len(self._index) + len(new)
            if stop > len(self._ids):
                self._grow(max(stop, int(_GROWTH * start)))
            self._ids[start:stop] = new
            for array, values in zip(self._arrays, (initial_rows(self.form, new), *self._begin), strict=True):
                array[start:stop] = values
            self._index.add(new)
        return self._index.find(ids)

    def _grow(self, capacity: int) -> None:
        # In place, which for large arrays moves pages and copies nothing: nobody else refers to them.
        self._ids.resize(capacity, refcheck=False)
        for array in self._arrays:
            array.resize((capacity, self.form.dim), refcheck=False)

    # --- gradients ---

    def apply(self, ids: NDArray[np.int64], gradients: NDArray[np.float32], steps: int, rate: float | None) -> None:
        """Take one step of the optimizer, whose errors pass, for these rows, made if new; each id is named once.

        `steps` is how many steps the optimizer has taken before, and `rate` its learning rate, None if that is its own.
        """
        places = self._places(ids)
        for start in range(0, len(ids), _WINDOW):
            here = places[start : start + _WINDOW]
            given = [_padded(array[here]) for array in self._arrays]
            updated = self._update(
                given, _padded(gradients[start : start + _WINDOW]), tf.constant(steps, tf.int64),
                tf.constant(0.0 if rate is None else rate), tf.constant(rate is not None),
            )  # fmt: skip
            for array, values in zip(self._arrays, updated, strict=True):
                array[here] = values.numpy()[: len(here)]

    def _step(self, given: list[Any], gradient: Any, steps: Any, rate: Any, is_rate: Any) -> list[Any]:
        optimizer, variables = self._optimizer, [self._window, *self._slots]
        for variable, values in zip(variables, given, strict=True):
            variable.assign(values)
        # Every window of a batch is part of the same step.
        optimizer._iterations.assign(tf.cast(steps, optimizer._iterations.dtype))  # noqa: SLF001 - `iterations` is a quotient while gradients accumulate
        source = optimizer._learning_rate  # noqa: SLF001 - `learning_rate` is its value
        if isinstance(source, keras.Variable):
            source.assign(tf.where(is_rate, rate, source.value))
        optimizer.apply([gradient], [self._window])
        return [tf.identity(variable.value) for variable in variables]

    # --- checkpoints ---

    def cut(self) -> None:
        """Copy all rows, in place of the last copy, by rising id."""
        count = len(self._index)
        order = np.argsort(self._ids[:count], kind="stable")
        self._cut = [self._ids[order], *(array[order] for array in self._arrays)]

    def rows_of_cut(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the row that each id had in the last cut; one that had none is made."""
        places = np.minimum(np.searchsorted(self._cut[0], ids), max(0, len(self._cut[0]) - 1))
        is_there = self._cut[0][places] == ids if len(self._cut[0]) else np.zeros(len(ids), np.bool_)
        rows = initial_rows(self.form, ids)
        rows[is_there] = self._cut[1][places[is_there]]
        return rows

    def piece_of_cut(self, array: int, start: int, nbytes: int) -> tuple[int, int, NDArray[Any]]:
        """Return the last cut's numbers of rows and arrays (0 is the ids), and one's rows from `start`, maybe none.

        They have at most `nbytes`, unless a single row has more.
        """
        whole = self._cut[array]
        rows = max(1, nbytes // (whole.itemsize * (self.form.dim if whole.ndim == 2 else 1)))
        return len(whole), len(self._cut), whole[start : start + rows]


def _padded(array: NDArray[np.float32]) -> Any:
    if len(array) == _WINDOW:
        return tf.constant(array)
    whole = np.zeros((_WINDOW, *array.shape[1:]), np.float32)
    whole[: len(array)] = array
    return tf.constant(whole)
