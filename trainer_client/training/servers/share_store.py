"""A parameter server's share: variables, rows of tables, what updates them, gradients that wait, and the last copy.

Rules: arrays lie in a frame as they lie in memory, one behind the other: values of the parts, the optimizer's variables
of no part, then those of each part. A batch counts as one step of the optimizer on every server, whichever parts have
gradients, so a schedule of learning rates is at the same step everywhere. Rows of tables come before the share that
they belong to. It decides nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from shared.errors import ProtocolError
from shared.wire.topics import server_messages as m
from trainer_client.training.servers.row_table import RowTable
from trainer_client.training.servers.served_optimizer import OptimizerVariables
from trainer_client.training.servers.server_instructions import Apply, ApplyHeld, AssignRate, Cut, Drop, Hold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shared.wire.message_parts import PartGradient, VariablePart
    from trainer_client.training.servers.server_instructions import Instruction, Key

__all__ = ["Gradients", "ShareStore", "frame_of", "split_frame"]

#: How much of an array one `TableRows` brings, in bytes: the chief holds a few of these, and no table.
_PIECE_BYTES = 2**22


class Gradients(NamedTuple):
    """The gradients of one batch for a share, which may be none."""

    #: Places of parts, each with its gradient: a tensor, or rows.
    parts: Sequence[tuple[int, Any]]
    #: Places of tables, each with ids and the gradients of their rows.
    rows: Sequence[tuple[int, NDArray[np.int64], NDArray[np.float32]]] = ()


class ShareStore:
    """One share at a time; `make_optimizer` returns a new optimizer for each share, and each table, that is adopted.

    `memory` is how many bytes variables, rows and their state may take; None: no limit.
    """

    def __init__(self, make_optimizer: Callable[[], Any], memory: int | None = None) -> None:
        self._make_optimizer = make_optimizer
        self._memory = memory
        self._tables: list[RowTable] = []
        #: Tables with the rows that were given for a share to come, by place, and that share's generation.
        self._given: dict[int, RowTable] = {}
        self._given_for = 0
        self._parts: tuple[VariablePart, ...] = ()
        self._variables: list[Any] = []
        self._optimizer: Any = None
        self._common: list[Any] = []
        #: All variables, in the order of a frame.
        self._all: list[Any] = []
        #: Steps of the optimizer as graphs, by the parts that have gradients, and whether those are rows.
        self._updates: dict[tuple[tuple[int, bool], ...], Any] = {}
        #: Gradients that wait for the first server's order. None: the batch has no gradients on any server.
        self._held: dict[Key, Gradients | None] = {}
        #: The share as it was when last cut for a checkpoint.
        self._copy = b""
        #: How many bytes of a copy are the values that a pull brings.
        self._values_bytes = 0
        #: What came with the chief's evaluation.
        self.offered = b""
        #: The frame that `values` returns, kept until a value changes.
        self._values: bytes | None = None

    def has_rows_of(self, message: m.ServeShare) -> bool:
        """Return whether the rows that the chief gave before this share are here: a server may have been restarted."""
        tables = self._given if self._given_for == message.generation else {}
        there = [len(tables[place]) if place in tables else 0 for place in range(len(message.tables))]
        return there == list(message.given)

    def give(self, message: m.GiveRows, frame: memoryview) -> None:
        """Keep rows for a share to come; rows of another one, and tables that were served, are dropped.

        Raise ProtocolError if the frame does not fit the table and our optimizer, ids do not rise, or rows exceed our
        memory, and SettingsError if a new optimizer comes built already; errors of `make_optimizer` are passed on.
        """
        if self._given_for != message.generation:
            self._given, self._given_for, self._tables = {}, message.generation, []
        if message.table not in self._given:
            self._given[message.table] = RowTable(message.form, self._make_optimizer())
        table = self._given[message.table]
        shapes = [((message.rows, message.form.dim), "float32")] * table.arrays
        ids, *arrays = split_frame(frame, [((message.rows,), "int64"), *shapes])
        _refuse_unsorted(message.table, ids)
        there = sum(len(other) * other.row_bytes for other in self._given.values())
        self._refuse_too_much(there + table.count_new(ids) * table.row_bytes, "with those of the checkpoint")
        table.give(ids, arrays)

    def adopt(self, message: m.ServeShare, frame: memoryview) -> None:
        """Hold this share, with the values in the frame and the rows that were given, in place of any other.

        Raise ProtocolError, and keep the old share, if the frame does not fit the parts and our optimizer, and
        SettingsError if a new optimizer comes built already; errors of `make_optimizer` are passed on.
        """
        parts = message.parts
        # Before memory is taken for them: a shape that is no variable's may be of any size.
        needed = sum(math.prod(part.shape) * np.dtype(part.dtype).itemsize for part in parts)
        if needed > frame.nbytes:
            raise _not_of_this_share(f"{frame.nbytes} bytes for {needed}")
        variables = [keras.Variable(np.zeros(part.shape, part.dtype), dtype=part.dtype) for part in parts]
        optimizer = self._make_optimizer()
        state = OptimizerVariables(optimizer, variables)
        everything = [*variables, *state.common, *(variable for each in state.of_each for variable in each)]
        # Nothing that is held changes until the frame is known to fit.
        arrays = split_frame(frame, [(tuple(variable.shape), variable.dtype) for variable in everything])
        for variable, array in zip(everything, arrays, strict=True):
            variable.assign(array)
        given = self._given if self._given_for == message.generation else {}
        self._tables = [
            given[place] if place in given else RowTable(form, self._make_optimizer())
            for place, form in enumerate(message.tables)
        ]
        self._given, self._given_for = {}, 0
        self._variables, self._optimizer, self._parts, self._all = variables, optimizer, parts, everything
        self._common = state.common
        self._updates, self._values = {}, None
        self._values_bytes = sum(array.nbytes for array in arrays[: len(variables) + len(state.common)])

    # --- gradients ---

    def carry_out(self, instruction: Instruction, gradients: Gradients | None) -> None:
        """Carry out one instruction on gradients that came along, on held ones, on the learning rate or the copy.

        Instructions of other kinds are ignored. Errors of the optimizer pass through.
        """
        match instruction:
            case Hold(key):
                self._held[key] = gradients
            case Drop(key):
                self._held.pop(key, None)
            case Apply():
                self.apply(gradients)
            case ApplyHeld(key):
                self.apply(self._held[key])
            case AssignRate(rate):
                self._optimizer.learning_rate = rate
                self._values = None  # the rate is one of the variables of no part, which values bring
            case Cut():
                self._copy = frame_of([variable.numpy() for variable in self._all])
                for table in self._tables:
                    table.cut()

    def apply(self, gradients: Gradients | None) -> None:
        """Take one step of the optimizer; do nothing for None, a batch without gradients on any server.

        Rows of tables take the same step. Without gradients for parts of this server, the parts' optimizer only counts
        it. Errors of the optimizers pass through.
        """
        if gradients is None:
            return
        self._values = None
        steps = int(self._optimizer._iterations.numpy())  # noqa: SLF001 - `iterations` is a quotient while gradients accumulate
        rate = self._optimizer._learning_rate  # noqa: SLF001 - `learning_rate` is its value
        for place, ids, values in gradients.rows:
            own_rate = float(rate.numpy()) if isinstance(rate, keras.Variable) else None
            self._tables[place].apply(ids, values, steps, own_rate)
        if not gradients.parts:  # they are all of other servers' parts, and Keras counts no step without gradients
            self._optimizer._iterations.assign_add(1)  # noqa: SLF001 - as above
            return
        # A graph for each set of parts with gradients, as the optimizer needs to know its variables when traced.
        kind = tuple((place, isinstance(gradient, tf.IndexedSlices)) for place, gradient in gradients.parts)
        if kind not in self._updates:
            self._updates[kind] = self._update([self._variables[place] for place, _ in gradients.parts])
        self._updates[kind]([gradient for _, gradient in gradients.parts])

    def _update(self, variables: list[Any]) -> Any:
        apply = self._optimizer.apply
        return tf.function(lambda gradients: apply(gradients, variables), reduce_retracing=True, autograph=False)

    def read(self, message: m.Push, frame: memoryview) -> Gradients:
        """Return the gradients in a frame, with the places of their parts and tables.

        Raise ProtocolError if they are not of this share: an unknown part or table, or the same twice, a row that it
        lacks, ids that do not rise, or a frame of another size. Raise it also if rows to be made are more than this
        server may hold.
        """
        _refuse_twice("part", [part.place for part in message.parts])
        _refuse_twice("table", [gradient.table for gradient in message.tables])
        kinds: list[tuple[tuple[int, ...], str]] = []
        for part in message.parts:
            shape, dtype = self._form(part.place)
            if part.rows is not None:
                if not shape:
                    raise _not_of_this_share(f"rows of part {part.place}, which has none")
                kinds.append(((part.rows,), "int64"))
                shape = (part.rows, *shape[1:])
            kinds.append((shape, dtype))
        for gradient in message.tables:
            dim = self._table(gradient.table).form.dim
            kinds += [((gradient.rows,), "int64"), ((gradient.rows, dim), "float32")]
        arrays = iter(split_frame(frame, kinds))
        parts = [(part.place, self._gradient(part, arrays)) for part in message.parts]
        # Copied, as the frame goes with the message, and these may wait for an order.
        rows = [(gradient.table, next(arrays).copy(), next(arrays).copy()) for gradient in message.tables]
        self._refuse_unfit(rows)
        return Gradients(parts, rows)

    def _table(self, place: int) -> RowTable:
        if place >= len(self._tables):
            raise _not_of_this_share(f"table {place} of {len(self._tables)}")
        return self._tables[place]

    def _refuse_unfit(self, rows: Sequence[tuple[int, NDArray[np.int64], Any]]) -> None:
        """Raise ProtocolError for ids that do not rise, or if there is no memory for the rows that they would make."""
        for place, ids, _ in rows:
            _refuse_unsorted(place, ids)
        tables = [(self._tables[place], ids) for place, ids, _ in rows]
        new = sum(table.count_new(ids) * table.row_bytes for table, ids in tables)
        self._refuse_too_much(self.nbytes + new, "with those of this batch")

    def _refuse_too_much(self, needed: int, words: str) -> None:
        if self._memory is not None and needed > self._memory:
            raise ProtocolError(
                expected=f"rows that fit into --server-memory, {self._memory / 2**20:.1f} MiB",
                got=f"{needed / 2**20:.1f} MiB {words}", where="parameter server",
                remedy="Add parameter servers, or give them more, and start again: it goes on from its checkpoint.",
            )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Size in bytes of all that is held: variables, rows, and the optimizer's variables for them."""
        whole: int = sum(math.prod(variable.shape) * np.dtype(variable.dtype).itemsize for variable in self._all)
        return whole + sum(len(table) * table.row_bytes for table in self._tables)

    def _form(self, place: int) -> tuple[tuple[int, ...], str]:
        if place >= len(self._parts):
            raise _not_of_this_share(f"part {place} of {len(self._parts)}")
        return self._parts[place].shape, self._parts[place].dtype

    def _gradient(self, part: PartGradient, arrays: Any) -> Any:
        if part.rows is None:
            return tf.constant(next(arrays))
        shape, (numbers, values) = self._parts[part.place].shape, (next(arrays), next(arrays))
        # The numbers come from another process: none may reach the optimizer that is not a row of the part.
        if part.rows and not 0 <= int(numbers.min()) <= int(numbers.max()) < shape[0]:
            raise _not_of_this_share(f"row {int(numbers.max())} of {shape[0]}")
        return tf.IndexedSlices(tf.constant(values), tf.constant(numbers), tf.constant(shape, tf.int64))

    # --- what is sent ---

    def values(self) -> bytes:
        """Return a frame of the parts' values, and of the optimizer's variables of no part."""
        if self._values is None:
            self._values = frame_of([variable.numpy() for variable in (*self._variables, *self._common)])
        return self._values

    def refuse_unknown(self, message: m.PullRows | m.SaveRows) -> None:
        """Raise ProtocolError if a message asks for a table or array that is not there, or its ids are no numbers."""
        table = self._table(message.table)
        if isinstance(message, m.PullRows) and len(message.ids) % 8:
            raise _not_of_this_share(f"{len(message.ids)} bytes of ids")
        if isinstance(message, m.SaveRows) and message.array > table.arrays:
            raise _not_of_this_share(f"array {message.array} of {1 + table.arrays}")

    def rows(self, message: m.PullRows) -> bytes:
        """Return a frame of the rows that a message asks for, as they are or as they were at the last cut."""
        table, ids = self._tables[message.table], np.frombuffer(message.ids, np.int64)
        return frame_of([table.rows_of_cut(ids) if message.cut else table.rows(ids)])

    def piece(self, message: m.SaveRows) -> tuple[int, int, bytes]:
        """Return how many rows and arrays, ids included, a table's last cut has, and a frame of the piece asked for."""
        rows, arrays, piece = self._tables[message.table].piece_of_cut(message.array, message.start, _PIECE_BYTES)
        return rows, arrays, frame_of([piece])

    def copied(self) -> bytes:
        """Return the frame of the last copy of the whole share; empty if none was made."""
        return self._copy

    def copied_values(self) -> bytes:
        """Return a frame as `values` does, of the last copy; empty if none was made."""
        return self._copy[: self._values_bytes]


