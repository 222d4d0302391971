"""Passes of TensorFlow over a feed: a dataset that gets its elements one by one from a Python object.

Rules: an element's arrays are handed on as they are, so that they enter TensorFlow without a copy; small batches enter
several at a time. A pass keeps raising the error that stopped it, and ends before Python shuts down. Iterators that
outlive Python are destroyed without calling it. TensorFlow's functions are traced once for elements of a kind, and know
datasets and iterators by numbers. This module must not know what is counted, nor what becomes of the elements.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from typing_extensions import Self

from shared.malloc_tuning import keep_freed_memory
from shared.wire.strings import StringArray
from trainer_client.tf import ctrl_c, exit_guard
from trainer_client.tf.private_api import call_python

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from trainer_client.core.stream_spec import StreamSpec
    from trainer_client.session.batch_iterator import BatchIterator
    from trainer_client.session.feed_session import FeedSession
    from trainer_client.tf.element_structure import ElementStructure

__all__ = ["Openings", "Stacks", "Witness", "generate", "has_strings"]

#: Bounds that glibc's malloc would reach by itself. A GeneratorDataset (2.21) lowers the trim threshold to 128 kB, once
#: in a process, which also stops glibc from adapting: each frame above 128 kB is then mapped and unmapped again.
#: Measured with 10 MB batches: 77 a second at 8.6 ms of CPU each, against 135 at 4.1 ms with these bounds.
_MMAP_BYTES = 32 * 2**20
_TRIM_BYTES = 2 * _MMAP_BYTES

#: More elements than any pass has; each pass ends by itself.
_ENDLESS = 2**62

#: Type of the number that stands for a dataset or an iterator in a graph.
_NUMBER = tf.TensorSpec((), tf.int64)


class Witness:
    """Observer of passes; each method does nothing unless a subclass wants to know."""

    def on_opening(self) -> None:
        """Let a pass begin: do nothing here; a subclass may raise an error to prevent it."""

    def on_opened(self, batches: BatchIterator, /) -> None:
        """Note that a pass began; do nothing here."""

    def on_read_to_end(self, batches: BatchIterator, /) -> None:
        """Note that a pass was read to its end; do nothing here."""

    def on_stopped(self, error: BaseException, /) -> None:
        """Note the error that stopped a pass, which it will raise from now on; do nothing here."""


@dataclass(frozen=True, eq=False)
class Openings:
    """Source of a pipeline: each call opens one pass from the cursor to the end of its epoch.

    Graphs know it by a number, and the dataset object keeps it alive.
    """

    session: FeedSession
    structure: ElementStructure
    witness: Witness

    @cached_property
    def stacks(self) -> Stacks:
        """Return how batches enter TensorFlow: one by one, joined by rows, or stacked."""
        return Stacks.of(self.session.spec)

    def __call__(self) -> FeedPass:
        """Begin a pass at the cursor; pass on the error by which the witness prevents it.

        Raise SettingsError as well if all epochs of `connect(epochs=)` are over, RefusedError if other ranks stand at
        another cursor, and LostError if the coordinator does not answer. Other errors of `open` pass through.
        """
        self.witness.on_opening()
        keep_freed_memory(trim_bytes=_TRIM_BYTES, mmap_bytes=_MMAP_BYTES)
        batches = self.session.open(keep_interrupt=ctrl_c.is_pending())
        self.witness.on_opened(batches)
        return FeedPass(batches, self)


class FeedPass:
    """One pass over a feed.

    Unlike a generator it keeps raising the error that stopped it: TensorFlow asks again, and must not see an end.
    """

    def __init__(self, batches: BatchIterator, openings: Openings) -> None:
        self._batches = batches
        self._openings = openings
        self._error: BaseException | None = None
        keys = {field.key: field.key for field in openings.session.spec.fields}
        self._listed = tf.nest.flatten(openings.structure.of(keys))
        self._keys = frozenset(self._listed)
        exit_guard.watch(self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> list[Any]:
        # As Python shuts down, this is where a thread of TensorFlow's would stay for ever.
        exit_guard.enter(self)
        try:
            return self._next()
        finally:
            exit_guard.leave(self)

    def _next(self) -> list[Any]:
        """Return the arrays of the next element; remember an error, and raise it from now on.

        Raise StopIteration at the end of the epoch, and the errors of a `Reading`, such as LostError.
        """
        if self._error is not None:
            raise self._error
        try:
            arrays = self._openings.stacks.take(self._batches, self._keys)
            return [arrays[key] for key in self._listed]
        except StopIteration:
            self._openings.witness.on_read_to_end(self._batches)
            raise
        except BaseException as error:  # raised again, an interrupt too, each time that TensorFlow asks
            # `end` may have come first, while we waited: TensorFlow then sees the end, not the error of a closed feed.
            self._error = self._error or error
            self._openings.witness.on_stopped(self._error)
            raise self._error from None

    def end(self) -> None:
        """End the pass because the process exits: nobody looks at later elements, nor at errors."""
        self._error = StopIteration()
        self._batches.close()

    def __del__(self) -> None:
        # TensorFlow drops an iterator that nobody reads to its end without a word, and its slots have to come back.
        self._batches.close()
        exit_guard.leave(self)


_NUMBERS = itertools.count()
#: Sources by the number of their dataset, as long as a dataset keeps them.
_OPENINGS = weakref.WeakValueDictionary[int, Openings]()
#: By the number of an iterator, until TensorFlow destroys it: its pass, or what opens the pass at its first element.
_PASSES: dict[int, Openings | FeedPass] = {}


def _begin(dataset: np.int64) -> Any:
    """Register what opens the pass of a new iterator of this dataset, and return the iterator's number."""
    # A number, because a traced function can capture no Python object: it is traced once for all iterators.
    number = next(_NUMBERS)
    _PASSES[number] = _OPENINGS[int(dataset)]
    return np.int64(number)


