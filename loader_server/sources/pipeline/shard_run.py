"""One shard of one epoch, run from its beginning: the user's function is called, and what is above the marker iterated.

Rules: TensorFlow is imported only here and in `graph_source`, and only when a shard is run. Before each run the global
seed is set from job seed, epoch and shard; the pipeline is then built afresh, and is as deterministic as `tf.data` can
be. A graph that is visibly not deterministic is refused. Runs are built one at a time, because the global seed belongs
to the process, and iterated side by side. An exception of the user's code becomes a DataError with its traceback.
"""

from __future__ import annotations

import os
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import DataError, SettingsError, StokerError
from shared.extras import library
from shared.hashing import key_of
from shared.pipelines.context import PipelineContext, build_pipeline, samples_dataset, unfit, with_plain_keys
from shared.pipelines.dense_parts import parted
from shared.pipelines.element_values import ElementValue, fields_of_element
from shared.quick_import import quick_import
from shared.wire.batch_layout import DTYPES, fields_of_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    import tensorflow as tf
    from numpy.typing import NDArray

    from shared.wire.batch_layout import Field

    Element = Mapping[str, NDArray[np.generic]]

__all__ = ["PipelineOrder", "ShardRun", "all_nodes", "import_tensorflow"]

#: Held while a run sets the global seed and builds its graph; another thread's seed in between would change the draws.
_BUILDING = threading.Lock()
#: Characters of an exception and of its traceback that fit into a message beside the rest.
_MOST_TEXT, _MOST_TRACEBACK = 1500, 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOrder:
    """What all runs of a pipeline have in common: the function, its inputs, and its name in messages."""

    function: Callable[[Any], Any]
    where: str
    name: str
    seed: int
    shards: int
    #: Whether a shard that is made again has to equal the first making.
    exact: bool
    max_rows: int = 1
    paths: Sequence[str] = ()
    base_fields: tuple[Field, ...] = ()
    #: What the base stream pads its keys with, if it is not 0.
    padding: Mapping[str, Any] = field(default_factory=dict)
    #: Gives the base stream's samples of an epoch and shard; none if there is no base.
    base: Callable[[int, int], Iterator[Element]] = lambda _epoch, _shard: iter(())


