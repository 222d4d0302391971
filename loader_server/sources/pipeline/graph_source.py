"""The source `graph`: a `tf.data` graph that a trainer sent, whose elements are the batches.

Rules: the graph lies in the job's state folder, where the coordinator or a worker put it; until then there is nothing
to index or to open. No user code is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from loader_server.sources.pipeline.graph_run import GraphShard, dataset_of_graph
from loader_server.sources.pipeline.shard_run import PipelineOrder
from loader_server.sources.pipeline.sharded_source import ShardedSource, ShardSettings
from loader_server.sources.source import Found, Inventory
from shared.errors import DataError
from shared.hashing import fingerprint
from shared.pipelines.element_values import SentGraph, digest_of_graph

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GraphSettings", "GraphSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSettings(ShardSettings):
    """Settings of a stream with source = "graph"."""


class GraphSource(ShardedSource):
    """Source of batches that a graph makes, shard by shard."""

    Settings = GraphSettings
    sent: ClassVar[bool] = True

    @property
    def where(self) -> str:
        """A name for messages: the stream that the graph was sent for."""
        return f"the graph sent for {self.of_job.stream}"

    @cached_property
    def _content(self) -> bytes:
        """The bytes of the graph; raises a DataError if no trainer has sent it yet."""
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
        """A fingerprint of graph and seed."""
        return fingerprint(digest_of_graph(self._content), str(self.of_job.seed))

    def survey(self) -> Inventory:
        """Return one piece for each shard."""
        return Inventory(
            total=self.producers,
            rows_unknown=True,
            pieces=lambda _: iter(range(self.producers)),
            about={"made_of": self.made_of},
        )

    def probe(self, piece: int) -> Found:
        """Run the shard; raise a DataError if it is empty, as the source cannot be divided among so many."""
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
        """What all runs have in common."""
        return PipelineOrder(
            function=_pipeline_of(SentGraph.decode(self._content, self.where), self.of_job.seed, self.where),
            where=self.where,
            name=self.of_job.stream,
            seed=self.of_job.seed,
            shards=self.producers,
            max_rows=1,
            exact=self.settings.replay == "exact",
            paths=(),
            base_fields=(),
            base=lambda _epoch, _shard: iter(()),
        )


def _pipeline_of(sent: SentGraph, seed: int, where: str) -> Callable[[Any], Any]:
    """Return the graph as a function of a context, like a user's function, with the marker at its end."""

    def run(context: Any) -> Any:
        of = GraphShard(seed=seed, epoch=context.epoch, shard=context.shard, shards=context.shards, where=where)
        dataset = dataset_of_graph(sent, of)
        context.capture(dataset)
        return dataset

    return run
