"""A parameter server's share: variables, the optimizer that updates them, gradients that wait, and the last copy.

Rules: arrays lie in a frame as they lie in memory, one behind the other: values of the parts, the optimizer's variables
of no part, then those of each part. A batch counts as one step of the optimizer on every server, whichever parts have
gradients, so a schedule of learning rates is at the same step everywhere. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from shared.errors import ProtocolError
from trainer_client.training.servers.served_optimizer import OptimizerVariables
from trainer_client.training.servers.server_state import Apply, ApplyHeld, AssignRate, Cut, Drop, Hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.wire.message_parts import PartGradient, VariablePart
    from trainer_client.training.servers.server_state import Instruction, Key

__all__ = ["Gradients", "ShareStore", "frame_of", "split_frame"]

#: Places of parts, each with its gradient: a tensor, or rows. None instead: the batch has no gradients on any server.
Gradients = Sequence[tuple[int, Any]]


class ShareStore:
    """One share at a time; `make_optimizer` returns a new optimizer for each share that is adopted."""

    def __init__(self, make_optimizer: Callable[[], Any]) -> None:
        self._make_optimizer = make_optimizer
        self._parts: tuple[VariablePart, ...] = ()
        self._variables: list[Any] = []
        self._optimizer: Any = None
        self._common: list[Any] = []
        #: All variables, in the order of a frame.
        self._all: list[Any] = []
        #: Steps of the optimizer as graphs, by the parts that have gradients, and whether those are rows.
        self._updates: dict[tuple[tuple[int, bool], ...], Any] = {}
        #: Gradients that wait for the first server's order.
        self._held: dict[Key, Gradients | None] = {}
        #: The share as it was when last cut for a checkpoint.
        self._copy = b""
        #: How many bytes of a copy are the values that a pull brings.
        self._values_bytes = 0
        #: What came with the chief's evaluation.
        self.offered = b""
        #: The frame that `values` returns, kept until a value changes.
        self._values: bytes | None = None

    def adopt(self, parts: tuple[VariablePart, ...], frame: memoryview) -> None:
        """Hold this share, with the values in the frame, in place of any other.

        Raise ProtocolError, and keep the old share, if the frame does not fit the parts and our optimizer, and
        SettingsError if a new optimizer comes built already; errors of `make_optimizer` are passed on.
        """
        variables = [keras.Variable(np.zeros(part.shape, part.dtype), dtype=part.dtype) for part in parts]
        optimizer = self._make_optimizer()
        state = OptimizerVariables(optimizer, variables)
        everything = [*variables, *state.common, *(variable for each in state.of_each for variable in each)]
        # Nothing that is held changes until the frame is known to fit.
        arrays = split_frame(frame, [(tuple(variable.shape), variable.dtype) for variable in everything])
        for variable, array in zip(everything, arrays, strict=True):
            variable.assign(array)
        self._variables, self._optimizer, self._parts, self._all = variables, optimizer, parts, everything
        self._common = state.common
        self._updates, self._values = {}, None
        self._values_bytes = sum(array.nbytes for array in arrays[: len(variables) + len(state.common)])

    # --- gradients ---

    def carry_out(self, instruction: Instruction, gradients: Gradients | None) -> None:
        """Carry out one instruction on gradients that came along, on held ones, on the learning rate or the copy.

        Instructions of other kinds are ignored.
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

    def apply(self, gradients: Gradients | None) -> None:
        """Take one step of the optimizer; do nothing for None, a batch without gradients on any server.

        Without gradients for parts of this server, the step is counted only.
        """
        if gradients is None:
            return
        self._values = None
        if not gradients:  # they are all of other servers' parts, and Keras counts no step without gradients
            self._optimizer._iterations.assign_add(1)  # noqa: SLF001 - `iterations` is a quotient while gradients accumulate
            return
        # A graph for each set of parts with gradients, as the optimizer needs to know its variables when traced.
        kind = tuple((place, isinstance(gradient, tf.IndexedSlices)) for place, gradient in gradients)
        if kind not in self._updates:
            self._updates[kind] = self._update([self._variables[place] for place, _ in gradients])
        self._updates[kind]([gradient for _, gradient in gradients])

    def _update(self, variables: list[Any]) -> Any:
        apply = self._optimizer.apply
        return tf.function(lambda gradients: apply(gradients, variables), reduce_retracing=True, autograph=False)

    def read(self, parts: tuple[PartGradient, ...], frame: memoryview) -> Gradients:
        """Return the gradients in a frame, with the places of their parts.

        Raise ProtocolError if they are not of this share: an unknown part, a row that it lacks, or a frame of another
        size.
        """
        kinds: list[tuple[tuple[int, ...], str]] = []
        for part in parts:
            shape, dtype = self._form(part.place)
            if part.rows is not None:
                kinds.append(((part.rows,), "int64"))
                shape = (part.rows, *shape[1:])
            kinds.append((shape, dtype))
        arrays = iter(split_frame(frame, kinds))
        return [(part.place, self._gradient(part, arrays)) for part in parts]

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


def _not_of_this_share(got: str) -> ProtocolError:
    return ProtocolError(
        expected="values or gradients of this server's share", got=got, where="parameter server",
        remedy="Start all processes with the same --model and --param, from the same release.",
    )  # fmt: skip
