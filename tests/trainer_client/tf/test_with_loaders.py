"""TensorFlow's side over real loaders: what the fake feed promises, the real one keeps."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading

import numpy as np
import pytest

import trainer_client
from tests.support.loaders import running, wait_until, write_job
from tests.support.two_devices import mirrored

import keras  # isort: skip - after the devices are set
import tensorflow as tf  # isort: skip

from tests.support.tiny_models import take_back, tiny_model  # isort: skip
from trainer_client.core import stream_spec  # isort: skip


def named(batch):
    """What a recorder needs; a batch is told by its largest tag, since a masked row has none."""
    inputs = {"audio": batch["audio"], "tag": tf.reduce_max(batch["tag"], keepdims=True)}
    return inputs, batch["weight"], batch["weight"]


class StopAt(keras.callbacks.Callback):
    def __init__(self, feed, number):
        super().__init__()
        self.feed = feed
        self.number = number

    def on_train_batch_end(self, batch, logs=None):
        if self.feed.number >= self.number:
            raise ZeroDivisionError


@pytest.fixture(scope="module")
def loaders(tmp_path_factory):
    job = write_job(tmp_path_factory.mktemp("tf"), samples=150, longest_s=0.5, budget="4 s", job="group = 2")
    with running(job, workers=2) as loaders:
        yield loaders


@pytest.fixture(autouse=True, params=[1, 16], ids=["one by one", "several at a time"])
def at_a_time(request, monkeypatch):
    """Batches here are small and would go several at a time: the way of large ones is tried as well."""
    monkeypatch.setattr(stream_spec, "_MOST_AT_A_TIME", request.param)
    return request.param


def tags_of_epochs(endpoint, epochs):
    with trainer_client.connect(endpoint) as feed:
        feed._session.cursor.rewind()
        return [[int(batch["tag"].max()) for batch in feed] for _ in range(epochs)]


def test_fit_without_a_callback_trains_each_epoch_once(loaders):
    want = tags_of_epochs(loaders.endpoint, 3)
    model = tiny_model()
    with trainer_client.connect(loaders.endpoint) as feed:
        feed._session.cursor.rewind()
        data = feed.dataset(map=named)
        list(data.take(1))
        list(data.map(lambda inputs, *_: inputs["audio"]))
        next(iter(data))
        model.fit(data, epochs=3, verbose=0)
    assert model.seen == list(itertools.chain(*want))


@pytest.mark.heritage("D8")
@pytest.mark.fault(17)
@pytest.mark.parametrize(("replicas", "steps"), [(1, 1), (1, 4), (2, 4)])
def test_stopped_and_resumed_each_batch_is_trained_once(loaders, tmp_path, replicas, steps):
    want = tags_of_epochs(loaders.endpoint, 2)
    strategy = mirrored() if replicas == 2 else None

    def fit(model, stop_at):
        with trainer_client.connect(loaders.endpoint, strategy=strategy) as feed:
            data = feed.distributed(strategy, map=named) if strategy else feed.dataset(map=named)
            callbacks = [trainer_client.FeedCheckpoint(feed, tmp_path, every=1), StopAt(feed, stop_at)]
            model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
            return feed.epoch, feed.number

    first = tiny_model(strategy, steps)
    with pytest.raises(ZeroDivisionError):
        fit(first, 3 * replicas)
    seen = first.seen
    take_back()
    second = tiny_model(strategy, steps, new=replicas > 1)
    assert second.built == (replicas == 1), "as a restarted process has it, in some of the cases"
    assert fit(second, 10**6) == (2, 0)
    trained = [tag for tag in seen + second.seen if tag >= 0]
    assert sorted(trained) == sorted(itertools.chain(*want))


def test_an_evaluation_stream_is_the_same_each_time(loaders):
    with trainer_client.connect(loaders.endpoint, stream="dev") as feed:
        data = feed.dataset(map=named)
        model = tiny_model()
        assert model.evaluate(data, verbose=0) == model.evaluate(data, verbose=0)


def test_a_list_of_all_batches_holds_what_numpy_reads(loaders):
    with trainer_client.connect(loaders.endpoint, stream="dev", prefetch=2) as feed:
        want = [{key: array.copy() for key, array in batch.items()} for batch in feed.open()]
        for got, batch in zip(list(feed.dataset()), want, strict=True):
            for key, array in batch.items():
                np.testing.assert_array_equal(got[key], array)


def test_warm_up_takes_the_shapes_of_the_plan(loaders):
    with trainer_client.connect(loaders.endpoint) as feed:
        shapes = []
        feed.warm_up(lambda element: shapes.append(tuple(element.shape)), inputs="audio")
        assert sorted(shapes) == sorted((shape.rows, shape.lengths["audio"], 40) for shape in feed.shapes)


def test_ctrl_c_while_no_worker_answers(tmp_path):
    job = write_job(tmp_path, samples=60, longest_s=0.5, job='heartbeat_timeout = "60 s"')
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, prefetch=1) as feed:
        data, model = feed.dataset(map=named), tiny_model()
        model.fit(data.take(1), verbose=0)  # so that it is traced
        stopped = loaders.workers()
        for worker in stopped:
            worker.suspend()

        def press():
            wait_until(lambda: feed._session.receiver.outbox._waiting.readers, "a batch is waited for")
            os.kill(os.getpid(), signal.SIGINT)

        pressing = threading.Thread(target=press)

        def train():
            pressing.start()
            model.fit(data, epochs=1, verbose=0)

        try:
            with pytest.raises(KeyboardInterrupt):
                train()
        finally:
            for worker in stopped:
                worker.resume()
            pressing.join()
        assert isinstance(feed._session.error, KeyboardInterrupt)


def test_sums_inside_one_graph_with_few_slots(loaders):
    with trainer_client.connect(loaders.endpoint, stream="dev", prefetch=1) as feed:
        want = sum(int(batch["tag"].sum()) for batch in feed.open())

        @tf.function
        def epoch(data):
            total = tf.constant(0, tf.int64)
            for batch in data:
                total += tf.reduce_sum(batch["tag"])
            return total

        assert int(epoch(feed.dataset())) == want


@pytest.mark.parametrize("at_a_time", [1], indirect=True)
def test_a_trainer_that_loses_its_place_while_shapes_are_compiled_ends_before_the_next_and_says_so_once(
    loaders, caplog
):
    compiled = []
    with trainer_client.connect(loaders.endpoint) as older:
        assert len(older.shapes) > 1

        def compile_slowly(element):
            compiled.append(element)
            with trainer_client.connect(loaders.endpoint):
                wait_until(lambda: older._session.error, "the older one has heard that it lost its place")

        with pytest.raises(trainer_client.RefusedError, match="to be the only trainer of rank 0, got a newer one"):
            older.warm_up(compile_slowly, inputs="audio")
        older._session.receiver.fail(older._session.error)  # as at each of its heartbeats
    assert len(compiled) == 1
    assert [record.event for record in caplog.records].count("feed stops") == 1


@pytest.mark.fault(60)
@pytest.mark.parametrize("derive", [None, lambda data: data.map(lambda inputs, *_: inputs["tag"]), iter])
def test_a_whole_epoch_is_read_of_a_data_set_whose_feed_nobody_named(loaders, derive):
    (want,) = tags_of_epochs(loaders.endpoint, 1)
    data = trainer_client.connect(loaders.endpoint).dataset(map=named)
    data = data if derive is None else derive(data)
    gc.collect()
    assert [int((one if tf.is_tensor(one) else one[0]["tag"])[0]) for one in data] == want
    del data
    gc.collect()
    wait_until(lambda: not receive_threads(), "the feed has closed itself")


def receive_threads():
    return [thread for thread in threading.enumerate() if thread.name == "stoker-receiver"]
