"""Queue mode in TensorFlow as a user meets it: `fit`, datasets and checkpoints over a stream that trainers share."""

from __future__ import annotations

import pytest

import trainer_client
from loader_server.commands import status
from shared.errors import SettingsError
from tests.support.loaders import running, write_job

import tensorflow as tf  # isort: skip
from tests.support.tiny_models import StopAfter, Stopped, tiny_model  # isort: skip
from trainer_client import FeedCheckpoint  # isort: skip

SAMPLES = 60
FORM = {"inputs": {"audio": "audio", "tag": "tag"}, "targets": "weight", "weights": "weight"}


@pytest.fixture(scope="module")
def loaders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("queue_fit")
    job = write_job(folder, samples=SAMPLES, budget="4 s", stream='mode = "queue"')
    with running(job, workers=1) as loaders:
        yield loaders


@pytest.fixture
def fresh(loaders):
    """Nothing is done yet, whatever the test before did."""
    with trainer_client.connect(loaders.endpoint) as feed:
        feed.restore(feed.state() | {"epochs": [[0, 0, []]]})
    return loaders


def train(loaders):
    return status.ask(loaders.endpoint)["streams"]["train"]


def fit(feed, epochs, *callbacks, model=None, **form):
    model = model or tiny_model()
    model.fit(feed.dataset(**{**FORM, **form}), epochs=epochs, verbose=0, callbacks=list(callbacks))
    return model


def mapped(batch):
    """A function that TensorFlow has to run, so that batches are prefetched behind it."""
    return {"audio": batch["audio"], "tag": batch["tag"]}, batch["weight"], batch["weight"]


AHEAD = {"inputs": None, "targets": None, "weights": None, "map": mapped}


@pytest.mark.parametrize("form", [{}, AHEAD])
def test_fit_trains_on_each_batch_once_and_says_so(fresh, form):
    with trainer_client.connect(fresh.endpoint, epochs=2) as feed:
        model = fit(feed, 2, **form)
    found = train(fresh)
    batches = found["batches"]
    assert [len(model.seen), *(len(set(seen)) for seen in (model.seen[:batches], model.seen[batches:]))] == [
        2 * batches, batches, batches,
    ]  # fmt: skip
    assert (found["queue"]["train"]["epoch"], found["queue"]["train"]["expired"]) == (2, 0)


def test_steps_that_run_together_end_with_the_epoch(fresh):
    with trainer_client.connect(fresh.endpoint, epochs=1) as feed:
        model = fit(feed, 1, model=tiny_model(steps_per_execution=4))
        assert (len(model.seen), feed.epoch) == (train(fresh)["batches"], 1)


def test_a_loop_over_the_dataset_says_what_is_done_by_asking_for_the_next(fresh):
    with trainer_client.connect(fresh.endpoint, epochs=1) as feed:
        steps = 0
        for _ in feed.dataset(**AHEAD):
            done = sum(fresh_ - len(missing) for _, fresh_, missing in feed.state()["epochs"])
            assert done == steps, "what TensorFlow took ahead is not done"
            steps += 1
        assert (steps, feed.epoch) == (train(fresh)["batches"], 1)
        assert feed.state()["epochs"] == [[1, 0, []]]


@pytest.mark.parametrize("each", [1, 2])
def test_what_a_thread_has_staged_is_not_done_before_the_next_is_asked_for(fresh, each):
    with trainer_client.connect(fresh.endpoint, epochs=1) as feed:
        batches, steps = train(fresh)["batches"], 0
        for made in feed.dataset(**FORM).staged(lambda take: [take() for _ in range(each)]):
            done = sum(fresh_ - len(missing) for _, fresh_, missing in feed.state()["epochs"])
            assert (len(made), done) == (each, each * steps)
            steps += 1
            if steps == 2:
                break
        assert next(iter(feed)).number == each * (steps - 1), "what was yielded last, and what was staged, comes again"
        feed.restore(feed.state() | {"epochs": [[0, 0, []]]})
        assert sum(1 for _ in feed.dataset(**FORM).staged(lambda take: take())) == batches
        assert feed.epoch == 1


def test_a_loop_that_counts_its_steps_itself_is_believed(fresh):
    with trainer_client.connect(fresh.endpoint, epochs=1) as feed:
        for step, _ in enumerate(feed.dataset(**AHEAD), 1):
            if step % 3 == 0:
                feed.trained(3)
                assert sum(fresh_ - len(missing) for _, fresh_, missing in feed.state()["epochs"]) == step
                if step == 6:
                    break
        assert next(iter(feed)).number == 6


@pytest.mark.parametrize("stop_after", [2, 7])
def test_what_was_trained_on_after_a_checkpoint_comes_again(fresh, tmp_path, stop_after):
    with trainer_client.connect(fresh.endpoint, epochs=2) as feed, pytest.raises(Stopped):
        fit(feed, 2, FeedCheckpoint(feed, tmp_path, every=3), StopAfter(stop_after), **AHEAD)
    with trainer_client.connect(fresh.endpoint, epochs=2) as feed:
        resumed = fit(feed, 2, FeedCheckpoint(feed, tmp_path, every=3), **AHEAD)
    found = train(fresh)
    assert len(resumed.seen) == 2 * found["batches"] - stop_after // 3 * 3
    assert found["queue"]["train"]["epoch"] == 2


def test_saved_with_the_last_batch_of_an_epoch_the_next_epoch_follows(fresh, tmp_path):
    batches = train(fresh)["batches"]
    with trainer_client.connect(fresh.endpoint, epochs=2) as feed, pytest.raises(Stopped):
        fit(feed, 2, FeedCheckpoint(feed, tmp_path, every=batches), StopAfter(batches))
    with trainer_client.connect(fresh.endpoint, epochs=2) as feed:
        assert len(fit(feed, 2, FeedCheckpoint(feed, tmp_path)).seen) == batches


def test_evaluating_and_predicting_with_keras_are_done_batch_by_batch(fresh):
    model = tiny_model(record=False)
    for work in ("evaluate", "predict"):
        with trainer_client.connect(fresh.endpoint, stream="dev", work=work) as feed:
            for _ in range(2):
                rows = 0
                if work == "evaluate":
                    model.evaluate(feed.dataset(**FORM), verbose=0)
                else:
                    rows = len(model.predict(feed.dataset(inputs=FORM["inputs"]), verbose=0))
                    assert rows >= SAMPLES
            table = status.ask(fresh.endpoint)["streams"]["dev"]["queue"][work]
            assert (table["epoch"], table["leased"]) == (2, 0)


def test_what_nobody_can_count_is_refused_by_name(fresh):
    with trainer_client.connect(fresh.endpoint, epochs=1) as feed:
        data = feed.dataset(**FORM)
        with pytest.raises((SettingsError, tf.errors.OpError), match=r"feed\.dataset\(map="):
            next(iter(data.take(1)))
        with pytest.raises(Exception, match="expected to iterate it in Python"):  # AutoGraph wraps it
            tf.function(lambda: next(iter(data)))()