def _advance(number: np.int64) -> list[Any]:
    """Return the next element of an iterator, whose pass begins with its first; raise StopIteration at the end.

    Raise the pass' errors as well, of opening it and of reading. StokerError of `Openings` passes through.
    """
    current = _PASSES[int(number)]
    if isinstance(current, Openings):  # opened only now, because many iterators never ask for an element
        current = _PASSES[int(number)] = current()
    return next(current)


def _end(number: np.int64) -> Any:
    """Forget the pass of an iterator that TensorFlow destroys, and return 0."""
    _PASSES.pop(int(number), None)
    return np.int64(0)


def generate(openings: Openings, signature: Any) -> tf.data.Dataset:
    """Return a dataset whose elements are fetched by the thread that asks for them, without waking another one.

    Each iterator begins by calling `openings` at its first element. What TensorFlow raises passes through.
    """
    _tell_when_python_ends()
    number, specs = next(_NUMBERS), tuple(tf.nest.flatten(signature))
    # Outside of the caller's graph and device: the functions are kept for all later datasets of these elements.
    with tf.init_scope(), tf.device(None):
        begin, stay, end, elements = _functions(specs)
    iterators = tf.raw_ops.GeneratorDataset(
        init_func=begin,
        init_func_other_args=[tf.constant(number, tf.int64)],
        next_func=stay,
        next_func_other_args=[],
        finalize_func=end,
        finalize_func_other_args=[],
        **_kinds([_NUMBER]),
    )
    # The generator would repeat the iterator's number for ever, so take it once: it is there for its functions, which
    # see the iterator's beginning and end. The flat map makes the elements of the number.
    first = tf.raw_ops.TakeDataset(input_dataset=iterators, count=1, **_kinds([_NUMBER]))
    flat = tf.raw_ops.FlatMapDataset(input_dataset=first, other_arguments=[], f=elements, **_kinds(specs))
    dataset = tf.data.experimental.from_variant(flat, signature)
    dataset.openings = _OPENINGS[number] = openings
    return dataset


@functools.cache
def _functions(specs: tuple[tf.TensorSpec, ...]) -> tuple[Any, Any, Any, Any]:
    """Return what TensorFlow runs at an iterator's beginning, at each of its numbers, at its end, and for its elements.

    Traced once for all datasets of these elements, which takes as long as reading hundreds of them.
    """
    return (
        _traced(lambda dataset: tf.numpy_function(_begin, [dataset], tf.int64)),
        _traced(lambda number: number),
        _traced(lambda number: _unless_python_has_ended(number, _end)),
        _traced(lambda number: _elements(number, specs)),
    )


def _elements(number: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> tf.Tensor:
    """Return the dataset of one iterator's elements, each made by calling Python's `_advance` with its number."""
    # No thread of TensorFlow's own in between: a ready batch enters in 0.6 ms even with cold caches.
    # The unused argument gives a node its name, which TensorFlow warns of if it is `_`.
    fetch = _traced(lambda place: call_python(_advance, [number], [spec.dtype for spec in specs]))  # noqa: ARG005
    return tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(_ENDLESS)),
        other_arguments=fetch.captured_inputs,
        f=fetch,
        use_inter_op_parallelism=False,
        preserve_cardinality=False,
        **_kinds(specs),
    )


def has_strings(spec: Any) -> bool:
    """Return whether elements of this spec have strings, which TensorFlow keeps in the host's memory alone."""
    return any(getattr(leaf, "dtype", None) == tf.string for leaf in tf.nest.flatten(spec))


def _kinds(specs: Sequence[tf.TensorSpec]) -> dict[str, Any]:
    return {"output_types": [spec.dtype for spec in specs], "output_shapes": [spec.shape for spec in specs]}


#: The first attribute keeps a function on one device: TensorFlow optimises a function that might need several devices
#: anew for each iterator, which took 12 of 15 ms for a pass of two small batches. tf.data sets the second on its own
#: functions.
_SINGLE_DEVICE = {"experimental_ints_on_device": True, "_tf_data_function": True}