class _ProducerContext(PipelineContext):
    """The context in a worker: it keeps the data set that is given to the marker."""

    captured: tf.data.Dataset
    where: str

    def map_producer_to_consumer(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Keep the data set, and return an empty one of the same kind for the part below the marker.

        Raise a SettingsError if two of its keys become the same, or a value is neither dense, ragged nor sparse.
        """
        plain = with_plain_keys(dataset, self.where)
        self.capture(parted(plain, f"{self.where}, before map_producer_to_consumer"))
        return plain.take(0)

    def capture(self, dataset: tf.data.Dataset) -> None:
        """Keep a data set whose elements are in the form in which they cross the network, and count the call."""
        self.marked += 1
        self.captured = dataset


def import_tensorflow() -> Any:
    """Return TensorFlow, without accelerators, which belong to the trainers.

    Raise a SettingsError that names the extra to install if TensorFlow is missing; TensorFlow's RuntimeError passes if
    this process has used its GPUs already.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its messages about the processor and the like
    with quick_import():
        tf = library(
            "tensorflow",
            extra="trainer-cpu",
            use="which every machine with workers of a pipeline needs",
            where='source = "pipeline"',
        )
    if tf.config.get_visible_devices("GPU"):
        tf.config.set_visible_devices([], "GPU")
    return tf


class ShardRun:
    """Run of one shard, which gives the shard's elements in order, each once.

    Making it builds the data set: raise a DataError if the user's code fails, or a SettingsError if TensorFlow is
    missing, the data set never ends or, if it has to be `exact`, may differ from run to run, its elements cannot cross,
    or the marker is not called once. Stoker's own errors that the user's code raises pass as they are.
    """

    def __init__(self, order: PipelineOrder, epoch: int, shard: int) -> None:
        self._order = order
        self._where = f"{order.where}, shard {shard} of epoch {epoch}"
        self._made = 0
        with _BUILDING:
            tf = import_tensorflow()
            tf.random.set_seed(key_of("pipeline", order.seed, epoch, shard) & 0x7FFFFFFF)
            dataset = self._guarded(lambda: _build(tf, order, epoch, shard))
            #: The values of an element: keys, dtypes and shapes.
            self.values = _values(dataset.element_spec, order.where)
            if order.exact:
                _refuse_unsteady(tf, dataset, order.where)
            self._elements = iter(dataset)

    def next_element(self) -> Element | None:
        """Return the next element by key, as arrays, or None at the end; raise a DataError if the user's code fails.

        Errors of Stoker's own that it raises pass as they are.
        """
        element = self._guarded(lambda: next(self._elements, None))
        if element is None:
            return None
        self._made += 1
        return {key: tensor.numpy() for key, tensor in element.items()}

    def _guarded(self, work: Callable[[], Any]) -> Any:
        """Run user code and return its result; turn its exceptions into a DataError. Errors of our own pass."""
        try:
            return work()
        except StokerError:
            raise
        except Exception as error:  # a user's code may raise anything
            raise DataError(
                expected=f"element {self._made} to be made",
                got=_with_traceback(error),
                where=self._where,
                remedy="The pipeline raised this: mend it, or the data that it reads.",
            ) from error


def _with_traceback(error: Exception) -> str:
    """Return the exception with the user's own lines of its traceback, cut to fit into a message.

    TensorFlow's message includes the lines of Python functions that it calls, so its end is kept as well.
    """
    text = str(error).strip()
    if len(text) > _MOST_TEXT:
        text = f"{text[: _MOST_TEXT // 2]} … {text[-_MOST_TEXT // 2 :]}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_in_between(frame.filename)]
    return f"{type(error).__name__}: {text}\n{''.join(traceback.format_list(frames))[-_MOST_TRACEBACK:]}".rstrip()


def _is_in_between(filename: str) -> bool:
    """Return whether a line of a traceback is TensorFlow's or ours, and not the user's."""
    return (
        bool({"tensorflow", "keras", "loader_server"} & set(Path(filename).parts))
        or filename == build_pipeline.__code__.co_filename
    )


def _build(tf: Any, order: PipelineOrder, epoch: int, shard: int) -> tf.data.Dataset:
    """Build the data set of one shard up to the marker.

    Raise a SettingsError if it is endless, or if the function does not call the marker exactly once or return a data
    set, or gives the marker values that cannot cross. What the function raises passes.
    """
    context = _ProducerContext(
        dataset_name=order.name,
        base_dataset=samples_dataset(order.base_fields, lambda: order.base(epoch, shard)),
        default_max_rows=order.max_rows,
        padding=order.padding,
    )
    context.where = order.where
    context.shard, context.shards, context.epoch, context.paths = shard, order.shards, epoch, order.paths
    build_pipeline(order.function, context, order.where)
    options = tf.data.Options()
    options.deterministic = True
    if context.captured.options().autotune.enabled is None:
        # Releasing an iterator waits for the thread that tunes it, sometimes for a minute (see docs/troubles.md).
        options.autotune.enabled = False
    _refuse_endless(tf, context.captured, order.where)
    return context.captured.with_options(options)


def _refuse_endless(tf: Any, dataset: tf.data.Dataset, where: str) -> None:
    """Raise a SettingsError if the data set says that it never ends."""
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise SettingsError(
            expected="a pipeline that ends with its epoch",
            got="an endless one",
            where=where,
            remedy="Leave repeat() out: trainers open epoch after epoch. Or cut it: dataset.take(n).",
        )


# --- what an element holds ---

#: Limit for the tensors of a batch.
_MOST_TENSORS = 64


def _values(spec: Any, where: str) -> tuple[ElementValue, ...]:
    """Return what an element holds, sorted by key.

    Raise a SettingsError if it is no dict of tensors that can cross, is empty, or would cross as more than 64 tensors.
    """
    if not isinstance(spec, dict) or not spec:
        raise unfit(where, "a dict of tensors as element", f"{spec}", 'Have a map return {"key": tensor, …}.')
    values = tuple(_value(str(key), tensor, where) for key, tensor in sorted(spec.items()))
    tensors = len(fields_of_batch(fields_of_element(values)))
    if tensors > _MOST_TENSORS:
        raise unfit(where, f"values that cross as {_MOST_TENSORS} tensors", f"{tensors}", "Concatenate or stack some.")
    return values


def _value(key: str, spec: Any, where: str) -> ElementValue:
    """Return one value's key, dtype and shape; raise a SettingsError for other dtypes, and for an unknown rank."""
    expected = f'"{key}" as a tensor of numbers or strings'
    if spec.dtype.name not in DTYPES:
        raise unfit(where, expected, f"dtype {spec.dtype.name}", "Make numbers of it, or leave it out.")
    if spec.shape.rank is None:
        raise unfit(where, f"{expected} of known rank", "any rank", "Say it: tensor.set_shape([None, …]) in a map.")
    return ElementValue(key, spec.dtype.name, tuple(spec.shape.as_list()))


# --- what would differ from run to run ---

#: Operations that draw from a state shared by parallel calls, so that the result depends on which call comes first.
_STATEFUL = frozenset(
    (
        *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "RandomShuffle"),
        *("RandomGamma", "RandomPoisson", "RandomPoissonV2", "Multinomial", "ParameterizedTruncatedNormal"),
        *("StatefulUniform", "StatefulUniformInt", "StatefulStandardNormalV2", "StatefulTruncatedNormal"),
    )
)


