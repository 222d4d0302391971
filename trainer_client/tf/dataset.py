"""Feeds as `tf.data.Dataset`s: the implementation of `feed.dataset(...)` and `feed.distributed(...)`.

Rules it keeps:
- A batch enters TensorFlow without a copy: arrays are handed on as they are. Slots that TensorFlow has finished with
  but still references come back through `flush_references`, so that no reader waits in vain for a free slot.
- In queue mode a batch is done once the consumer asks for the next one, after all of TensorFlow's prefetching.
- In lockstep, reading does not move the cursor. A pass over the feed's own dataset that was consumed to its end counts
  as trained on, if nobody counted meanwhile: at once if the consumer is Python, else when the dataset is next iterated.
  Prefetched elements do not count, nor does reading a derived dataset (`take`, `map`, or `adapt`).
- An element is fetched by the thread that asks for it, unless TensorFlow has work to do on it or our training loop
  asks: each additional thread costs as much as a small batch, and batches that are ready wait in the feed's slots
  anyway. For the demo's model another thread halves the wait for data at no measurable CPU cost. Several devices are
  fed by one thread of ours: TensorFlow's own way has one for each and takes half as much CPU again.

It must not know sockets, slots or plans: it only sees a session.
"""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

# Not public, but nothing public lets a dataset state its greatest length or observe its iteration (2.18 to 2.21).
from tensorflow.python.data.ops.dataset_ops import UnaryUnchangedStructureDataset
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.distribute.input_lib import DistributedDatasetsFromFunction

from shared.errors import require
from shared.wire.batch_layout import ALIGNMENT
from trainer_client.core.upcoming import Ranks
from trainer_client.network.trainer_log import process_log
from trainer_client.tf import ctrl_c
from trainer_client.tf.element_structure import assembler, masked_batches, shapes_of
from trainer_client.tf.iterators import Openings, Witness, generate, has_strings
from trainer_client.tf.leased_elements import LeasedElements, refuse_graph, refuse_uncounted
from trainer_client.tf.private_api import keep_with_graph, untune_devices, untuned
from trainer_client.tf.staging import Staging

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterator, Mapping

    from trainer_client.session.batch_iterator import BatchIterator
    from trainer_client.session.feed_session import FeedSession
    from trainer_client.tf.element_structure import ElementStructure

__all__ = ["FeedDataset", "copies_batches", "distributed", "flush_references", "make", "ranks_of", "warm_up"]

#: Elements prepared during a step: one hides the work on the next, one evens out different shapes.
PREFETCH = 2
FLUSH_TIMEOUT_S = 0.1
_LOOKS = 2  # a first full pass may be an `adapt`, but a second may be training; a third would be late to warn


def make(
    session: FeedSession, structure: ElementStructure, *, in_rounds: bool = False, ahead: bool = False
) -> FeedDataset:
    """Return the feed's dataset for one device, or `in_rounds` for a consumer that takes whole rounds for its devices.

    With `ahead`, a thread fetches elements while a step computes. Warn if the feed has several ranks and is not read
    `in_rounds`. Raise SettingsError if the structure names a key that batches lack, or in queue mode if batches are
    made whole. Errors of its `map` pass through.
    """
    if session.ranks.replicas > 1 and not in_rounds:
        warnings.warn(
            f"This feed occupies {session.ranks.replicas} ranks, and dataset() yields their batches one after another. "
            "Under a strategy use feed.distributed(strategy).",
            stacklevel=3,
        )
    _prepare(session)
    counting = _Counting(session)
    pipeline = _pipeline(Openings(session, structure, _FromAfar(counting)))
    # In rounds, elements go to several devices, each of which the consumer fills itself.
    counted = _ahead(pipeline, structure, None if in_rounds else _accelerator(), always=ahead)

    def derived() -> tf.data.Dataset:
        return _pipeline(Openings(session, structure, _Derived(session))).prefetch(PREFETCH)

    return FeedDataset(counting, counted, derived, structure)


