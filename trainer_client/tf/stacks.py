"""Stacks of small batches: several enter TensorFlow in one array for each key, and are taken apart inside of it.

Handing over an array has a fixed cost. TensorFlow (2.21) ends the process with SIGSEGV where `unbatch` meets a tensor
without elements; `rebatch` does not, and costs as much. It needs the number of rows beforehand, so each kind of batch
has its own way:

- Batches that are made whole have one row each, and may hold empty values. They are joined along the row axis, and
  `rebatch(1)` gives each its row.
- Planned batches have as many rows as their bucket says. They get one more axis in front, and `unbatch` takes it away.
  A padded axis has at least one step, so only a field without room for anything is empty. Batches that have such a
  field enter one by one.

This module must not know sockets, slots or what is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import numpy as np
    import tensorflow as tf
    from numpy.typing import NDArray

    from trainer_client.core.stream_spec import StreamSpec
    from trainer_client.session.batch_iterator import BatchIterator

__all__ = ["Stacks"]


@dataclass(frozen=True, slots=True)
class Stacks:
    """Way in which the batches of a session enter TensorFlow."""

    #: Most batches in a stack.
    most: int
    #: Whether batches have one row each, and are joined along the row axis.
    joined: bool

    @classmethod
    def of(cls, spec: StreamSpec) -> Self:
        """Return the way that suits what a stream's batches may hold."""
        # SIGSEGV in `unbatch`, which no handler of ours could turn into an error: so never an empty tensor there.
        has_room = all(0 not in field.shape for field in spec.fields)
        joined = spec.producers > 0
        return cls(spec.at_a_time if joined or has_room else 1, joined)

    def shape_of(self, batch: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape in which a tensor of this batch shape enters."""
        if self.most == 1:
            return batch
        return (None, *batch[1:]) if self.joined else (None, *batch)

    def take(self, batches: BatchIterator, keys: Collection[str]) -> Mapping[str, NDArray[np.generic]]:
        """Take the next batches that are ready and of one shape, stacked; raise StopIteration at the end."""
        if self.most == 1:
            return next(batches)
        stacked = batches.take_stacked(keys, self.most)
        return {key: _joined(array) for key, array in stacked.items()} if self.joined else stacked

    def taken_apart(self, entered: tf.data.Dataset) -> tf.data.Dataset:
        """Return the data set of single batches."""
        if self.most == 1:
            return entered
        # `rebatch` survives tensors without elements, where `unbatch` would end the process.
        return entered.rebatch(1, drop_remainder=True) if self.joined else entered.unbatch()


def _joined(stack: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of a stack of batches that have one row each."""
    rows = stack.reshape(len(stack), *stack.shape[2:])
    # `rebatch` hands on a single row as it is: a consumer that keeps it would keep a slot.
    return rows.copy() if len(rows) == 1 else rows
