"""A parameter server's share: variables, the optimizer that updates them, gradients that wait, and the last copy.

Rules: arrays lie in a frame as they lie in memory, one behind the other: values of the parts, the optimizer's variables
of no part, then those of each part. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from shared.errors import ProtocolError
from trainer_client.servers.optimizer_variables import OptimizerVariables
from trainer_client.servers.server_state import Apply, ApplyHeld, Cut, Drop, Hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.wire.parts import PartGradient, VariablePart
    from trainer_client.servers.server_state import Instruction, Key

__all__ = ["Gradients", "ShareStore", "frame_of", "split_frame"]

#: Places of parts, each with its gradient: a tensor, or rows.
Gradients = Sequence[tuple[int, Any]]


class ShareStore:
    """`make_optimizer` gives a new one for each share that is adopted."""

    def __init__(self, make_optimizer: Callable[[], Any]) -> None:
        self._make_optimizer = make_optimizer
        self._parts: tuple[VariablePart, ...] = ()
        self._variables: list[Any] = []
        self._optimizer: Any = None
        self._all: list[Any] = []
        self._updates: dict[tuple[tuple[int, bool], ...], Any] = {}
        self._held: dict[Key, Gradients] = {}
        self._copy = b""
        #: The values as they are sent, until they change.
        self._values: bytes | None = None

    def adopt(self, parts: tuple[VariablePart, ...], frame: memoryview) -> None:
        """Become this share, in place of any other; ProtocolError, and nothing else, if it is another optimizer's."""
        variables = [keras.Variable(np.zeros(part.shape, part.dtype), dtype=part.dtype) for part in parts]
        optimizer = self._make_optimizer()
        state = OptimizerVariables(optimizer, variables)
        everything = [*variables, *state.common, *(one for each in state.of_each for one in each)]
        arrays = split_frame(frame, [(tuple(one.shape), one.dtype) for one in everything])
        for variable, array in zip(everything, arrays, strict=True):
            variable.assign(array)
        self._variables, self._optimizer, self._parts, self._all = variables, optimizer, parts, everything
        self._updates, self._values = {}, None

    # --- gradients ---

    def carry_out(self, instruction: Instruction, gradients: Gradients) -> None:
        """Do what was decided of gradients: those that came along, or those that are held."""
        match instruction:
            case Hold(key):
                self._held[key] = gradients
            case Drop(key):
                self._held.pop(key, None)
            case Apply():
                self.apply(gradients)
            case ApplyHeld(key):
                self.apply(self._held[key])
            case Cut():
                self._copy = frame_of([one.numpy() for one in self._all])

    def apply(self, gradients: Gradients) -> None:
        """One step of the optimizer; without gradients there is none."""
        if not gradients:
            return
        kind = tuple((place, isinstance(one, tf.IndexedSlices)) for place, one in gradients)
        if kind not in self._updates:
            self._updates[kind] = self._update([self._variables[place] for place, _ in gradients])
        self._updates[kind]([one for _, one in gradients])
        self._values = None

    def _update(self, variables: list[Any]) -> Any:  # noqa: ANN401 - a function of TensorFlow's
        optimizer = self._optimizer
        return tf.function(
            lambda gradients: optimizer.apply(gradients, variables), reduce_retracing=True, autograph=False
        )

    def read(self, parts: tuple[PartGradient, ...], frame: memoryview) -> Gradients:
        """The gradients in a frame; ProtocolError if they are not of this share."""
        kinds: list[tuple[tuple[int, ...], str]] = []
        for one in parts:
            shape, dtype = self._form(one.place)
            if one.rows is not None:
                kinds.append(((one.rows,), "int64"))
                shape = (one.rows, *shape[1:])
            kinds.append((shape, dtype))
        arrays = iter(split_frame(frame, kinds))
        return [(one.place, self._gradient(one, arrays)) for one in parts]

    def _form(self, place: int) -> tuple[tuple[int, ...], str]:
        if place >= len(self._parts):
            raise _not_of_this_share(f"part {place} of {len(self._parts)}")
        return self._parts[place].shape, self._parts[place].dtype

    def _gradient(self, one: PartGradient, arrays: Any) -> Any:  # noqa: ANN401 - an iterator of arrays
        if one.rows is None:
            return tf.constant(next(arrays))
        shape, (numbers, values) = self._parts[one.place].shape, (next(arrays), next(arrays))
        if one.rows and not 0 <= int(numbers.min()) <= int(numbers.max()) < shape[0]:
            raise _not_of_this_share(f"row {int(numbers.max())} of {shape[0]}")
        return tf.IndexedSlices(tf.constant(values), tf.constant(numbers), tf.constant(shape, tf.int64))

    # --- what is sent ---

    def values(self) -> bytes:
        """The values of the parts."""
        if self._values is None:
            self._values = frame_of([one.numpy() for one in self._variables])
        return self._values

    def copied(self) -> bytes:
        """The last copy."""
        return self._copy


def frame_of(arrays: Sequence[Any]) -> bytes:
    """Arrays one behind the other."""
    return b"".join(np.ascontiguousarray(one).data.cast("B") if one.size else b"" for one in arrays)


def split_frame(frame: memoryview, kinds: Sequence[tuple[tuple[int, ...], str]]) -> list[Any]:
    """The arrays of these shapes and dtypes in a frame, without a copy; ProtocolError if they are others."""
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