def frame_of(arrays: Sequence[Any]) -> bytes:
    """Return the bytes of arrays, one behind the other, in C order; empty arrays add none."""
    return b"".join(np.ascontiguousarray(array).data.cast("B") if array.size else b"" for array in arrays)


def split_frame(frame: memoryview, kinds: Sequence[tuple[tuple[int, ...], str]]) -> list[Any]:
    """Return arrays of these shapes and dtypes that view the frame; raise ProtocolError if it has another size."""
    sizes = [int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for shape, dtype in kinds]
    if sum(sizes) != frame.nbytes:
        raise _not_of_this_share(f"{frame.nbytes} bytes for {sum(sizes)}")
    at, arrays = 0, []
    for (shape, dtype), size in zip(kinds, sizes, strict=True):
        arrays.append(np.frombuffer(frame[at : at + size], dtype).reshape(shape))
        at += size
    return arrays


def _refuse_twice(kind: str, places: Sequence[int]) -> None:
    # An optimizer takes each variable once a step.
    if len(set(places)) < len(places):
        raise _not_of_this_share(f"several gradients of a {kind}")


def _refuse_unsorted(place: int, ids: NDArray[np.int64]) -> None:
    # Rising ids are each there once, which everything here relies on.
    if (ids[1:] <= ids[:-1]).any():
        raise _not_of_this_share(f"ids of table {place} that do not rise")


def _not_of_this_share(got: str) -> ProtocolError:
    return ProtocolError(
        expected="values or gradients of this server's share", got=got, where="parameter server",
        remedy="Start all processes with the same --model and --param, from the same release.",
    )  # fmt: skip