def _traced(function: Callable[[tf.Tensor], Any]) -> Any:
    """Return the concrete function of a number, without AutoGraph, because it has no loop to convert."""
    traced = tf.function(function, input_signature=[_NUMBER], autograph=False, experimental_attributes=_SINGLE_DEVICE)
    return traced.get_concrete_function()


@dataclass(frozen=True, slots=True)
class Stacks:
    """Way in which the batches of a session enter TensorFlow: several in one array for each key, taken apart there.

    Handing over an array has a fixed cost. TensorFlow (2.21) ends the process with SIGSEGV where `unbatch` meets a
    tensor without elements; `rebatch` does not, and costs as much. It needs the number of rows beforehand, so each kind
    of batch has its own way:

    - Batches that are made whole have one row each, and may hold empty values. They are joined along the row axis, and
      `rebatch(1)` gives each its row.
    - Planned batches have as many rows as their bucket says. They get one more axis in front, and `unbatch` takes it
      away. A padded axis has at least one step, so only a field without room for anything is empty. Batches that have
      such a field enter one by one.
    """

    #: Most batches in a stack.
    most: int
    #: Whether batches have one row each, and are joined along the row axis.
    joined: bool

    @classmethod
    def of(cls, spec: StreamSpec) -> Self:
        """Return the way that suits a stream's batches: one by one if a planned batch may have an empty field."""
        # SIGSEGV in `unbatch`, which no handler of ours could turn into an error: so never an empty tensor there.
        has_room = all(0 not in field.shape for field in spec.fields)
        joined = spec.producers > 0
        return cls(spec.at_a_time if joined or has_room else 1, joined)

    def shape_of(self, batch: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape in which a tensor of this batch shape enters; the same shape if batches enter one by one."""
        if self.most == 1:
            return batch
        return (None, *batch[1:]) if self.joined else (None, *batch)

    def take(self, batches: BatchIterator, keys: Collection[str]) -> Mapping[str, NDArray[np.generic]]:
        """Wait for the next batch; return it stacked with ready ones of its shape, or raise StopIteration at the end.

        If batches enter one by one, return the next batch as it is. Errors of a `Reading` pass through, such as
        LostError.
        """
        if self.most == 1:
            return _plain(next(batches))
        stacked = batches.take_stacked(keys, self.most)
        return {key: _joined(array) for key, array in stacked.items()} if self.joined else stacked

    def taken_apart(self, entered: tf.data.Dataset) -> tf.data.Dataset:
        """Return the data set of single batches; the same data set if batches enter one by one."""
        if self.most == 1:
            return entered
        # `rebatch` survives tensors without elements, where `unbatch` would end the process.
        return entered.rebatch(1, drop_remainder=True) if self.joined else entered.unbatch()


def _plain(batch: Mapping[str, Any]) -> Mapping[str, NDArray[np.generic]]:
    """Return the arrays of a batch, with its strings, if it has any, as arrays of `bytes` objects."""
    strings = {key: value.as_bytes() for key, value in batch.items() if isinstance(value, StringArray)}
    return {**batch, **strings} if strings else batch


def _joined(stack: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of a stack of batches that have one row each; a copy if there is only one batch."""
    rows = stack.reshape(len(stack), *stack.shape[2:])
    # `rebatch` hands on a single row as it is: a consumer that keeps it would keep a slot.
    return rows.copy() if len(rows) == 1 else rows


# --- iterators that live longer than Python ---


@functools.cache
def _tell_when_python_ends() -> None:
    """Set a TensorFlow variable when Python ends, once per process.

    An iterator that is held to the end (by a global or an error's traceback) is destroyed after Python has ended. Its
    finalising function could then only fail, with a warning. So it checks this variable first, which it finds by name
    because nothing can be captured.
    """
    owner = os.getpid()

    def tell() -> None:
        if os.getpid() == owner:  # in a fork, TensorFlow's locks may be held by threads that do not exist there
            with tf.device("/cpu:0"):
                tf.raw_ops.AssignVariableOp(resource=_python_has_ended(), value=True)

    atexit.register(tell)


def _python_has_ended() -> tf.Tensor:
    """Return the variable that is set when Python ends."""
    return tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=(), shared_name="stoker: Python has ended")


def _unless_python_has_ended(number: tf.Tensor, call: Callable[[np.int64], Any]) -> tf.Tensor:
    """Return what this function returns for the number, or the number itself once Python has ended.

    A `tf.cond` would be two more functions that TensorFlow prepares for each iterator. The call counts as stateless:
    otherwise later operations would wait for it, and there is nothing to wait for if it is left out.
    """
    ended = tf.raw_ops.VarIsInitializedOp(resource=_python_has_ended())
    before, after = tf.raw_ops.Switch(data=number, pred=ended)
    called = tf.numpy_function(call, [before], tf.int64, stateful=False)
    return tf.raw_ops.Merge(inputs=[called, after]).output