def distributed(
    session: FeedSession, strategy: tf.distribute.Strategy, structure: ElementStructure
) -> tf.distribute.DistributedDataset:
    """Return the dataset that gives replica r the r-th batch of each round.

    Raise SettingsError unless the strategy has as many replicas here as the feed has ranks, if the structure names a
    key that batches lack, or in queue mode if batches are made whole. Errors of its `map` pass through.
    """
    replicas = ranks_of(strategy).replicas
    require(
        replicas == session.ranks.replicas,
        expected=f"a feed of {replicas} ranks, one for each replica here",
        got=f"one of {session.ranks.replicas}",
        where="feed.distributed",
        remedy="Connect with connect(..., strategy=strategy).",
    )
    _prepare(session)
    counting = _Counting(session)
    source = _pipeline(Openings(session, structure, _FromAfar(counting))).prefetch(PREFETCH)
    # Keras reads it as the number of steps, and steps are rounds.
    source.cardinality = lambda: tf.constant(session.cursor.most_rounds(), tf.int64)
    # A strategy may return an object of another class, whose iteration cannot be observed this way.
    data = strategy.distribute_datasets_from_function(lambda _context: source)
    if type(data) is DistributedDatasetsFromFunction:
        data.__class__ = _DistributedFeedDataset
        data.counting = counting
    return data


