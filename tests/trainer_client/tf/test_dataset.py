"""Feeds as datasets: structure, memory, and what reading must not change."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

from shared.errors import LostError, SettingsError
from shared.wire.batch_layout import BucketShape
from tests.support.fake_feed import SHAPES, FakeFeed
from tests.support.loaders import wait_until
from tests.support.two_devices import mirrored
from trainer_client.core.upcoming import Ranks

import keras  # isort: skip - after the devices are set
import tensorflow as tf  # isort: skip

from trainer_client.tf import dataset  # isort: skip

ONE_SHAPE = (BucketShape(rows=3, lengths={"audio": 8, "text": 2}),)


def test_what_is_tested_here_has_optimised_graphs():
    assert not tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer")


def tags_of(data):
    return [int(batch["tag"][0]) for batch in data]


def tags(epoch, count):
    return [(epoch * 1000 + number) * 100 for number in range(count)]


@pytest.fixture
def feed():
    feed = FakeFeed(epochs=(5, 3, 4))
    yield feed
    feed.close()


class TestElements:
    def test_without_a_form_it_is_a_dict_of_all_keys(self, feed):
        spec = feed.dataset().element_spec
        assert spec["audio"] == tf.TensorSpec((None, None, 3), tf.float32)
        assert spec["tag"] == tf.TensorSpec((None,), tf.int64)
        assert set(spec) == {field.key for field in feed.session.fields}

    def test_dimensions_on_which_buckets_agree_are_static(self):
        spec = FakeFeed(shapes=ONE_SHAPE).dataset().element_spec
        assert spec["audio"].shape == (3, 8, 3)

    def test_parts_mirror_what_they_are_given(self, feed):
        form = {"inputs": ("audio", "audio_length"), "targets": {"out": "text"}, "weights": "weight"}
        inputs, targets, weight = next(iter(feed.dataset(**form)))
        want = feed.session.content(0, 0)
        np.testing.assert_array_equal(inputs[0], want["audio"])
        np.testing.assert_array_equal(inputs[1], want["audio_length"])
        np.testing.assert_array_equal(targets["out"], want["text"])
        np.testing.assert_array_equal(weight, want["weight"])

    def test_inputs_alone_are_the_element(self, feed):
        assert feed.dataset(inputs="audio").element_spec == tf.TensorSpec((None, None, 3), tf.float32)

    def test_two_inputs_alone_are_not_taken_for_inputs_and_targets(self, feed):
        class Rows(keras.Model):
            def call(self, inputs):
                audio, length = inputs
                return tf.reduce_mean(audio, (1, 2)) * tf.cast(length, tf.float32)

            def train_step(self, data):
                (audio, _length), targets, _weights = keras.utils.unpack_x_y_sample_weight(data)
                assert targets is None
                return {"loss": tf.reduce_mean(audio)}

        model, data = Rows(), feed.dataset(inputs=("audio", "audio_length"))
        model.compile()
        assert len(model.predict(data, verbose=0)) > 0
        model.fit(data, verbose=0)

    def test_map_takes_the_dict(self, feed):
        data = feed.dataset(map=lambda batch: (batch["audio"] * 2, batch["weight"]))
        np.testing.assert_allclose(next(iter(data))[0], feed.session.content(0, 0)["audio"] * 2)

    def test_map_and_parts_together_are_refused(self, feed):
        with pytest.raises(SettingsError, match=r"expected inputs .* or map alone, got inputs and map"):
            feed.dataset(inputs="audio", map=lambda batch: batch)

    def test_targets_without_inputs_are_refused(self, feed):
        with pytest.raises(SettingsError, match="got targets"):
            feed.dataset(targets="text")

    def test_an_unknown_key_is_refused_before_any_step(self, feed):
        with pytest.raises(SettingsError, match=r'expected a key of the batches .audio, text.*got "video"'):
            feed.dataset(inputs="video")


class TestSeveralAtATime:
    @pytest.mark.parametrize("shapes", [ONE_SHAPE, SHAPES], ids=["one shape", "two shapes"])
    @pytest.mark.parametrize("form", [{}, {"inputs": ("audio", "tag"), "targets": "text", "weights": "weight"}])
    def test_they_come_out_one_by_one_as_they_are(self, shapes, form):
        one_by_one, stacked = (FakeFeed(epochs=(7, 5), shapes=shapes, at_a_time=several) for several in (1, 3))
        first, second = (feed.dataset(**form) for feed in (one_by_one, stacked))
        for _ in range(2):
            for expected, got in zip(first, second, strict=True):
                tf.nest.map_structure(np.testing.assert_array_equal, expected, got)
        assert (stacked.epoch, stacked.number) == (one_by_one.epoch, one_by_one.number) == (2, 0)
        assert first.element_spec == second.element_spec

    def test_a_map_sees_single_batches(self):
        feed = FakeFeed(epochs=(5,), shapes=ONE_SHAPE, at_a_time=4)
        ranks = [int(rank) for rank in feed.dataset(map=lambda batch: tf.rank(batch["audio"]))]
        assert ranks == [3] * 5

    def test_slots_are_free_again_at_once(self):
        feed = FakeFeed(epochs=(20,), shapes=ONE_SHAPE, at_a_time=4, slots=4)
        kept = list(feed.dataset())
        assert len(kept) == 20
        assert feed.session.copies == 0
        assert feed.session.free.qsize() == 4

    def test_an_error_among_them_is_raised_behind_those_before(self):
        feed = FakeFeed(epochs=(9,), shapes=ONE_SHAPE, at_a_time=4, fail_at=(0, 6))
        iterator, seen = iter(feed.dataset()), []
        with pytest.raises(LostError):
            seen.extend(int(batch["tag"][0]) for batch in iterator)
        assert seen == tags(0, 6)


class TestMemory:
    @pytest.mark.skipif("dataset.copies_batches()", reason="this TensorFlow copies what generators yield")
    def test_a_batch_enters_tensorflow_where_it_lies(self, feed):
        slots = [feed.session.free.get() for _ in range(feed.session.slots)]
        places = [(slot.ctypes.data, slot.ctypes.data + slot.nbytes) for slot in slots]
        for slot in slots:
            feed.session.free.put(slot)
        for batch in feed.dataset():
            address = np.asarray(memoryview(batch["audio"])).ctypes.data
            assert any(start <= address < end for start, end in places)

    def test_whoever_keeps_every_batch_is_served_to_the_end(self):
        feed = FakeFeed(epochs=(20,), slots=4)
        kept = list(feed.dataset())
        for number, batch in enumerate(kept):
            for key, want in feed.session.content(0, number).items():
                np.testing.assert_array_equal(batch[key], want)
        assert (0 < feed.session.copies <= 20) or dataset.copies_batches()

    def test_a_shuffle_buffer_larger_than_all_slots(self):
        feed = FakeFeed(epochs=(20,), slots=3)
        assert sorted(tags_of(feed.dataset().shuffle(20))) == tags(0, 20)

    @pytest.mark.parametrize("slots", [2, 4])
    def test_a_whole_epoch_inside_one_graph_does_not_stall(self, slots):
        feed = FakeFeed(epochs=(60,), slots=slots)

        @tf.function
        def epoch(data):
            total = tf.constant(0, tf.int64)
            for batch in data:
                total += tf.reduce_sum(batch["tag"])
            return total

        want = sum(int(feed.session.content(0, number)["tag"].sum()) for number in range(60))
        assert int(epoch(feed.dataset())) == want

    def test_slots_come_back_without_copies_when_the_consumer_lets_go(self):
        feed = FakeFeed(epochs=(60,), slots=8)
        for _ in feed.dataset():
            pass
        assert feed.session.copies == 0

    @pytest.mark.skipif("dataset.copies_batches()", reason="this TensorFlow copies, and that is done ahead")
    def test_each_element_is_fetched_by_who_asks_for_it_and_none_ahead(self):
        feed, threads = FakeFeed(epochs=(60,), slots=64), set()
        iterator = iter(feed.dataset())
        feed.session.fill = lambda *_: threads.add(threading.get_ident())
        for _ in range(30):
            next(iterator)
        assert len(feed.session.yielded) == 30
        assert threads == {threading.get_ident()}

    def test_where_tensorflow_has_work_it_reads_ahead_no_further_than_its_prefetch(self):
        feed, threads = FakeFeed(epochs=(60,), slots=64), set()
        iterator = iter(feed.dataset(map=lambda batch: batch["tag"]))
        feed.session.fill = lambda *_: threads.add(threading.get_ident())
        for _ in range(30):
            next(iterator)
        assert len(feed.session.yielded) <= 30 + dataset.PREFETCH + 1
        assert threading.get_ident() not in threads

    def test_prefetched_to_a_device_it_arrives_there(self, feed, monkeypatch):
        monkeypatch.setattr(dataset, "_accelerator", lambda: "/cpu:1")
        data = feed.dataset()
        batches = list(data)
        assert batches[0]["audio"].device.endswith("CPU:1")
        assert [int(batch["tag"][0]) for batch in batches] == tags(0, 5)
        assert len(list(data.map(lambda batch: batch["audio"]).take(2))) == 2


class TestCursor:
    def test_each_iteration_to_the_end_gives_the_next_epoch(self, feed):
        data = feed.dataset()
        assert [tags_of(data) for _ in range(4)] == [tags(0, 5), tags(1, 3), tags(2, 4), tags(3, 5)]
        assert (feed.epoch, feed.number) == (4, 0)

    def test_take_changes_nothing(self, feed):
        data = feed.dataset()
        assert len(list(data.take(1))) == 1
        assert len(list(data.take(99))) == 5
        assert (feed.epoch, feed.number) == (0, 0)
        assert tags_of(data) == tags(0, 5)

    def test_adapt_changes_nothing(self, feed):
        data = feed.dataset(inputs="audio", targets="tag")
        layer = keras.layers.Normalization()
        layer.adapt(data.map(lambda audio, _tag: audio))
        assert (feed.epoch, feed.number) == (0, 0)
        assert [int(tag[0]) for _, tag in data] == tags(0, 5)

    def test_what_is_derived_warns_when_it_seems_to_be_trained_on(self, feed, caplog):
        derived = feed.dataset().map(lambda batch: batch["tag"])
        list(derived)
        assert caplog.messages == []
        list(derived)
        list(derived)
        (message,) = caplog.messages
        assert "count nothing: to train on one, use FeedCheckpoint or feed.trained()" in message

    def test_nothing_is_made_for_what_is_derived_before_something_is_and_then_once(self, feed):
        traced = []

        def mapped(batch):
            traced.append(batch)
            return batch["tag"]

        data = feed.dataset(map=mapped)
        assert data.element_spec.shape == (None,)
        assert [int(tag[0]) for tag in data] == tags(0, 5)
        assert len(traced) == 1
        largest = tf.function(lambda: data.take(2).reduce(tf.constant(0, tf.int64), lambda _, tag: tag[0]))
        assert int(largest()) == tags(1, 2)[-1]
        assert [int(tag[0]) for tag in data.take(2)] == tags(1, 2)
        assert len(traced) == 2

    def test_what_is_derived_may_be_trained_on_by_who_counts(self, feed):
        derived = feed.dataset().map(lambda batch: batch["tag"])
        for count in (5, 3, 4):
            assert len(list(derived)) == count
            feed.trained(count)

    def test_leaving_early_changes_nothing(self, feed):
        data = feed.dataset()
        for _ in data:
            break
        assert tags_of(data) == tags(0, 5)

    def test_looking_at_the_first_batch_of_an_epoch_that_was_all_read_ahead_changes_nothing(self):
        feed = FakeFeed(epochs=(2,))
        data = feed.dataset()
        for _ in range(3):
            assert int(next(iter(data))["tag"][0]) == 0
        assert (feed.epoch, feed.number) == (0, 0)

    def test_what_a_graph_consumed_counts_when_the_dataset_is_iterated_again(self, feed):
        data = feed.dataset()

        @tf.function
        def steps(iterator, count):
            for _ in tf.range(count):
                tf.debugging.assert_greater(tf.reduce_sum(next(iterator)["weight"]), 0.0)

        for count in (5, 3):
            steps(iter(data), tf.constant(count))
        assert tags_of(data) == tags(2, 4)

    def test_who_counts_himself_is_not_counted_for(self, feed):
        data = feed.dataset()
        for _ in data:
            feed.trained()
        assert (feed.epoch, feed.number) == (1, 0)
        for count, _ in enumerate(data):
            if count == 1:
                feed.trained(2)
        feed.trained(1)
        assert (feed.epoch, feed.number) == (2, 0)
        assert tags_of(data) == tags(2, 4)

    def test_counting_after_the_end_adds_nothing_to_the_drain(self, feed):
        steps = len(list(feed.dataset()))
        feed.trained(steps)
        assert (feed.epoch, feed.number) == (1, 0)

    def test_an_evaluation_stream_gives_the_same_epoch_each_time(self):
        feed = FakeFeed(epochs=(4,), evaluation=True)
        data = feed.dataset()
        next(iter(data))
        assert tags_of(data) == tags_of(data) == tags(0, 4)
        assert int(data.cardinality()) == 4

    def test_a_pass_ends_with_its_iterator(self, feed):
        opened, open_one = [], feed.session.open
        feed.session.open = lambda **how: opened.append(open_one(**how)) or opened[-1]
        iterator = iter(feed.dataset().take(3))
        next(iterator)
        assert not opened[0].closed
        del iterator
        gc.collect()
        wait_until(lambda: opened[0].closed, "it is closed")


class TestErrors:
    def test_a_loop_gets_the_original(self):
        feed = FakeFeed(fail_at=(0, 3))
        seen = []
        with pytest.raises(LostError, match=r"worker w1: expected an answer, got none. Start a worker") as caught:
            seen.extend(int(batch["tag"][0]) for batch in feed.dataset())
        assert caught.value is feed.session.error
        assert (feed.epoch, feed.number) == (0, 0)

    def test_inside_a_graph_it_is_named(self):
        feed = FakeFeed(fail_at=(0, 3))

        @tf.function
        def epoch(data):
            for batch in data:
                tf.reduce_sum(batch["tag"])

        with pytest.raises(tf.errors.UnknownError, match=r"LostError.*Start a worker"):
            epoch(feed.dataset())
        assert isinstance(feed.session.error, LostError)

    def test_an_error_is_no_end_however_often_one_asks(self):
        feed = FakeFeed(fail_at=(0, 1))
        iterator = iter(feed.dataset())
        next(iterator)
        for _ in range(4):
            with pytest.raises(LostError):
                next(iterator)


class TestStrategies:
    def test_each_replica_gets_its_place_of_every_round(self):
        feed = FakeFeed(epochs=(3,), replicas=2, slots=16)
        strategy = mirrored()
        data = feed.distributed(strategy)
        rounds = [[int(tag[0]) for tag in strategy.experimental_local_results(batch["tag"])] for batch in data]
        assert rounds == [[0, 100], [200, 300], [400, 500]]

    def test_a_distributed_epoch_counts_when_it_was_consumed_to_its_end(self):
        feed = FakeFeed(epochs=(3, 2), replicas=2, slots=16)
        data = feed.distributed(mirrored())
        next(iter(data))
        assert [len(list(data)) for _ in range(3)] == [3, 2, 3]

    def test_a_feed_of_other_ranks_is_refused(self, feed):
        with pytest.raises(SettingsError, match=r"expected a feed of 2 ranks.*got one of 1.*strategy=strategy"):
            feed.distributed(mirrored())

    def test_a_plain_dataset_in_a_scope_of_replicas_warns_once(self, feed):
        data = feed.dataset()
        with mirrored().scope():
            with pytest.warns(UserWarning, match=r"strategy with 2 replicas.*feed.distributed"):
                iter(data)
            iter(data)

    def test_a_plain_dataset_of_several_ranks_warns(self):
        with pytest.warns(UserWarning, match="occupies 2 ranks"):
            FakeFeed(replicas=2).dataset()

    def test_ranks_of_one_process(self):
        assert dataset.ranks_of(tf.distribute.get_strategy()) == Ranks(rank=0, replicas=1, world=1)
        assert dataset.ranks_of(mirrored()) == Ranks(rank=0, replicas=2, world=2)

    @pytest.mark.parametrize(("task", "index", "want"), [("chief", 0, 0), ("worker", 0, 2), ("worker", 1, 4)])
    def test_ranks_of_a_cluster_count_the_chief_first(self, task, index, want):
        assert dataset.ranks_of(_cluster(task, index, chief=["a:1"])) == Ranks(rank=want, replicas=2, world=6)

    def test_ranks_of_a_cluster_without_a_chief(self):
        assert dataset.ranks_of(_cluster("worker", 1, replicas=1)) == Ranks(rank=1, replicas=1, world=2)


def _cluster(task, index, *, chief=None, replicas=2):
    jobs = {"worker": ["b:1", "c:1"]} | ({"chief": chief} if chief else {})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs), task_type=task, task_id=index
    )

    class Cluster(tf.distribute.MultiWorkerMirroredStrategy):
        def __init__(self):
            pass

        num_replicas_in_sync = replicas * sum(len(hosts) for hosts in jobs.values())
        cluster_resolver = resolver

    return Cluster()


def test_warm_up_runs_each_shape_once_largest_first_with_masked_rows_only():
    small, large = (BucketShape(rows=rows, lengths={"audio": 8 * rows, "text": 2}) for rows in (2, 4))
    feed = FakeFeed(shapes=(small, large))
    shapes = []

    def step(element):
        inputs, weight = element
        assert float(tf.reduce_sum(weight)) == 0
        shapes.append(tuple(inputs.shape))

    feed.warm_up(step, map=lambda batch: (batch["audio"], batch["weight"]))
    assert shapes == [(4, 32, 3), (2, 16, 3)]
    assert feed.session.openings == 0


def test_warm_up_traces_many_shapes_without_a_warning_and_leaves_other_warnings(caplog):
    shapes = tuple(BucketShape(rows=rows, lengths={"audio": 8, "text": 2}) for rows in range(2, 8))
    step = tf.function(tf.reduce_sum, reduce_retracing=False)
    with caplog.at_level("WARNING", "tensorflow"):
        tf.get_logger().addHandler(caplog.handler)
        try:
            FakeFeed(shapes=shapes).warm_up(step, inputs="audio")
            assert step.experimental_get_tracing_count() == len(shapes)
            tf.get_logger().warning("triggered tf.function retracing, afterwards")
        finally:
            tf.get_logger().removeHandler(caplog.handler)
    assert {record.getMessage() for record in caplog.records} == {"triggered tf.function retracing, afterwards"}


def test_the_package_alone_imports_no_tensorflow():
    code = (
        "import sys, trainer_client.tf.ctrl_c, trainer_client.tf.element_structure; print('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
