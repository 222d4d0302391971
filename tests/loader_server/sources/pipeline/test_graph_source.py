"""The source `graph` over shards that are made up: what it hangs on, and what it refuses."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

import tests.support.two_devices  # before anything starts TensorFlow's runtime
from loader_server.sources.pipeline import sharded_source
from loader_server.sources.pipeline.graph_source import GraphSettings, GraphShard, GraphSource, dataset_of_graph
from loader_server.sources.source import OfJob
from shared.errors import DataError, SettingsError
from shared.pipelines.element_values import ElementValue, SentGraph
from trainer_client.tf.pipelines.graph import sent_graph

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


HINT = tf.data.experimental.SHARD_HINT


def run(data, epoch=0, shard=0, shards=1, seed=5):
    sent = SentGraph.decode(sent_graph(data).encode(), "here")
    of = GraphShard(seed=seed, epoch=epoch, shard=shard, shards=shards, where="train")
    return [int(one["0"]) for one in dataset_of_graph(sent, of)]


def numbers(count=20):
    return tf.data.Dataset.range(count)


def test_what_is_not_shuffled_is_what_it_was_here():
    data = numbers().map(lambda n: n * n, num_parallel_calls=4, deterministic=False).cache().prefetch(2)
    assert run(data) == [n * n for n in range(20)]


@pytest.mark.parametrize("seed", [None, 7])
def test_a_shuffle_hangs_on_job_epoch_and_shard_alone(seed):
    data = numbers().shuffle(20, seed=seed)
    first = run(data)
    assert first == run(data)
    assert sorted(first) == list(range(20))
    others = [run(data, epoch=1), run(data, seed=6), first, run(numbers().shuffle(20, seed=8))]
    assert len(set(map(tuple, others))) == 4
    assert sorted(run(data, shard=1, shards=2)) == list(range(1, 20, 2))


def test_shuffles_of_one_seed_go_together_and_unseeded_ones_do_not():
    def pairs(seed):
        left, right = numbers().shuffle(20, seed=seed), numbers().map(lambda n: n + 100).shuffle(20, seed=seed)
        return tf.data.Dataset.zip(left, right).map(lambda a, b: b - a)

    assert set(run(pairs(3))) == {100}
    assert len(set(run(pairs(None)))) > 5


def test_what_is_to_be_the_same_in_each_epoch_is():
    data = numbers().shuffle(20, reshuffle_each_iteration=False)
    assert run(data) == run(data, epoch=1) != list(range(20))


def test_shuffles_within_functions_are_not_sent():
    with pytest.raises(SettingsError, match="DummySeedGenerator is stateful"):
        run(numbers(3).flat_map(lambda n: tf.data.Dataset.range(10 * n, 10 * n + 10).shuffle(10)))


def lines(tmp_path):
    for part in (0, 1):
        (tmp_path / f"lines-{part}").write_text("".join(f"{n}\n" for n in range(part, 9, 2)))
    files = [str(tmp_path / f"lines-{part}") for part in (0, 1)]
    return tf.data.TextLineDataset(files).map(lambda one: tf.strings.to_number(one, tf.int64))


def test_shards_share_the_source_out(tmp_path):
    made = {
        "range": numbers(9).shuffle(9).map(lambda n: n).prefetch(1),
        "slices": tf.data.Dataset.from_tensor_slices(list(range(9))),
        "lines": lines(tmp_path),
    }
    for data in made.values():
        assert [sorted(run(data, shard=shard, shards=2)) for shard in (0, 1)] == [[0, 2, 4, 6, 8], [1, 3, 5, 7]]


def test_a_hint_says_where_they_share():
    data = numbers(9).take(6).shard(HINT, HINT)
    assert [run(data, shard=shard, shards=2) for shard in (0, 1)] == [[0, 2, 4], [1, 3, 5]]
    assert run(data) == list(range(6))


@pytest.mark.parametrize(
    ("data", "got"),
    [
        (lambda: numbers().take(3), "RangeDataset with TakeDataset"),
        (lambda: numbers().enumerate().map(lambda n, _: n), "RangeDataset, RangeDataset"),
        (lambda: tf.data.Dataset.from_tensors(1), "TensorDataset"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_with_the_hint(data, got):
    with pytest.raises(SettingsError, match=f"train: expected one source .* 2 producers, got {got}.*SHARD_HINT"):
        run(data(), shards=2)
    assert run(data())
