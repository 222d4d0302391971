"""The source `graph`: a `tf.data` graph that a trainer sent, whose elements are the batches.

Rules: the graph lies in the job's state folder, where the coordinator or a worker put it; until then there is nothing
to index or to open. No user code is imported. What a shard holds depends on the graph, the job's seed, the epoch and
the shard, and on nothing that this process did before. So every seed in the graph is replaced by one derived from these
and from the user's own seed (equal ones stay equal; functions contain none, because a trainer cannot send such
functions), parallel work keeps its order, and resources get new names. With several shards, shard s has the source's
elements whose number is s modulo the number of shards; if it is unclear which source is meant, or if dividing it would
change the data set, the graph needs a hint. The graph is changed as plain protobuf messages, and then given to
TensorFlow.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from loader_server.sources.pipeline.shard_run import PipelineOrder, all_nodes
from loader_server.sources.pipeline.sharded_source import ShardedSource, ShardSettings
from loader_server.sources.source import Found
from shared.errors import DataError, SettingsError
from shared.hashing import fingerprint, key_of
from shared.pipelines.element_values import SentGraph, digest_of_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import tensorflow as tf

    from loader_server.sources.source import Found

__all__ = ["GraphSettings", "GraphShard", "GraphSource", "dataset_of_graph", "set_up"]

#: Operations with a pair of seeds, and which of their inputs these are.
_SEEDED = {
    "ShuffleDataset": (2, 3),
    "ShuffleDatasetV3": (2, 3),
    "ShuffleAndRepeatDataset": (2, 3),
    "ShuffleAndRepeatDatasetV2": (2, 3),
    "RandomDataset": (0, 1),
    "RandomDatasetV2": (0, 1),
}
_SHARD = "ShardDataset"
#: The value of tf.data.experimental.SHARD_HINT, which stands for both numbers of a hint.
_HINT = -1
#: Sources that give each element once, with the attribute that has their dtypes ("" if they give strings).
_SHAREABLE = {
    "RangeDataset": "output_types",
    "TensorSliceDataset": "Toutput_types",
    **dict.fromkeys(("TextLineDataset", "TFRecordDataset", "TFRecordDatasetV2", "FixedLengthRecordDatasetV2"), ""),
}
#: Operations that, behind a divided source, would take other elements than behind the whole one, or too many.
_POSITIONAL = frozenset(("TakeDataset", "SkipDataset", "TakeWhileDataset", "ScanDataset", "UniqueDataset"))
#: Names of operations that make data sets.
_A_DATASET = re.compile(r"Dataset(V\d+)?")
#: Numbers of TensorFlow's dtypes: DT_INT64 and DT_STRING.
_INT64, _STRING = 9, 7
_HINTED = (
    "Say where by dataset.shard(tf.data.experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT), or producers = 1."
)
#: Numbers the runs of this process, because no two of them may share a resource.
_RUNS = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSettings(ShardSettings):
    """Settings of a stream with source = "graph"."""


class GraphSource(ShardedSource):
    """Source of batches that a graph makes, shard by shard."""

    Settings = GraphSettings
    sent: ClassVar[bool] = True

    @property
    def where(self) -> str:
        """Return a name for messages: the stream that the graph was sent for."""
        return f"the graph sent for {self.of_job.stream}"

    @cached_property
    def _content(self) -> bytes:
        """Return the bytes of the graph; raise a DataError if no trainer has sent it yet, or it cannot be read."""
        # The coordinator may be waiting for the trainer that sends it, and serves other streams meanwhile.
        path = self.of_job.graph
        try:
            return path.read_bytes()
        except OSError as error:
            raise DataError(
                expected="the graph that a trainer sends",
                got=error.strerror or repr(error),
                where=str(path),
                remedy="Run the loaders, and call trainer_client.distribute(dataset, …) in a trainer.",
            ) from None

    @property
    def made_of(self) -> str:
        """Return a fingerprint of graph and seed; raise a DataError if the graph is not there or cannot be read."""
        return fingerprint(digest_of_graph(self._content), str(self.of_job.seed))

    def probe(self, piece: int) -> Found:
        """Run a shard of epoch 0, and return what it holds, as `ShardedSource.probe` does; it has an element at least.

        Raise a DataError if it is empty or no trainer has sent the graph yet, and besides what `ShardedSource.probe`
        raises.
        """
        found = super().probe(piece)
        if not found.rows:
            raise DataError(
                expected="elements in every shard",
                got="none",
                where=f"{self.where}, shard {piece} of {self.producers}",
                remedy="If files are divided among shards, write at most as many producers as there are files.",
            )
        return found

    @cached_property
    def order(self) -> PipelineOrder:
        """Return what all runs have in common.

        Raise a DataError if no trainer has sent the graph yet, or it cannot be read.
        """
        return PipelineOrder(
            function=_pipeline_of(SentGraph.decode(self._content, self.where), self.of_job.seed, self.where),
            where=self.where,
            name=self.of_job.stream,
            seed=self.of_job.seed,
            shards=self.producers,
            exact=self.settings.replay == "exact",
        )


def _pipeline_of(sent: SentGraph, seed: int, where: str) -> Callable[[Any], Any]:
    """Return the graph as a function of a context, like a user's function, with the marker at its end.

    The function raises what `dataset_of_graph` raises.
    """

    def run(context: Any) -> Any:
        dataset = dataset_of_graph(
            sent, GraphShard(seed=seed, epoch=context.epoch, shard=context.shard, shards=context.shards, where=where)
        )
        context.capture(dataset)
        return dataset

    return run


# --- the graph of a shard ---


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphShard:
    """Shard and epoch of a graph to run; `where` is for messages."""

    seed: int
    epoch: int
    shard: int
    shards: int
    where: str


def dataset_of_graph(sent: SentGraph, of: GraphShard) -> tf.data.Dataset:
    """Return the data set of one shard; its elements are dicts of the values that were sent along.

    Raise a SettingsError if the graph cannot be divided among several shards without a hint. What importing TensorFlow
    raises passes, and what TensorFlow or protobuf raises for a graph that it cannot use.
    """
    import tensorflow as tf  # only where pipelines are run

    graph = tf.compat.v1.GraphDef.FromString(sent.graph)
    set_up(graph, of)
    spec = {value.key: tf.TensorSpec(value.shape, value.dtype) for value in sent.values}
    return tf.data.experimental.from_variant(tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString()), spec)


def set_up(graph: Any, of: GraphShard) -> None:
    """Change a graph in place into that of one shard, with seeds, resource names and elements of this run's own.

    Parallel work keeps its order. Raise a SettingsError if the graph cannot be divided among several shards without a
    hint.
    """
    # Set on every operation, in functions as well: an operation's own setting overrides that of the whole pipeline.
    for node in all_nodes(graph):
        if "deterministic" in node.attr:
            node.attr["deterministic"].s = b"true"
    # Nodes of functions are left out: a trainer cannot send functions with seeds.
    _set_seeds(graph.node, of)
    run = next(_RUNS)
    for node in graph.node:
        # A resource with the name of an earlier run's would be that one, with its state.
        for handle in node.attr["value"].tensor.resource_handle_val if node.op == "Const" else ():
            handle.name = f"{handle.name} of run {run}"
    _share_out(graph, of)


def _inputs(node: Any, by_name: Mapping[str, Any], places: Sequence[int]) -> list[Any]:
    """Return the constants at these inputs of a node; None for an input that is not a constant."""
    feeding = [by_name.get(node.input[place].partition(":")[0]) for place in places]
    return [feeder if feeder is not None and feeder.op == "Const" else None for feeder in feeding]


def _number(constant: Any) -> int:
    """Return the value of an integer constant, which may be stored in either of two forms; 0 if it has neither."""
    tensor = constant.attr["value"].tensor
    if tensor.tensor_content:
        return int.from_bytes(tensor.tensor_content, "little", signed=True)
    return int(tensor.int64_val[0]) if tensor.int64_val else 0


def _set_number(constant: Any, number: int) -> None:
    """Set the value of a constant node to this integer, and drop the packed form that would come before it."""
    tensor = constant.attr["value"].tensor
    tensor.tensor_content = b""
    tensor.int64_val[:] = [number]


# --- seeds ---


def _set_seeds(nodes: Sequence[Any], of: GraphShard) -> None:
    """Replace the pairs of seeds of all operations that shuffle or draw, unless a seed of a pair is no constant."""
    by_name = {node.name: node for node in nodes}
    replaced = list[tuple[Any, int]]()
    for node in nodes:
        constants = _inputs(node, by_name, _SEEDED[node.op]) if node.op in _SEEDED else []
        if constants and None not in constants:
            replaced += zip(constants, _seeds(node, list(map(_number, constants)), of), strict=True)
    # In a second pass, so that no seed is read after it was replaced: nodes may share a constant.
    for constant, seed in replaced:
        _set_number(constant, seed)


def _seeds(node: Any, own: Sequence[int], of: GraphShard) -> tuple[int, int]:
    """Return a pair of seeds, never (0, 0); they follow from the job's seed, epoch, shard and the node's own seeds.

    Epoch and shard do not count if the graph asks for the same order in each epoch. A node without seeds of its own
    gets them from its name, so that two such nodes differ.
    """
    once = node.op.startswith("Shuffle") and not node.attr["reshuffle_each_iteration"].b
    part = () if once else (of.epoch, of.shard)
    key = key_of("graph", of.seed, *map(str, (*part, *own, *(() if any(own) else (node.name,)))))
    # Never (0, 0), which TensorFlow takes as a request to draw seeds.
    return (key & 0x7FFFFFFF) + 1, (key >> 32) & 0x7FFFFFFF


# --- shards ---


def _share_out(graph: Any, of: GraphShard) -> None:
    """Put shard numbers into the graph's hints; without a hint, divide its only source if there are several shards.

    Raise a SettingsError if there are several shards, no hint, and no single source that can be divided.
    """
    by_name = {node.name: node for node in graph.node}
    hints = [node for node in graph.node if node.op == _SHARD and _is_hint(node, by_name)]
    for node in hints:
        for constant, number in zip(_inputs(node, by_name, (1, 2)), (of.shards, of.shard), strict=True):
            _set_number(constant, number)
    if not hints and of.shards > 1:
        _insert_shard(graph, _only_source(graph, of), of)


def _is_hint(node: Any, by_name: Mapping[str, Any]) -> bool:
    """Return whether a shard node carries the marks of SHARD_HINT instead of numbers."""
    constants = _inputs(node, by_name, (1, 2))
    return None not in constants and list(map(_number, constants)) == [_HINT, _HINT]


def _only_source(graph: Any, of: GraphShard) -> Any:
    """Return the one source whose elements can be divided.

    Raise a SettingsError if there are several sources, one of another kind, or operations that depend on which elements
    came before.
    """
    datasets = {node.name: node for node in graph.node if _A_DATASET.search(node.op)}
    sources = [node for node in datasets.values() if not any(name.partition(":")[0] in datasets for name in node.input)]
    odd = sorted({node.op for node in datasets.values()} & _POSITIONAL)
    if len(sources) == 1 and not odd and sources[0].op in _SHAREABLE:
        return sources[0]
    raise SettingsError(
        expected=f"one source whose elements can be divided among {of.shards} producers",
        got=f"{', '.join(sorted(node.op for node in sources))}{' with ' if odd else ''}{', '.join(odd)}",
        where=of.where,
        remedy=_HINTED,
    )


def _insert_shard(graph: Any, source: Any, of: GraphShard) -> None:
    """Insert a shard node behind the source, and let all nodes that used the source use it instead.

    Raise KeyError if the kind of source cannot be shared, which the caller has checked.
    """
    name = f"{source.name}/shared_out"
    # Before the shard node is added, whose own input has to stay the source. Both forms name the first output.
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
    """Add an integer constant to the graph, and return its name."""
    node = graph.node.add(name=name, op="Const")
    node.attr["dtype"].type = node.attr["value"].tensor.dtype = _INT64
    node.attr["value"].tensor.tensor_shape.SetInParent()
    _set_number(node, number)
    return name
