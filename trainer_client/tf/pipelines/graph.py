"""A user's `tf.data` data set as a graph that other processes can run: what `trainer_client.distribute` sends.

Rules: equal code gives equal bytes, in any process and however much was traced there before, so that a digest tells
whether ranks and restarts send the same. TensorFlow itself refuses to write a graph with state outside of it (Python
functions, generators, variables, tables). Elements cross as dicts of dense numbers, one entry for each leaf of their
structure, which stays here. Must not know sockets or jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shared.errors import SettingsError, require
from shared.pipelines.dense_parts import parted
from shared.pipelines.element_values import MOST_BYTES, ElementValue, SentGraph
from shared.wire.batch_layout import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["packed_element", "sent_graph"]

_WHERE = "trainer_client.distribute"
_REMEDY = "Write it as dataset_pipeline(context), which workers import: docs/pipelines.md has both ways."
#: Operations that write files, which other processes would write as well.
_WRITING = frozenset(("SnapshotDataset", "SnapshotDatasetV2", "SaveDataset", "SaveDatasetV2"))
_CACHES = frozenset(("CacheDataset", "CacheDatasetV2"))
#: Device and container given to all resources that keep state while a graph runs.
_RESOURCES_AT = ("/job:localhost/replica:0/task:0/device:CPU:0", "localhost")
#: The operation that marks the data set to run.
_RESULT = "_Retval"
#: Attributes in which a function names related ones, which are not part of what it does.
_RELATIVES = ("forward_function_name", "backward_function_name")


def sent_graph(dataset: tf.data.Dataset) -> SentGraph:
    """Return a data set's graph and what its values are; raise SettingsError with what cannot be sent.

    That is a value that is neither dense, ragged nor sparse, another dtype or an unknown rank, state outside of the
    graph, an operation that writes files, or more than 64 MiB.
    """
    crossing = parted(dataset.map(_leaves), _WHERE)
    graph = tf.compat.v1.GraphDef.FromString(_serialized(crossing))
    values = tuple(_value(key, spec) for key, spec in sorted(crossing.element_spec.items()))
    _refuse_writing(graph)
    _number_functions(graph)
    _number_resources(graph)
    _number_nodes(graph)
    # Deterministic, or attributes would come in the order of a hash map, and ranks would send different bytes.
    content = graph.SerializeToString(deterministic=True)
    require(
        len(content) <= MOST_BYTES,
        expected=f"a graph of at most {MOST_BYTES >> 20} MiB, tables in it included",
        got=f"{len(content) >> 20} MiB",
        where=_WHERE,
        remedy="Read the data from files (TFRecordDataset and its like) instead of from arrays.",
    )
    return SentGraph(values, content)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator] # TensorFlow has no types
def _leaves(*element: Any) -> dict[str, Any]:
    """Return the leaves of an element by their numbers, in the order of `tf.nest.flatten`."""
    whole = element if len(element) != 1 else element[0]
    return {str(place): leaf for place, leaf in enumerate(tf.nest.flatten(whole))}


def packed_element(spec: Any, leaves: Mapping[str, Any]) -> Any:
    """Return the user's own structure, filled with the leaves of an element that crossed."""
    return tf.nest.pack_sequence_as(spec, [leaves[str(place)] for place in range(len(leaves))])


def _value(key: str, spec: tf.TensorSpec) -> ElementValue:
    """Return the description of a leaf; raise SettingsError if its dtype or rank cannot cross."""
    require(
        spec.dtype.name in DTYPES and spec.shape.rank is not None,
        expected="elements of numbers and strings, of known rank",
        got=f"{spec} as leaf {key.partition(':')[0]}",
        where=_WHERE,
        remedy="Cast it, or set its rank by set_shape in a map.",
    )
    return ElementValue(key, spec.dtype.name, tuple(spec.shape.as_list()))


def _serialized(dataset: tf.data.Dataset) -> bytes:
    """Return the data set's graph as bytes; raise SettingsError if TensorFlow refuses, as for state outside of it."""
    try:
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=tf.data.experimental.ExternalStatePolicy.FAIL.value,
            strip_device_assignment=True,
        )
    except tf.errors.OpError as error:
        raise SettingsError(
            expected="a data set of TensorFlow's own operations, without state",
            got=str(error.message).partition(" [Op:")[0].rpartition("}} ")[2],
            where=_WHERE,
            remedy=f"Python functions, generators, variables and tf.random.uniform stay in this process. {_REMEDY}",
        ) from None
    return graph.numpy()  # type: ignore[no-any-return] # bytes


