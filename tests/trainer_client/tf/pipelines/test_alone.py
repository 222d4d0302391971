"""A user's `dataset_pipeline` in one process, without loaders: on one sample, and on one file."""

import numpy as np
import pytest
import tensorflow as tf

import trainer_client


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
