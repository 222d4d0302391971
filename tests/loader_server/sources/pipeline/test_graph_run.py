"""A graph in a loader: the same elements whenever it is run for one shard of one epoch, and each once in all shards."""

import pytest
import tensorflow as tf

import tests.support.two_devices  # before anything starts TensorFlow's runtime
from loader_server.sources.pipeline.graph_run import GraphShard, dataset_of_graph
from shared.errors import SettingsError
from shared.pipelines.element_values import SentGraph
from trainer_client.tf.pipelines.graph import sent_graph

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