def _refuse_writing(graph: Any) -> None:
    """Raise SettingsError if the graph, or a function in it, writes files, or has a cache whose file is no constant."""
    # Functions too: a map's function may open a cache or a snapshot of its own.
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        by_name = {node.name: node for node in nodes}
        for node in nodes:
            if node.op in _WRITING or (node.op in _CACHES and _text(by_name, node.input[1])):
                raise SettingsError(
                    expected="a data set that writes no files, because several processes run it",
                    got=node.op,
                    where=_WHERE,
                    remedy="Leave the file of cache(), or the snapshot, out.",
                )


def _text(by_name: Mapping[str, Any], name: str) -> bytes:
    """Return a node's constant string, empty if it has none, or b"?" if the node is no constant."""
    node = by_name.get(name.partition(":")[0])
    if node is None or node.op != "Const":
        return b"?"
    strings = node.attr["value"].tensor.string_val
    return bytes(strings[0]) if strings else b""


# --- equal bytes for equal code ---


def _number_functions(graph: Any) -> None:
    """Name functions in order of use, drop unused ones, and remove traces of the process that traced them."""
    # TensorFlow numbers functions by a counter of the process, and writes all that it knows, used or not.
    functions = {function.signature.name: function for function in graph.library.function}
    numbers: dict[str, str] = {}
    _find(graph.node, functions, numbers)
    # In the order of their numbers, which is that of first use. Copies: the originals belong to the field that is
    # cleared below.
    kept = [type(graph.library.function[0]).FromString(functions[name].SerializeToString()) for name in numbers]
    for function in kept:
        function.signature.name = numbers[function.signature.name]
        for name in _RELATIVES:
            function.attr.pop(name, None)
    for nodes in (graph.node, *(function.node_def for function in kept)):
        _rename(nodes, numbers)
    graph.library.ClearField("function")
    graph.library.ClearField("gradient")
    graph.library.function.extend(kept)


def _number_resources(graph: Any) -> None:
    """Name seed generators and caches in the order of their nodes, all at one device; each process makes its own."""
    numbers: dict[str, str] = {}
    for node in graph.node:
        for handle in node.attr["value"].tensor.resource_handle_val if "value" in node.attr else ():
            handle.name = numbers.setdefault(handle.name, f"resource_{len(numbers)}")
            handle.device, handle.container = _RESOURCES_AT


def _number_nodes(graph: Any) -> None:
    """Rename nodes, but for results, by operation and place, because some are named by a counter of the process."""
    numbers = {node.name: f"{node.op}/{place}" for place, node in enumerate(graph.node) if node.op != _RESULT}
    for node in graph.node:
        node.name = numbers.get(node.name, node.name)
        for place, entry in enumerate(node.input):
            name, colon, output = entry.partition(":")
            node.input[place] = f"{numbers.get(name, name)}{colon}{output}"


def _find(nodes: Iterable[Any], functions: Mapping[str, Any], numbers: dict[str, str]) -> None:
    """Give numbers to the functions that these nodes call, and that those call in turn, in order of first use."""
    for node in nodes:
        for called in _called(node):
            name = called.name
            if name in functions and name not in numbers:
                numbers[name] = f"function_{len(numbers):04}"
                _find(functions[name].node_def, functions, numbers)


def _called(node: Any) -> list[Any]:
    """Return the references to functions in a node's attributes, in an order that does not depend on a map's."""
    attributes = [node.attr[key] for key in sorted(node.attr)]
    references = [called for attribute in attributes for called in (attribute.func, *attribute.list.func)]
    return [called for called in references if called.name]


def _rename(nodes: Iterable[Any], numbers: Mapping[str, str]) -> None:
    """Rename the functions that nodes call, and drop debug information that differs between processes."""
    for node in nodes:
        for called in _called(node):
            called.name = numbers.get(called.name, called.name)
        node.ClearField("experimental_debug_info")
        if "metadata" in node.attr:
            node.attr["metadata"].s = b""
