"""The source `graph` over shards that are made up: what it hangs on, and what it refuses."""

from types import SimpleNamespace

import pytest

from loader_server.sources.pipeline import sharded_source
from loader_server.sources.pipeline.graph_source import GraphSettings, GraphSource
from loader_server.sources.source import OfJob
from shared.errors import DataError
from shared.pipelines.element_values import ElementValue, SentGraph

SENT = SentGraph((ElementValue("0", "int64", (None,)),), b"a graph")


@pytest.fixture
def make(tmp_path):
    def make(content=b"", seed=4, **settings):
        source = GraphSource(GraphSettings(**settings), tmp_path)
        source.of_job = OfJob(stream="sent", seed=seed, state=tmp_path)
        source.of_job.graph.parent.mkdir(exist_ok=True)
        source.of_job.graph.write_bytes(content or SENT.encode())
        return source

    return make


def test_its_elements_hang_on_graph_and_seed(make):
    assert make().made_of == make().made_of
    assert len({make().made_of, make(seed=5).made_of, make(b"another").made_of}) == 3
    assert make(producers=3).survey().total == 3


def test_without_a_graph_it_says_who_sends_one(make):
    source = make()
    source.of_job.graph.unlink()
    with pytest.raises(DataError, match=r"graphs/sent\.graph: expected the graph that a trainer sends.*distribute"):
        source.survey()


def test_a_shard_without_elements_is_refused(make, monkeypatch):
    empty = SimpleNamespace(values=SENT.values, next_element=lambda: None)
    monkeypatch.setattr(sharded_source, "ShardRun", lambda order, epoch, shard: empty)
    with pytest.raises(DataError, match="sent for sent, shard 1 of 2: expected elements in every shard, got none"):
        make(producers=2).probe(1)


def test_the_graph_is_built_for_the_shard_that_is_asked_for(make, monkeypatch):
    built = []
    monkeypatch.setattr(
        "loader_server.sources.pipeline.graph_source.dataset_of_graph", lambda sent, of: built.append((sent, of))
    )
    context = SimpleNamespace(epoch=2, shard=1, shards=3, capture=built.append)
    order = make(producers=3, replay="approximate").order
    order.function(context)
    (sent, of), captured = built
    assert (sent, of.seed, of.epoch, of.shard, of.shards, captured) == (SENT, 4, 2, 1, 3, None)
    assert (order.exact, order.shards, order.name) == (False, 3, "sent")


@pytest.mark.parametrize("content", [b"", b"\xc1", SENT.encode()[:-3], b"\x92\x91\x93\xa10\xa3cat\x90\xc4\x00"])
def test_other_bytes_are_no_graph(content):
    with pytest.raises(DataError, match="here: expected a graph as a trainer sends it, got"):
        SentGraph.decode(content, "here")
    assert SentGraph.decode(SENT.encode(), "here") == SENT
