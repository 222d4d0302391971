"""What a run of a shard gives, and what it refuses. TensorFlow runs in this process."""

import numpy as np
import pytest
import tensorflow as tf

import tests.support.two_devices  # before anything starts TensorFlow's runtime
from loader_server.sources.pipeline.shard_run import PipelineOrder, ShardRun
from shared.errors import DataError, SettingsError
from shared.wire.batch_layout import Field

Dataset = tf.data.Dataset
LENGTHS = (Field(key="text", dtype="int32", shape=(None,)),)


def run_of(function, epoch=0, shard=0, **other):
    order = {
        "function": function, "where": "my:pipeline", "name": "train", "seed": 3, "shards": 2, "max_rows": 2,
        "exact": True, "paths": (), "base_fields": LENGTHS, "base": samples,
    }  # fmt: skip
    return ShardRun(PipelineOrder(**{**order, **other}), epoch, shard)


def samples(epoch, shard):
    for length in range(1, 6):
        yield {"text": np.full(length, 10 * epoch + shard, np.int32)}


def elements(run):
    return list(iter(run.next_element, None))


def marked(dataset, **keys):
    """A pipeline with this above the marker."""
    return lambda context: context.map_producer_to_consumer(dataset(context))


def numbers(draw, **how):
    return marked(lambda _: Dataset.range(40).map(lambda n: {"n": n, "drawn": draw(n)}, **how))


def test_a_shard_has_its_own_samples_and_draws_its_own_numbers():
    def function(context):
        assert (context.dataset_name, context.shards, context.paths) == ("train", 2, ())
        data = context.base_dataset.map(lambda one: one | {"drawn": tf.random.uniform([])}).shuffle(9)
        return context.map_producer_to_consumer(context.padded_batch(context.add_lengths(data)))

    first, again, other_epoch, other_shard = (
        elements(run_of(function, *which)) for which in ((1, 0), (1, 0), (2, 0), (1, 1))
    )
    assert [one["text"].shape[0] for one in first] == [2, 2, 1]
    assert {int(one["text"].max()) for one in first} == {10}
    assert {int(one["text"].max()) for one in other_shard} == {11}
    drawn = [np.concatenate([one["drawn"] for one in run]).tolist() for run in (first, again, other_epoch, other_shard)]
    assert drawn[0] == drawn[1]
    assert len(set(map(tuple, drawn))) == 3
    np.testing.assert_equal(first, again)
    assert sorted(length for one in first for length in one["text_length"]) == [1, 2, 3, 4, 5]


def test_batches_of_the_bases_samples_are_padded_as_the_base_is():
    def function(context):
        data = context.base_dataset.map(lambda one: one | {"added": tf.cast(one["text"], tf.float32)})
        return context.map_producer_to_consumer(context.padded_batch(data))

    first, *_ = elements(run_of(function, shard=1, padding={"text": np.int32(7), "gone": np.int32(9)}))
    assert first["text"].tolist() == [[1, 7], [1, 1]]
    assert first["added"].tolist() == [[1, 0], [1, 1]]

    def without_keys(context):
        return context.padded_batch(context.base_dataset.map(lambda one: one["text"])).map(lambda text: {"text": text})

    def as_bytes(context):
        return context.padded_batch(context.base_dataset.map(lambda one: {"text": tf.cast(one["text"], tf.uint8)}))

    for dataset in (without_keys, as_bytes):
        first, *_ = elements(run_of(marked(dataset), shard=1, padding={"text": np.int32(7)}))
        assert first["text"].tolist() == [[1, 0], [1, 1]]


def test_lengths_by_the_name_of_an_axis_get_plain_names():
    data = Dataset.from_tensors({"data": [[1.0]], "size:data:0": 1, "size:data:1": 2})
    run = run_of(marked(lambda _: data))
    assert [value.key for value in run.values] == ["data", "data_length", "data_length_1"]
    assert int(run.next_element()["data_length_1"]) == 2
    assert run.next_element() is None