@functools.cache
def copies_batches() -> bool:
    """Return whether this TensorFlow copies what a generator yields, as 2.18 does; 2.21 takes aligned arrays."""
    # By trying: whether the address is the same is all that tells, and no release says it. TensorFlow takes only arrays
    # that begin at a multiple of 64 bytes as they are, which a new array need not.
    raw = np.zeros(4096 + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    array = raw[start : start + 4096]
    spec = tf.TensorSpec((4096,), tf.uint8)
    tensor = next(iter(tf.data.Dataset.from_generator(lambda: iter([array]), output_signature=spec)))
    copied = bool(np.asarray(memoryview(tensor)).ctypes.data != array.ctypes.data)
    if copied:
        process_log().info("this TensorFlow copies batches once", version=tf.__version__)
    return copied


def _prepare(session: FeedSession) -> None:
    """Set up flushing, Ctrl-C and Keras' warnings; raise SettingsError in queue mode if batches are made whole."""
    copies_batches()  # at the start, because it logs the answer
    session.serve_framework(let_go=flush_references, on_close=ctrl_c.forget)
    ctrl_c.watch(session)
    # Keras warns that it stops at an epoch shorter than the longest, although it goes on with the next one; and that a
    # dataset should already be shuffled, because `shuffle` is True by default. Neither concerns batches of a plan.
    for message in ("Your input ran out of data", "`shuffle=True` was passed"):
        warnings.filterwarnings("ignore", message=message, module=r"keras\.src\.trainers")


def _pipeline(openings: Openings) -> tf.data.Dataset:
    """Return the dataset of these openings, after `map`, whose errors pass; raise SettingsError for a missing key."""
    dtypes = {field.key: field.dtype for field in openings.session.spec.fields}
    shapes = {key: openings.stacks.shape_of(shape) for key, shape in shapes_of(openings.session).items()}
    specs = {key: tf.TensorSpec(shape, dtypes[key]) for key, shape in shapes.items()}
    data = openings.stacks.taken_apart(untuned(generate(openings, openings.structure.of(specs))))
    if openings.structure.map is not None:
        data = data.map(openings.structure.map)
    return data


def _ahead(data: tf.data.Dataset, structure: ElementStructure, device: str | None, *, always: bool) -> tf.data.Dataset:
    """Return the data set with prefetching: to `device` if given, else if `always` or if TensorFlow works on elements.

    Else, as elements wait ready in the feed's slots, return the same one. Elements with strings go to no device.
    """
    if device is not None and not has_strings(data.element_spec):
        return data.apply(tf.data.experimental.prefetch_to_device(device, PREFETCH))
    if always or structure.map is not None or copies_batches():
        return data.prefetch(PREFETCH)
    return data


def _accelerator() -> str | None:
    gpus = tf.config.list_logical_devices("GPU")
    return gpus[0].name if gpus else None


# --- counting passes as trained on, where the user does not ---


class _Counting:
    """Observer that finds out whether the last pass over a feed's own dataset was consumed to its end."""

    def __init__(self, session: FeedSession) -> None:
        self.session = session
        #: The error that stopped the last pass.
        self.error: BaseException | None = None
        self._iterator: Any = None
        self._batches: BatchIterator | None = None

    def on_began(self, iterator: Any) -> None:
        """Note that the dataset is iterated again; the iterator reads nothing until it is asked."""
        self._iterator, self._batches, self.error = iterator, None, None

    def on_staged(self) -> None:
        """Forget the iterator: with staging it may end before its consumer, which is Python and reports its end."""
        self._iterator = None

    def on_opened(self, batches: BatchIterator) -> None:
        """Note that the iterator was asked for its first element."""
        self._batches = batches

    def on_stopped(self, error: BaseException) -> None:
        """Remember the error, because TensorFlow will raise one of its own instead."""
        self.error = error

    def on_ended(self) -> None:
        """Count the pass, whose end was seen, as trained on: once, if it was opened and the cursor counts passes.

        Errors of `count_to_end` pass through, such as LostError if no worker says how long the epoch is.
        """
        batches, self._batches = self._batches, None
        if batches is not None and self.session.cursor.may_count_pass(is_seen=True):
            self.session.cursor.count_to_end(batches.start, batches.rounds)

    def settle(self) -> None:
        """Count the last pass if a consumer inside a graph, which cannot be observed, has read it to its end.

        Do nothing in queue mode, in an evaluation, or if the feed has failed. It takes an element of the iterator, so
        call it only when the old consumer wants no more. Raise LostError as `on_ended` does. Other errors of it pass
        through, and TensorFlow's for an iterator that fails.
        """
        session, iterator = self.session, self._iterator
        is_counted = session.error is None and session.cursor.may_count_pass(is_seen=False)
        if not is_counted or iterator is None or self._batches is None:
            return
        # A pass that Python reads reports its end. Inside a graph only the iterator knows, and asking takes an element.
        if not bool(iterator.get_next_as_optional().has_value()):
            self.on_ended()


class _FromAfar(Witness):
    """Weak link from passes to their `_Counting`.

    TensorFlow keeps a pass as long as its iterator exists, and the counting holds the iterator: if passes held the
    counting, none of them, nor their feed, would ever be freed. Batches that were read to the end count nothing here:
    they may still be on their way to the consumer.
    """

    def __init__(self, counting: _Counting) -> None:
        self._held = weakref.ref(counting)

    def on_opened(self, batches: BatchIterator) -> None:
        """Note in the counting, if it still exists, that a pass began."""
        if (counting := self._held()) is not None:
            counting.on_opened(batches)

    def on_stopped(self, error: BaseException) -> None:
        """Note in the counting, if it still exists, the error that stopped a pass."""
        if (counting := self._held()) is not None:
            counting.on_stopped(error)


class _Derived(Witness):
    """Witness of passes over derived datasets: it warns of training on one, which nothing counts."""

    def __init__(self, session: FeedSession) -> None:
        self._session = session
        self._starts: list[Any] = []

    def on_opening(self) -> None:
        """Raise SettingsError in queue mode, where somebody has to report which batches are done."""
        self._session.cursor.refuse_queue(refuse_uncounted())

    def on_read_to_end(self, batches: BatchIterator) -> None:
        """Warn in the log once if the first two full passes began at one cursor, unless the stream is for evaluation.

        One full pass may be just a look, but several from the same cursor suggest training.
        """
        self._starts.append(batches.start)
        if self._starts == [batches.start] * _LOOKS and not self._session.spec.evaluation:
            process_log().warning(
                "datasets derived from a feed's own are read again and again, and count nothing: to train on one, use "
                "FeedCheckpoint or feed.trained(), or give the mapping to feed.dataset(map=...)",
                times=_LOOKS,
            )


class FeedDataset(UnaryUnchangedStructureDataset):  # type: ignore[misc] # TensorFlow has no types
    """Own dataset of a feed: iterating it reads the counted pipeline, datasets derived from it read another one.

    The uncounted pipeline is made only when a dataset is derived.
    """

    def __init__(
        self,
        counting: _Counting,
        counted: tf.data.Dataset,
        make_uncounted: Callable[[], tf.data.Dataset],
        structure: ElementStructure,
    ) -> None:
        self._counting = counting
        self._structure = structure
        self._counted = counted
        self._make_uncounted = make_uncounted
        self._warned = False
        super().__init__(counted, None)

    @property
    def _variant_tensor(self) -> tf.Tensor:
        """Return the uncounted pipeline's tensor, which stands for this dataset in derived ones, perhaps in a graph."""
        keep_with_graph(self)
        return self._uncounted._variant_tensor  # noqa: SLF001 - how one dataset stands for another

    @functools.cached_property
    def _uncounted(self) -> tf.data.Dataset:
        # Outside of any graph that is being traced: the dataset outlives it.
        with tf.init_scope():
            return self._make_uncounted()

    def cardinality(self) -> tf.Tensor:
        """Return an upper bound on an epoch's elements: with less Keras would cut epochs to the first one's length."""
        session = self._counting.session
        return tf.constant(session.cursor.most_rounds() * session.ranks.replicas, tf.int64)

    def __iter__(self) -> Iterator[Any]:
        self._warn_of_replicas()
        cursor = self._counting.session.cursor
        if not tf.executing_eagerly():
            cursor.refuse_queue(refuse_graph())
            keep_with_graph(self)
            return iter(self._counted)
        self._counting.settle()
        iterator = _Iterator(self._counted)
        iterator.counting = self._counting
        self._counting.on_began(iterator)
        elements: Iterator[Any] = cursor.hand_over(iterator, LeasedElements)
        return elements

    def example(self) -> Any:
        """Return an element of the smallest shape without samples; fail as `_element_of` does."""
        *_, smallest = masked_batches(self._counting.session)
        return _element_of(self._structure, smallest)

    def staged(self, make: Callable[[Callable[[], Any]], Any]) -> Iterator[Any]:
        """Yield what `make` makes with a function that returns the next element, in a thread; raise its error here."""
        return iter(self).staged(make)  # type: ignore[attr-defined, no-any-return] # outside of graphs it is ours

    def _warn_of_replicas(self) -> None:
        """Warn once if the dataset is iterated in the scope of a strategy with several replicas."""
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1 and not self._warned:
            self._warned = True
            warnings.warn(
                f"A plain dataset is iterated in the scope of a strategy with {replicas} replicas: its batches are "
                "not one for each. Use feed.distributed(strategy).",
                stacklevel=3,
            )


class _Iterator(OwnedIterator):  # type: ignore[misc] # TensorFlow has no types
    """Iterator that reports when its consumer reaches the end, and raises the feed's error instead of TensorFlow's.

    Assembling an element takes TensorFlow longer than fetching it, because it is prepared for any structure. Here the
    structure is known, which makes small batches a third faster.
    """

    counting: _Counting

    def __init__(self, dataset: tf.data.Dataset) -> None:
        super().__init__(dataset)
        is_synchronous = tf.config.experimental.get_synchronous_execution()
        self._assemble = assembler(self.element_spec, tf.TensorSpec) if is_synchronous else None

    def _next_internal(self) -> Any:
        if self._assemble is None or not tf.executing_eagerly():
            return super()._next_internal()
        return self._assemble(
            tf.raw_ops.IteratorGetNext(
                iterator=self._iterator_resource,
                output_types=self._flat_output_types,
                output_shapes=self._flat_output_shapes,
            )
        )

    def __next__(self) -> Any:
        return self._observed(super().__next__)

    def staged(self, make: Callable[[Callable[[], Any]], Any]) -> Iterator[Any]:
        """Yield as `FeedDataset.staged` does; count the end and raise errors only when the consumer gets there."""
        self.counting.on_staged()
        with Staging(functools.partial(make, super().__next__), PREFETCH) as staging:
            while True:
                try:
                    element = self._observed(staging.wait_next)
                except StopIteration:
                    return
                yield element

    def _observed(self, take: Callable[[], Any]) -> Any:
        """Return `take()`; at its end count the pass as `on_ended` does. Raise any feed's error for TensorFlow's."""
        try:
            return take()
        except StopIteration:
            self.counting.on_ended()
            raise
        except (tf.errors.OpError, RuntimeError):
            # TensorFlow wraps what our pass raised into an error of its own, and a Ctrl-C into an unknown one.
            ctrl_c.raise_pending()
            error = self.counting.session.error or self.counting.error
            if error is None:  # TensorFlow's own failure, not ours
                raise
            raise error from None


class _DistributedFeedDataset(DistributedDatasetsFromFunction):  # type: ignore[misc] # TensorFlow has no types
    """TensorFlow's own distributed data set, except that its iteration is observed."""

    counting: _Counting

    def __iter__(self) -> Iterator[Any]:
        keep_with_graph(self)
        if not tf.executing_eagerly():
            return super().__iter__()  # type: ignore[no-any-return]
        self.counting.settle()
        with untune_devices():
            iterator = super().__iter__()
        self.counting.on_began(iterator)
        return iterator  # type: ignore[no-any-return]


# --- slots that TensorFlow still holds ---


class _Flusher:
    """Thread that runs a tiny eager op when asked: on entry, TensorFlow drops the references that it queued."""

    def __init__(self) -> None:
        self._asked = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        threading.Thread(target=self._run, name="stoker-flush", daemon=True).start()

    def wait_flushed(self, timeout_s: float) -> None:
        self._asked.release()
        self._done.acquire(timeout=timeout_s)

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            with tf.device("/cpu:0"):
                tf.constant(1.0)
            self._done.release()


@functools.cache
def _flusher() -> _Flusher:
    return _Flusher()


def flush_references() -> None:
    """Make TensorFlow drop the references that it queued, in a thread of ours; wait at most 0.1 s for it."""
    _flusher().wait_flushed(FLUSH_TIMEOUT_S)


# --- strategies ---


def ranks_of(strategy: tf.distribute.Strategy) -> Ranks:
    """Return this process's ranks: all, but in a MultiWorkerMirroredStrategy's cluster its share, the chief's first."""
    world = int(strategy.num_replicas_in_sync)
    resolver = strategy.cluster_resolver
    if resolver is None or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return Ranks(rank=0, replicas=world, world=world)
    cluster = resolver.cluster_spec().as_dict()
    chiefs, workers = (len(cluster.get(job, ())) for job in ("chief", "worker"))
    replicas = world // max(1, chiefs + workers)
    task = int(resolver.task_id or 0) + (chiefs if resolver.task_type == "worker" else 0)
    return Ranks(rank=task * replicas, replicas=replicas, world=world)


# --- warm-up ---


def warm_up(session: FeedSession, step: Callable[[Any], Any], structure: ElementStructure) -> None:
    """Run `step` once on each padded shape, largest first, with all rows masked; raise the feed's error if it has one.

    An interruption is no such error. Shapes are then compiled before training starts, and one that does not fit into
    memory fails at once: errors of `step` and `map` pass through. Raise SettingsError if batches lack a key.
    """
    with _tracing_often():
        for batch in masked_batches(session):
            if isinstance(session.error, Exception):  # else shapes would be compiled for minutes, in vain
                raise session.error
            step(_element_of(structure, batch))


def _element_of(structure: ElementStructure, batch: Mapping[str, Any]) -> Any:
    """Return the element of a batch after `map`, whose errors pass through; raise SettingsError if a key is missing."""
    element = structure.of({key: tf.constant(array) for key, array in batch.items()})
    return element if structure.map is None else structure.map(element)


@contextmanager
def _tracing_often() -> Iterator[None]:
    """Silence TensorFlow's warning of frequent retracing: here each call is meant to trace."""
    log = tf.get_logger()

    def is_other(record: logging.LogRecord) -> bool:
        return "triggered tf.function retracing" not in record.getMessage()

    log.addFilter(is_other)
    try:
        yield
    finally:
        log.removeFilter(is_other)
