"""`EarlyStop`: the same decisions, whether a run was stopped and resumed or not."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import SettingsError
from tests.support.fake_feed import FakeFeed
from tests.support.two_devices import mirrored  # devices are set before TensorFlow starts

import keras  # isort: skip - after the devices are set
import tensorflow as tf  # isort: skip

from tests.support.tiny_models import FORM, StopAfter, Stopped, tiny_model  # isort: skip
from trainer_client import EarlyStop, FeedCheckpoint, NoProgress, LevelledOff, Worsening  # isort: skip

STEPS = 2
MOST_EPOCHS = 12
RULE = Worsening(3)
STOPS_AFTER = 6
FED = (7, 8)  # a step in the middle of an epoch and its last, where evaluation and checkpoint meet


@pytest.fixture(scope="module")
def run():
    """A function that trains the same model from the same start, each time; what was evaluated. If that need not come
    from the feed itself, it is two batches of it that lie ready, which cost a tenth of a pass over a feed.
    """
    model = tiny_model(record=False)
    model.fit(FakeFeed(epochs=(1,)).dataset(**FORM), verbose=0)
    start = [variable.numpy().copy() for variable in (*model.variables, *model.optimizer.variables)]
    fed = FakeFeed(epochs=(2,), evaluation=True).dataset(**FORM)
    one, other = (tf.data.Dataset.from_tensors(tf.nest.map_structure(tf.identity, batch)) for batch in fed)
    ready = one.concatenate(other)
    assert ready.element_spec == fed.element_spec

    def fit(*callbacks, feed=None, epochs=MOST_EPOCHS, from_feed=False):
        for variable, value in zip((*model.variables, *model.optimizer.variables), start, strict=True):
            variable.assign(value)
        feed = feed or FakeFeed(epochs=(STEPS,))
        data, dev = feed.dataset(**FORM), fed if from_feed else ready
        return model.fit(data, validation_data=dev, epochs=epochs, verbose=0, callbacks=list(callbacks)).history

    return fit


def fit_kept(run, stop, folder, *others, **how):
    feed = FakeFeed(epochs=(STEPS,))
    return run(FeedCheckpoint(feed, folder, every=1, early_stop=stop), *others, feed=feed, **how)


@pytest.mark.slow
@pytest.mark.heritage("D11")
def test_stopped_and_resumed_after_any_step_a_run_takes_the_same_decisions(run, tmp_path):
    whole = EarlyStop(RULE)
    losses = fit_kept(run, whole, tmp_path / "whole", from_feed=True)["val_loss"]
    assert len(losses) == STOPS_AFTER
    assert whole.reason == f"val_loss is {losses[-1]:g} after {STOPS_AFTER} evaluations: {RULE}"
    for step in range(1, STOPS_AFTER * STEPS + 1):
        folder, resumed = tmp_path / str(step), EarlyStop(RULE)
        with pytest.raises(Stopped):
            fit_kept(run, EarlyStop(RULE), folder, StopAfter(step), from_feed=step in FED)
        fit_kept(run, resumed, folder, from_feed=step in FED)
        assert (resumed.reason, resumed.state()) == (whole.reason, whole.state()), step


LOSSES = st.lists(st.one_of(st.sampled_from([1.0, 1.5, 2.0, 2.5, math.nan]), st.floats(0, 9)), max_size=12)
ANY_RULE = st.sampled_from(
    [NoProgress(1), NoProgress(3, 0.4), Worsening(2), Worsening(), LevelledOff(), LevelledOff(2, 1.0, 9.0)]
)


@pytest.mark.heritage("D11")
@given(LOSSES, st.sets(st.integers(0, 11)), st.lists(ANY_RULE, min_size=1, max_size=3))
def test_the_same_decisions_wherever_it_is_resumed(losses, restarts, rules):
    whole, resumed = EarlyStop(*rules), EarlyStop(*rules)
    for epoch, loss in enumerate(losses):
        if epoch in restarts:
            state = json.loads(json.dumps(resumed.state()))
            resumed = EarlyStop(*rules)
            assert not resumed.restore(state)
        stopped = whole.note(epoch, {"val_loss": loss})
        assert resumed.note(epoch, {"val_loss": loss}) == stopped
        assert resumed.reason == whole.reason
        if stopped:
            break


def test_alone_in_fit_it_stops_as_well_and_starts_anew_with_the_next(run):
    stop = EarlyStop(RULE)
    assert [len(run(stop, from_feed=one)["val_loss"]) for one in (True, False)] == [STOPS_AFTER] * 2
    assert stop.reason.endswith(f"after {STOPS_AFTER} evaluations: {RULE}")


def test_among_the_callbacks_as_well_it_counts_each_evaluation_once(run, tmp_path):
    stop = EarlyStop(RULE)
    assert len(fit_kept(run, stop, tmp_path, stop)["val_loss"]) == STOPS_AFTER
    assert [epoch for epoch, _ in stop.state()["evaluated"]] == list(range(STOPS_AFTER))


def test_a_run_that_was_stopped_early_trains_no_further(run, tmp_path):
    fit_kept(run, EarlyStop(RULE), tmp_path)
    stop = EarlyStop(RULE)
    assert fit_kept(run, stop, tmp_path) == {}
    assert f"after {STOPS_AFTER} evaluations" in stop.reason
    assert len(fit_kept(run, EarlyStop(Worsening(9)), tmp_path)["val_loss"]) == MOST_EPOCHS - STOPS_AFTER


def test_an_epoch_that_is_left_in_the_middle_does_not_count_as_evaluated(run, tmp_path):
    class Enough(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 0

    stop = EarlyStop(RULE)
    fit_kept(run, stop, tmp_path, Enough())
    assert stop.state() == {"evaluated": []}


def test_another_folder_is_another_run(run, tmp_path):
    stop = EarlyStop(NoProgress(1, 9.0))
    assert len(fit_kept(run, stop, tmp_path / "one")["val_loss"]) == 2
    assert len(fit_kept(run, stop, tmp_path / "two")["val_loss"]) == 2


def test_a_value_may_be_the_better_the_higher_it_is(run):
    assert len(run(EarlyStop(NoProgress(1), mode="max"))["val_loss"]) == 2


def test_a_value_that_is_not_there_is_an_error_that_names_what_is(run):
    with pytest.raises(SettingsError, match='expected "val_lost" among what an epoch is judged by, got loss, val'):
        run(EarlyStop(NoProgress(1), monitor="val_lost"))


def test_not_every_epoch_need_be_evaluated():
    stop = EarlyStop(NoProgress(1))
    assert [stop.note(epoch, logs) for epoch, logs in enumerate(({"loss": 1}, {"val_loss": 1}, {}))] == [False] * 3
    assert stop.note(3, {"val_loss": 1})
    assert stop.state() == {"evaluated": [(1, 1.0), (3, 1.0)]}


@pytest.mark.parametrize("how", [{}, {"mode": "least"}])
def test_without_a_rule_or_with_an_unknown_mode_it_is_refused(how):
    with pytest.raises(SettingsError, match='expected at least one rule, and mode "min" or "max"'):
        EarlyStop(*([NoProgress()] if how else []), **how)


def test_where_ranks_go_in_step_all_decide_by_what_all_came_to(run, tmp_path):
    shared = {epoch: {"val_loss": 1.0 if epoch < 4 else 9.0} for epoch in range(1, MOST_EPOCHS + 1)}
    seen = []
    for rank in range(2):
        feed = FakeFeed(epochs=(STEPS,))
        feed.session.world, feed.session.rank, feed.session.shared = 2, rank, shared
        stop = EarlyStop(RULE)
        run(FeedCheckpoint(feed, tmp_path / str(rank), early_stop=stop), feed=feed)
        seen.append((stop.reason, stop.state()))
        assert [(epoch, rows) for epoch, _, rows, _ in feed.session.reported] == [(one, 6) for one in range(1, 5)]
    assert seen[0] == seen[1]
    assert seen[0][0] == f"val_loss is 9 after 4 evaluations: {RULE}"
