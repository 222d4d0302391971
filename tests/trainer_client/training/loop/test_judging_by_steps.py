"""A model that is judged every so many steps: at the same places however it was stopped, with any placement, and early
stopping goes by it.
"""

from __future__ import annotations

from functools import cache, partial

import pytest

import tests.support.two_devices  # before TensorFlow is used
from shared.errors import EndedError
from tests.support.fake_feed import FakeFeed
from tests.support.joined_feed import spread_feed
from tests.support.lending import Lending
from tests.support.summary_files import scalars

import keras  # isort: skip - after the devices are set

from tests.support.strategy_runs import FORM, STEPS, Spoken, adam, per_row, saved  # isort: skip
from trainer_client import EarlyStop, NoProgress, Until, Validation  # isort: skip
from trainer_client.training.strategies.asynchronous import Asynchronous  # isort: skip
from trainer_client.training.strategies.mirrored import Mirrored  # isort: skip
from trainer_client.training.strategies.single import Single  # isort: skip
from trainer_client.training.loop.training_loop import LoopSettings, TrainingData, TrainingLoop  # isort: skip

TOWERS = ("CPU:0", "CPU:1")
PLACEMENTS = {"single": Single, "mirrored": partial(Mirrored, TOWERS), "async": partial(Asynchronous, TOWERS)}


@cache
def lent(placement):
    return Lending(PLACEMENTS[placement]())


def compiled():
    model = Spoken()
    model.compile(adam(), per_row)
    return model


def dev():
    feed = FakeFeed(epochs=(1,), evaluation=True)
    feed.session.stream = "dev"
    return feed


def run(folder, judge, *, placement="single", steps=20, every=3, stop=None, **settings):
    """Why it ended. Some rounds of the feed have no rows at all, which are steps as well."""
    made = lent(placement)
    feed = spread_feed(max(1, made.ranks.get("replicas", 1)), epochs=STEPS)
    fill = feed.session.fill

    def some_are_empty(arrays, epoch, number):
        fill(arrays, epoch, number)
        arrays["weight"][...] *= number // feed.session.replicas not in {3, 5}

    feed.session.fill = some_are_empty
    keras.utils.set_random_seed(3)
    with made.scope():
        model = made.model(compiled)
    data = TrainingData(feed=feed, elements=made.data(feed, FORM), for_each_shape=partial(feed.warm_up, **FORM))
    callbacks = [Validation(judge, steps=every, **FORM), *([] if stop is None else [stop])]
    how = LoopSettings(until=Until(steps=steps), checkpoints=folder, **settings)
    return TrainingLoop(model, data, made, how, callbacks).run()


def places(feed):
    return [(epoch, step) for epoch, step, *_ in feed.session.reported]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_it_is_judged_after_each_so_many_steps_of_the_run_whatever_the_optimizer_counts(tmp_path, placement):
    judge = dev()
    run(tmp_path, judge, placement=placement, summaries=tmp_path / "logs")
    assert places(judge) == [(0, 3), (0, 6), (1, 9), (2, 12), (2, 15), (3, 18)]
    told = [(step, pytest.approx(values["loss"], rel=1e-6)) for _, step, _, values in judge.session.reported]
    written = [(one.step, one.value) for one in scalars(tmp_path / "logs") if one.name == "val_dev_loss"]
    assert written == told


def rules():
    return EarlyStop(NoProgress(2, 99.0), monitor="val_dev_loss")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Why a run ended that these rules stopped, where it was judged, and what early stopping saw."""
    folder, whole = tmp_path_factory.mktemp("whole"), dev()
    reason = run(folder, whole, stop=rules())
    assert reason.startswith("stopped early, val_dev_loss is ")
    assert places(whole) == [(0, 3), (0, 6), (1, 9)]
    return reason, places(whole), saved(folder)[1]["early_stop"]


@pytest.mark.parametrize("stop", [2, 3, 9])
def test_stopped_and_resumed_it_is_judged_at_the_same_places_and_early_stopping_decides_the_same(
    tmp_path, unbroken, stop
):
    reason, judged, seen = unbroken
    parts = dev()
    run(tmp_path, parts, stop=rules(), steps=stop)
    assert run(tmp_path, parts, stop=rules()) == reason
    assert places(parts) == judged
    assert saved(tmp_path)[1]["early_stop"] == seen


def test_a_step_that_is_not_judged_because_the_job_was_ended_comes_again(tmp_path):
    ended, judge = dev(), dev()
    ended.session.interrupt(EndedError(expected="a batch", got="an end", where="here", remedy="Start it again."))
    rules = partial(EarlyStop, NoProgress(9), monitor="val_dev_loss")
    assert run(tmp_path, ended, stop=rules(), save_every_steps=1) == "the job was ended"
    assert saved(tmp_path)[1]["step"] == 2
    run(tmp_path, judge, stop=rules(), steps=4)
    assert places(judge) == [(0, 3)]
