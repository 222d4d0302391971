"""The passes that TensorFlow makes over a feed: a dataset that gets its elements one by one from a Python object.

Rules: an element's arrays are handed on as they are, so that they enter TensorFlow without a copy; small batches enter
several at a time. A pass keeps raising what stopped it, and ends before Python shuts down. Iterators that outlive
Python are destroyed without calling it. This module must not know what is counted, nor what becomes of the elements.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import tensorflow as tf

# Not public; the same in 2.18 and 2.21.
from tensorflow.python.data.ops.from_generator_op import _GeneratorDataset
from tensorflow.python.data.ops.map_op import _MapDataset

from shared.malloc_tuning import keep_freed_memory
from trainer_client.tf import ctrl_c, exit_guard
from trainer_client.tf.python_op import call_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trainer_client.session.batch_iterator import BatchIterator
    from trainer_client.session.feed_session import FeedSession
    from trainer_client.tf.element_structure import ElementStructure

__all__ = ["Openings", "Witness", "generate"]


#: The bounds that glibc would reach by itself. A GeneratorDataset (2.21) lowers the trim threshold to 128 kB, once in a
#: process, which also stops glibc from adapting: each frame above 128 kB is then mapped and unmapped again.
#: Measured with 10 MB batches: 77 a second at 8.6 ms of CPU each, against 135 at 4.1 ms with these bounds.
_MMAP_BYTES = 32 * 2**20
_TRIM_BYTES = 2 * _MMAP_BYTES

#: More elements than anyone will read; each pass ends by itself.
_ENDLESS = 2**62


class Witness(Protocol):
    """Is told what happens to passes."""

    def on_opening(self) -> None:
        """A pass is about to begin, unless this raises an error."""

    def on_opened(self, batches: BatchIterator, /) -> None:
        """A pass began."""

    def on_read_to_end(self, batches: BatchIterator, /) -> None:
        """It was read to its end."""

    def on_stopped(self, error: BaseException, /) -> None:
        """It stopped, and will raise this from now on."""


@dataclass(frozen=True, slots=True)
class Openings:
    """The source of a pipeline: each call opens one pass from the cursor to the end of its epoch."""

    session: FeedSession
    structure: ElementStructure
    witness: Witness

    @property
    def stacks(self) -> bool:
        """Whether several batches cross at a time."""
        return self.session.at_a_time > 1

    def __call__(self) -> FeedPass:
        """Begin a pass."""
        self.witness.on_opening()
        keep_freed_memory(trim_bytes=_TRIM_BYTES, mmap_bytes=_MMAP_BYTES)
        batches = self.session.open(keep_interrupt=ctrl_c.is_pending())
        self.witness.on_opened(batches)
        return FeedPass(batches, self)


class FeedPass:
    """One pass. Unlike a generator it keeps raising what stopped it: TensorFlow asks again, and must not see an end."""

    def __init__(self, batches: BatchIterator, openings: Openings) -> None:
        self._batches = batches
        self._openings = openings
        self._error: BaseException | None = None
        known = {field.key: field.key for field in openings.session.fields}
        self._listed = tf.nest.flatten(openings.structure.of(known))
        self._keys = frozenset(self._listed)
        exit_guard.watch(self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> list[Any]:
        exit_guard.enter(self)
        try:
            return self._next()
        finally:
            exit_guard.leave(self)

    def _next(self) -> list[Any]:
        if self._error is not None:
            raise self._error
        try:
            arrays = self._take_arrays()
            return [arrays[key] for key in self._listed]
        except StopIteration:
            self._openings.witness.on_read_to_end(self._batches)
            raise
        except BaseException as error:
            self._error = self._error or error
            self._openings.witness.on_stopped(self._error)
            raise self._error from None

    def _take_arrays(self) -> Mapping[str, Any]:
        if not self._openings.stacks:
            return next(self._batches)
        return self._batches.take_stacked(self._keys, self._openings.session.at_a_time)

    def end(self) -> None:
        """The process is exiting: nobody will look at what comes now, not even at an error."""
        self._error = StopIteration()
        self._batches.close()

    def __del__(self) -> None:
        self._batches.close()
        exit_guard.leave(self)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator] # there is no Python loop to make a graph of
def generate(openings: Openings, signature: Any) -> tf.data.Dataset:  # noqa: ANN401 - a structure of specs
    """A dataset whose elements are fetched by the thread that asks for them, without waking another one."""
    _tell_when_python_ends()
    specs = tf.nest.flatten(signature)
    numbers, passes = itertools.count(), dict[int, FeedPass]()

    def begin(_: Any) -> Any:  # noqa: ANN401 - a scalar
        return np.int64(next(numbers))

    def advance(number: np.int64) -> list[Any]:
        one = passes.get(int(number))
        if one is None:
            one = passes[int(number)] = openings()
        return next(one)

    def end(number: np.int64) -> Any:  # noqa: ANN401 - as above
        passes.pop(int(number), None)
        return np.int64(0)

    def element(number: tf.Tensor) -> Any:  # noqa: ANN401 - mirrors the signature
        tensors = call_python(advance, [number], [spec.dtype for spec in specs])
        for tensor, spec in zip(tensors, specs, strict=True):
            tensor.set_shape(spec.shape)
        return tf.nest.pack_sequence_as(signature, tensors)

    def elements_of(number: tf.Tensor) -> tf.data.Dataset:
        return _MapDataset(
            tf.data.Dataset.range(_ENDLESS),
            lambda _: element(number),
            use_inter_op_parallelism=False,
            preserve_cardinality=False,
        )

    iterators = _GeneratorDataset(
        tf.constant(0, tf.int64),
        lambda nothing: tf.numpy_function(begin, [nothing], tf.int64),
        lambda number: number,
        lambda number: _unless_python_has_ended(number, end),
        tf.TensorSpec((), tf.int64),
    )
    return iterators.take(1).flat_map(elements_of)


# --- iterators that live longer than Python ---


@functools.cache
def _tell_when_python_ends() -> None:
    """An iterator that is held to the end (by a global or an error's traceback) is destroyed after Python has ended.

    Its finalising function could then only fail, with a warning. So it checks a TensorFlow variable first, which it
    finds by name because nothing can be captured.
    """
    owner = os.getpid()

    def tell() -> None:
        if os.getpid() == owner:  # in a fork, TensorFlow's locks may be held by threads that do not exist there
            with tf.device("/cpu:0"):
                tf.raw_ops.AssignVariableOp(resource=_python_has_ended(), value=True)

    atexit.register(tell)


def _python_has_ended() -> tf.Tensor:
    """A variable that is set when Python ends."""
    return tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=(), shared_name="stoker: Python has ended")


def _unless_python_has_ended(number: tf.Tensor, call: Callable[[np.int64], Any]) -> tf.Tensor:
    """Call it with this number. A `tf.cond` would be two more functions for TensorFlow to optimise for each iterator.
    The call counts as stateless, or else what comes after would wait for it, and there is nothing to wait for if it is
    left out.
    """
    ended = tf.raw_ops.VarIsInitializedOp(resource=_python_has_ended())
    before, after = tf.raw_ops.Switch(data=number, pred=ended)
    called = tf.numpy_function(call, [before], tf.int64, stateful=False)
    return tf.raw_ops.Merge(inputs=[called, after]).output