def test_strings_and_ragged_values_cross_in_parts():
    data = Dataset.from_tensors({"words": ["one", "é"], "rows": tf.ragged.constant([[1], [], [2, 3]])})
    (element,) = elements(run_of(marked(lambda _: data)))
    assert element["words:bytes"].tobytes() == "oneé".encode()
    assert {key: value.tolist() for key, value in element.items() if key != "words:bytes"} == {
        "words:sizes": [3, 2],
        "rows:flat": [1, 2, 3],
        "rows:rows_0": [1, 0, 2],
    }


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda context: context.base_dataset, r"expected one call of context\.map_producer_to_consumer.*got 0 calls"),
        (marked(lambda _: Dataset.range(3).repeat()), r"expected a pipeline that ends with its epoch.*take\(n\)"),
        (marked(lambda _: Dataset.range(3)), "expected a dict of tensors as element"),
        (marked(lambda _: Dataset.from_tensors({"z": 1j})), '"z" as a tensor of numbers or strings, .* complex128'),
        (marked(lambda _: Dataset.from_tensors({"r": 1}).window(1)), '"r" as a dense, ragged or .*, got DatasetSpec'),
        (marked(lambda _: Dataset.from_tensors({f"k{n}": 1 for n in range(63)})), "cross as 64 tensors, got 65"),
        (marked(lambda _: Dataset.from_tensors({"size:a:0": 1, "a_length": 1})), 'each key once, got "a_length" twice'),
        (numbers(lambda _: 0, num_parallel_calls=2, deterministic=False), "keeps the order .*got deterministic=False"),
        (numbers(lambda _: tf.random.uniform([]), num_parallel_calls=2), "draw without .*got RandomUniform.*stateless"),
    ],
)  # fmt: skip
def test_what_cannot_cross_or_would_differ_is_refused(function, message):
    with pytest.raises(SettingsError, match=f"(?s)^my:pipeline.*{message}"):
        run_of(function)


def test_draws_that_do_not_depend_on_who_comes_first_pass():
    def draw(n):
        return tf.random.stateless_uniform([], seed=[1, n])

    parallel, plain = elements(run_of(numbers(draw, num_parallel_calls=4))), elements(run_of(numbers(draw)))
    assert [int(one["n"]) for one in parallel] == list(range(40))
    np.testing.assert_equal(parallel, plain)
    run_of(numbers(lambda _: tf.random.uniform([]), num_parallel_calls=2, deterministic=False), exact=False)


@pytest.mark.parametrize(("said", "tuned"), [(None, False), (True, True)])
def test_no_thread_tunes_it_unless_the_user_says_so_because_letting_it_go_waits_for_that_thread(said, tuned):
    def pipeline(context):
        options = tf.data.Options()
        if said is not None:
            options.autotune.enabled = said
        counted = Dataset.range(40).map(lambda n: {"n": n}, num_parallel_calls=tf.data.AUTOTUNE)
        return context.map_producer_to_consumer(counted.with_options(options))

    run = run_of(pipeline)
    assert run._elements._dataset.options().autotune.enabled is tuned
    assert [int(one["n"]) for one in elements(run)] == list(range(40))


def test_an_exception_comes_with_its_traceback():
    def raising(n):
        if n == 2:
            raise KeyError("no such speaker")
        return n

    data = Dataset.range(3).map(lambda n: {"n": tf.ensure_shape(tf.numpy_function(raising, [n], tf.int64), [])})
    run = run_of(marked(lambda _: data), epoch=4, shard=1)
    assert [int(run.next_element()["n"]) for _ in range(2)] == [0, 1]
    with pytest.raises(
        DataError, match=r"(?s)^my:pipeline, shard 1 of epoch 4: .*no such speaker.*in raising"
    ) as caught:
        run.next_element()
    assert "expected element 2 to be made" in str(caught.value)