_STATELESS = "a parallel map to draw without state, so that a shard can be made again"
_DRAW_STATELESS = (
    "Use tf.random.stateless_uniform and its like with a seed from the element, or map without num_parallel_calls."
)
_KEEP_ORDER = "Leave deterministic=False out: it overrides the option of the whole pipeline, which keeps the order."


def _refuse_unsteady(tf: Any, dataset: tf.data.Dataset, where: str) -> None:
    """Raise a SettingsError for parallel work that draws from a shared state, or does not keep the order of elements.

    Both give other elements from run to run, so a shard could not be made again.
    """
    graph = tf.compat.v1.GraphDef.FromString(
        dataset._as_serialized_graph(  # noqa: SLF001 - nothing public shows the graph
            external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE
        ).numpy()
    )
    functions = {function.signature.name: function for function in graph.library.function}
    for node in all_nodes(graph):
        # Parallel operations that call a function, which they name as `f`.
        is_parallel = node.op.startswith("Parallel") and "f" in node.attr
        if is_parallel and (drawn := _drawing(node.attr["f"].func.name, functions, set())):
            raise unfit(where, _STATELESS, drawn, _DRAW_STATELESS)
        if node.attr["deterministic"].s == b"false":
            raise unfit(where, "parallel work that keeps the order of elements", "deterministic=False", _KEEP_ORDER)


def all_nodes(graph: Any) -> list[Any]:
    """Return the operations of a graph, those of its functions included."""
    return [*graph.node, *(node for function in graph.library.function for node in function.node_def)]


def _drawing(name: str, functions: Mapping[str, Any], seen: set[str]) -> str:
    """Return the first stateful random operation of a function or of the functions that it calls, or "".

    `seen` holds the functions already searched: functions may call each other in a circle.
    """
    if name in seen or name not in functions:
        return ""
    seen.add(name)
    for node in functions[name].node_def:
        if node.op in _STATEFUL:
            return str(node.op)
        for attribute in node.attr.values():
            if attribute.func.name and (drawn := _drawing(attribute.func.name, functions, seen)):
                return drawn
    return ""
