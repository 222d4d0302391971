"""A user's `dataset_pipeline` in a trainer and without loaders; the rest is in tests/end_to_end/test_pipeline.py."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import trainer_client
from shared.errors import SettingsError
from shared.pipelines.element_values import ElementValue, flat_values
from trainer_client.tf.pipelines.pipeline import element_tensors, make

VALUES = (
    ElementValue("feat", "float32", (None, None, 2)),
    ElementValue("fixed", "int64", (3,)),
    ElementValue("n", "int64", ()),
)


def batch_of(**element):
    return {key: tf.constant(np.asarray(array)[None]) for key, array in flat_values(VALUES, element).items()}


def test_each_value_gets_its_shape_back():
    feat = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    made = tf.function(lambda batch: element_tensors(VALUES, batch))(
        batch_of(feat=feat, fixed=np.arange(3), n=np.int64(7))
    )
    np.testing.assert_array_equal(made["feat"], feat)
    assert (made["fixed"].numpy().tolist(), int(made["n"])) == ([0, 1, 2], 7)


def test_an_empty_batch_keeps_what_is_fixed():
    batch = batch_of(feat=np.zeros((0, 0, 2), np.float32), fixed=np.zeros(3, np.int64), n=np.int64(0))
    batch["feat:shape"] = tf.zeros_like(batch["feat:shape"])
    assert element_tensors(VALUES, batch)["feat"].shape == (0, 0, 2)


def test_parts_are_joined_to_the_value_that_a_worker_had():
    values = (ElementValue("words:bytes", "uint8", (None,)), ElementValue("words:sizes", "int32", (2,)))
    element = {"words:bytes": np.frombuffer(b"onetwo", np.uint8), "words:sizes": np.full(2, 3, np.int32)}
    batch = {key: tf.constant(np.asarray(array)[None]) for key, array in flat_values(values, element).items()}
    assert element_tensors(values, batch)["words"].numpy().tolist() == [b"one", b"two"]


@pytest.mark.parametrize(
    ("function", "producers", "message"),
    [
        ("my_pipeline", 2, "expected a function of a context, or True for the default pipeline, got 'my_pipeline'"),
        (True, 0, 'expected a stream with source = "pipeline", got train, whose batches the planner makes'),
    ],
)
def test_what_is_no_pipeline_is_refused(function, producers, message):
    session = SimpleNamespace(spec=SimpleNamespace(producers=producers, stream="train"))
    with pytest.raises(SettingsError, match=message):
        make(session, function, "")


def pipeline(context):
    """What lies above and below the marker both shape the element."""
    data = context.base_dataset.map(
        lambda one: one | {"twice": 2 * one["feat"], "size:feat:0": tf.shape(one["feat"])[0]}
    )
    data = context.padded_batch(data)
    data = context.map_producer_to_consumer(data)
    data = data.map(lambda batch: (batch["twice"], batch["feat_length"]))
    return context.prefetch_to_consumer_device(data)


def from_files(context):
    assert (context.shards, context.shard, context.epoch) == (1, 0, 0)
    data = tf.data.TextLineDataset(context.paths).map(lambda line: {"line": line})
    return context.map_producer_to_consumer(data)


@pytest.mark.heritage("R15")
def test_the_function_of_a_job_decodes_one_sample():
    sample = {"feat": np.ones((3, 2), np.float32), "speaker": np.int64(4)}
    ((twice, length),) = trainer_client.run_pipeline(pipeline, [sample])
    np.testing.assert_array_equal(twice, np.full((1, 3, 2), 2))
    assert length.numpy().tolist() == [3]


def test_samples_of_different_lengths_make_a_padded_batch_and_the_default_pipeline_does_as_well():
    samples = [{"feat": np.full((length, 2), length, np.float32)} for length in (1, 3)]
    ((twice, lengths),) = trainer_client.run_pipeline(pipeline, samples)
    assert (twice.shape, lengths.numpy().tolist()) == ((2, 3, 2), [1, 3])
    ragged = trainer_client.run_pipeline(True, samples, max_rows=1)
    assert [one["feat"].shape for one in ragged] == [(1, 1, 2), (1, 3, 2)]
    assert [one["feat_length"].numpy().tolist() for one in ragged] == [[1], [3]]


def test_a_data_set_stands_for_the_base_as_it_is():
    base = tf.data.Dataset.from_tensors({"feat": tf.zeros([4, 2])})
    ((twice, _),) = trainer_client.run_pipeline(pipeline, base)
    assert twice.shape == (1, 4, 2)


def test_one_file_instead_of_the_jobs_files_and_values_that_never_cross(tmp_path):
    (tmp_path / "one.txt").write_text("bonjour\nça va\n")
    lines = trainer_client.run_pipeline(from_files, paths=[tmp_path / "one.txt"])
    assert [one["line"].numpy().decode() for one in lines] == ["bonjour", "ça va"]


@pytest.mark.parametrize(
    ("function", "samples", "message"),
    [
        ("my_pipeline", (), "expected a function of a context, or True for the default pipeline, got 'my_pipeline'"),
        (lambda context: context.base_dataset, (), r"expected one call of context\.map_producer_to_consumer"),
        (pipeline, [3], "expected samples that are dicts, got 3"),
        (pipeline, {"feat": 1}, "expected samples that are dicts, got 'feat'"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused(function, samples, message):
    with pytest.raises(trainer_client.SettingsError, match=message):
        trainer_client.run_pipeline(function, samples)
