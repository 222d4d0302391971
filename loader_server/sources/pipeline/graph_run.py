"""A graph that a trainer sent, as a data set of one shard of one epoch.

Rules: what a shard holds depends on the graph, the job's seed, the epoch and the shard, and on nothing that this
process did before. So all seeds in the graph are replaced by seeds derived from these and from the user's own (equal
ones stay equal; functions contain none, because a trainer cannot send such functions); parallel work keeps its order;
and resources are new ones. With several shards, shard s has the source's elements whose number is s modulo the number
of shards; if it is unclear which source is meant, or that would change the data set, a hint in the graph has to say it.
The graph is changed as plain protobuf messages, and then given to TensorFlow.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import SettingsError
from shared.hashing import key_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import tensorflow as tf

    from shared.pipelines.sent_graph import SentGraph

__all__ = ["GraphShard", "dataset_of_graph", "set_up"]

#: The inputs of these operations that are a pair of seeds.
_SEEDED = {
    "ShuffleDataset": (2, 3),
    "ShuffleDatasetV3": (2, 3),
    "ShuffleAndRepeatDataset": (2, 3),
    "ShuffleAndRepeatDatasetV2": (2, 3),
    "RandomDataset": (0, 1),
    "RandomDatasetV2": (0, 1),
}
_SHARD = "ShardDataset"
#: Stands in a hint for both its numbers: tf.data.experimental.SHARD_HINT.
_HINT = -1
#: Sources that give each element once, and the attribute with their dtypes; lines are strings.
_SHAREABLE = {
    "RangeDataset": "output_types",
    "TensorSliceDataset": "Toutput_types",
    **dict.fromkeys(("TextLineDataset", "TFRecordDataset", "TFRecordDatasetV2", "FixedLengthRecordDatasetV2"), ""),
}
#: After a source that is divided among shards, these would take other elements, or too many.
_POSITIONAL = frozenset(("TakeDataset", "SkipDataset", "TakeWhileDataset", "ScanDataset", "UniqueDataset"))
_A_DATASET = re.compile(r"Dataset(V\d+)?")
_INT64, _STRING = 9, 7
_HINTED = (
    "Say where by dataset.shard(tf.data.experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT), or producers = 1."
)
#: Counts runs, because no two runs in a process may share a resource.
_RUNS = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphShard:
    """Which part of which epoch is asked for; `where` is for messages."""

    seed: int
    epoch: int
    shard: int
    shards: int
    where: str


def dataset_of_graph(sent: SentGraph, of: GraphShard) -> tf.data.Dataset:
    """The data set, with dicts of the values that were sent along as elements."""
    import tensorflow as tf  # only where pipelines are run

    graph = tf.compat.v1.GraphDef.FromString(sent.graph)
    set_up(graph, of)
    spec = {value.key: tf.TensorSpec(value.shape, value.dtype) for value in sent.values}
    return tf.data.experimental.from_variant(tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString()), spec)


def set_up(graph: Any, of: GraphShard) -> None:
    """Make the graph that of one shard."""
    for node in (*graph.node, *(node for one in graph.library.function for node in one.node_def)):
        if "deterministic" in node.attr:
            node.attr["deterministic"].s = b"true"
    _set_seeds(graph.node, of)
    run = next(_RUNS)
    for node in graph.node:
        for handle in node.attr["value"].tensor.resource_handle_val if node.op == "Const" else ():
            handle.name = f"{handle.name} of run {run}"
    _share_out(graph, of)


def _inputs(node: Any, by_name: Mapping[str, Any], places: Sequence[int]) -> list[Any]:
    """The constants at these inputs; None for an input that is not a constant."""
    found = [by_name.get(node.input[place].partition(":")[0]) for place in places]
    return [one if one is not None and one.op == "Const" else None for one in found]


def _number(constant: Any) -> int:
    tensor = constant.attr["value"].tensor
    if tensor.tensor_content:
        return int.from_bytes(tensor.tensor_content, "little", signed=True)
    return int(tensor.int64_val[0]) if tensor.int64_val else 0


def _set_number(constant: Any, number: int) -> None:
    tensor = constant.attr["value"].tensor
    tensor.tensor_content = b""
    tensor.int64_val[:] = [number]


# --- seeds ---


def _set_seeds(nodes: Sequence[Any], of: GraphShard) -> None:
    by_name = {node.name: node for node in nodes}
    found = []
    for node in nodes:
        constants = _inputs(node, by_name, _SEEDED[node.op]) if node.op in _SEEDED else []
        if constants and None not in constants:
            said = [_number(one) for one in constants]
            found.append((constants, _seeds(node, said, of)))
    for constants, seeds in found:
        for constant, seed in zip(constants, seeds, strict=True):
            _set_number(constant, seed)


def _seeds(node: Any, said: Sequence[int], of: GraphShard) -> tuple[int, int]:
    """Two seeds, the same in each epoch if the graph asks for that."""
    once = node.op.startswith("Shuffle") and not node.attr["reshuffle_each_iteration"].b
    part = () if once else (of.epoch, of.shard)
    own = (*said, *(() if any(said) else (node.name,)))
    key = key_of("graph", of.seed, *map(str, (*part, *own)))
    return (key & 0x7FFFFFFF) + 1, (key >> 32) & 0x7FFFFFFF


# --- shards ---


def _share_out(graph: Any, of: GraphShard) -> None:
    by_name = {node.name: node for node in graph.node}
    hints = [node for node in graph.node if node.op == _SHARD and _is_hint(node, by_name)]
    for node in hints:
        for constant, number in zip(_inputs(node, by_name, (1, 2)), (of.shards, of.shard), strict=True):
            _set_number(constant, number)
    if not hints and of.shards > 1:
        _insert_shard(graph, _only_source(graph, of), of)


def _is_hint(node: Any, by_name: Mapping[str, Any]) -> bool:
    constants = _inputs(node, by_name, (1, 2))
    return None not in constants and [_number(one) for one in constants] == [_HINT, _HINT]


def _only_source(graph: Any, of: GraphShard) -> Any:
    datasets = {node.name: node for node in graph.node if _A_DATASET.search(node.op)}
    sources = [one for one in datasets.values() if not any(name.partition(":")[0] in datasets for name in one.input)]
    odd = sorted({one.op for one in datasets.values()} & _POSITIONAL)
    if len(sources) == 1 and not odd and sources[0].op in _SHAREABLE:
        return sources[0]
    got = f"{', '.join(sorted(one.op for one in sources))}{' with ' if odd else ''}{', '.join(odd)}"
    raise SettingsError(
        expected=f"one source whose elements can be divided among {of.shards} producers",
        got=got,
        where=of.where,
        remedy=_HINTED,
    )


def _insert_shard(graph: Any, source: Any, of: GraphShard) -> None:
    name = f"{source.name}/shared_out"
    for node in graph.node:
        for place, entry in enumerate(node.input):
            if entry in {source.name, f"{source.name}:0"}:
                node.input[place] = name
    numbers = [_constant(graph, f"{name}/{place}", number) for place, number in enumerate((of.shards, of.shard))]
    shard = graph.node.add(name=name, op=_SHARD, input=[source.name, *numbers])
    if types := _SHAREABLE[source.op]:
        shard.attr["output_types"].CopyFrom(source.attr[types])
        shard.attr["output_shapes"].CopyFrom(source.attr["output_shapes"])
    else:
        shard.attr["output_types"].list.type.append(_STRING)
        shard.attr["output_shapes"].list.shape.add()
    shard.attr["require_non_empty"].b = False


def _constant(graph: Any, name: str, number: int) -> str:
    node = graph.node.add(name=name, op="Const")
    node.attr["dtype"].type = node.attr["value"].tensor.dtype = _INT64
    node.attr["value"].tensor.tensor_shape.SetInParent()
    _set_number(node, number)
    return name
