"""`Validation`: at which epochs and steps, of what, and what training sees of it."""

from __future__ import annotations

import numpy as np
import pytest

from shared.errors import EndedError, SettingsError
from tests.support.fake_feed import FakeFeed
from tests.support.two_devices import mirrored  # devices are set before TensorFlow starts

import keras  # isort: skip - after the devices are set

from tests.support.tiny_models import FORM, StopAfter, Stopped, take_back, tiny_model  # isort: skip
from trainer_client import EarlyStop, FeedCheckpoint, NoProgress, Until, Validation  # isort: skip
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder  # isort: skip

STEPS = 3


def dev(name="dev", epochs=(2,)):
    feed = FakeFeed(epochs=epochs, evaluation=True)
    feed.session.stream = name
    return feed


def fit(folder, *callbacks, epochs=4, model=None):
    """Without a model, the one of the fit before is as new again."""
    feed = FakeFeed(epochs=(STEPS,))
    if model is None:
        take_back()
        model = tiny_model()
    later = [] if folder is None else [FeedCheckpoint(feed, folder, every=1)]
    model.fit(feed.dataset(**FORM), epochs=epochs, verbose=0, callbacks=[*callbacks, *later])
    return model


def places(feed):
    return [(epoch, step) for epoch, step, *_ in feed.session.reported]


@pytest.mark.heritage("D10")
def test_every_second_epoch_by_two_streams_and_only_then_in_the_logs(capsys):
    one, two = dev("dev"), dev("test", (1,))
    history = fit(None, Validation(one, two, epochs=2, **FORM)).history.history
    assert places(one) == places(two) == [(2, 2 * STEPS), (4, 4 * STEPS)]
    assert [rows for _, _, rows, _ in one.session.reported] == [6, 6]
    assert len(history["loss"]) == 4
    assert history["val_dev_loss"] == [values["loss"] for *_, values in one.session.reported]
    assert history["val_test_loss"] == [values["loss"] for *_, values in two.session.reported]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"dev at step 6, after 2 epochs: loss {history['val_dev_loss'][0]:.4f} (6 samples)"
    assert lines[1].startswith("test at step 6, after 2 epochs: loss ")
    assert lines[1].endswith(" (4 samples)")


def test_the_values_are_those_of_the_model_and_training_is_as_without():
    feed = dev()
    validation = Validation(feed, steps=2, metrics=[keras.metrics.MeanAbsoluteError(name="error")], **FORM)
    plain, judged = tiny_model(), tiny_model()
    histories = [
        fit(None, *others, model=model).history.history for model, others in ((plain, ()), (judged, (validation,)))
    ]
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-6)
    assert "val_dev_loss" not in histories[1]
    want = judged.evaluate(feed.dataset(**FORM), return_dict=True, verbose=0)
    last = validation.results["dev"]
    assert last["loss"] == pytest.approx(want["loss"], rel=1e-5)
    assert (set(last), last["rows"]) == ({"loss", "error", "rows"}, 6)
    assert places(feed) == [(epoch, step) for epoch, step in ((0, 2), (1, 4), (1, 6), (2, 8), (3, 10), (3, 12))]


@pytest.mark.slow
def test_stopped_and_resumed_it_is_judged_at_the_same_places(tmp_path):
    whole = dev()
    fit(tmp_path / "whole", Validation(whole, steps=4, **FORM), epochs=3)
    assert places(whole) == [(1, 4), (2, 8)]
    for stop in (3, 5, 7, 8):
        parts = dev()
        with pytest.raises(Stopped):
            fit(tmp_path / str(stop), Validation(parts, steps=4, **FORM), StopAfter(stop), epochs=3)
        fit(tmp_path / str(stop), Validation(parts, steps=4, **FORM), epochs=3)
        assert list(dict.fromkeys(places(parts))) == places(whole), stop


def test_early_stopping_goes_by_it_though_not_every_epoch_is_judged(tmp_path):
    feed = FakeFeed(epochs=(STEPS,))
    stop = EarlyStop(NoProgress(1, 99.0), monitor="val_dev_loss")
    callbacks = [Validation(dev(), epochs=2, **FORM), FeedCheckpoint(feed, tmp_path, early_stop=stop)]
    history = tiny_model().fit(feed.dataset(**FORM), epochs=9, verbose=0, callbacks=callbacks).history
    assert len(history["loss"]) == 4
    assert stop.reason.startswith("val_dev_loss is ")


def test_early_stopping_goes_by_what_steps_are_judged_by_and_decides_the_same_when_resumed(tmp_path):
    def fit_until(folder, *others):
        feed, judge = FakeFeed(epochs=(STEPS,)), dev()
        stop = EarlyStop(NoProgress(2, 99.0), monitor="val_dev_loss")
        checkpoint = FeedCheckpoint(feed, folder, every=1, early_stop=stop, until=Until(epochs=9))
        callbacks = [Validation(judge, steps=2, **FORM), checkpoint, *others]
        take_back()
        tiny_model().fit(feed.dataset(**FORM), epochs=9, verbose=0, callbacks=callbacks)
        return checkpoint.reason, places(judge), CheckpointFolder(folder, 1).read_last()[1]

    whole = fit_until(tmp_path / "whole")
    assert whole[0].startswith("stopped early, val_dev_loss is ")
    assert whole[1] == [(0, 2), (1, 4), (1, 6)]
    for after in (1, 2, 4):
        with pytest.raises(Stopped):
            fit_until(tmp_path / str(after), StopAfter(after))
        reason, judged, record = fit_until(tmp_path / str(after))
        assert reason == whole[0]
        assert judged == [place for place in whole[1] if place[1] > after]
        assert record["early_stop"] == whole[2]["early_stop"]


def test_where_ranks_share_a_stream_the_values_are_those_of_all():
    """The other rank's have no error at all, and are three times as many."""
    own, feed, places = dev(), dev(), []
    (want,) = fit(None, Validation(own, epochs=1, **FORM), epochs=1).history.history["val_dev_loss"]

    def with_others(states, at):
        places.append(at)
        total, count, rows = np.frombuffer(states)
        return np.array([total, 4 * count, 4 * rows]).tobytes()

    feed.session.world, feed.session.summed = 2, with_others
    (found,) = fit(None, Validation(feed, epochs=1, **FORM), epochs=1).history.history["val_dev_loss"]
    assert found == pytest.approx(want / 4)
    assert places == [{"epoch": 1, "step": STEPS}]
    assert [rows for *_, rows, _ in feed.session.reported] == [24]


@pytest.mark.parametrize(
    ("how", "epochs", "steps"),
    [
        ({"epochs": 2}, 2, 2 * STEPS),
        ({"steps": 4}, 1, 4),
        ({"epochs": 2, "early_stop": "val_dev_loss"}, 1, 2 * STEPS - 1),
    ],
)
def test_a_job_that_is_ended_meanwhile_ends_fit_in_good_order(tmp_path, capsys, how, epochs, steps):
    """What should have been judged for early stopping, and was not, comes again."""
    judged, feed = dev(), FakeFeed(epochs=(STEPS,))
    judged.session.interrupt(EndedError(expected="a batch", got="an end", where="here", remedy="Start it again."))
    monitor = how.pop("early_stop", None)
    stop = EarlyStop(NoProgress(9), monitor=monitor) if monitor else None
    checkpoint = FeedCheckpoint(feed, tmp_path, every=1, until=Until(epochs=9), early_stop=stop)
    model = tiny_model()
    callbacks = [Validation(judged, **how, **FORM), checkpoint]
    model.fit(feed.dataset(**FORM), epochs=checkpoint.epochs, verbose=0, callbacks=callbacks)
    assert checkpoint.reason == "the job was ended"
    assert capsys.readouterr().out.splitlines()[-1].endswith(": the job was ended")
    _, record = CheckpointFolder(tmp_path, 1).read_last()
    assert (record["epoch"], record["step"]) == (epochs, steps)


@pytest.mark.parametrize("how", [{}, {"epochs": 1, "steps": 1}, {"steps": 0}, {"epochs": -1}])
def test_how_often_is_checked(how):
    with pytest.raises(SettingsError, match="expected feeds, and either epochs= or steps= of at least 1, got 1 feeds"):
        Validation(dev(), **how)
    with pytest.raises(SettingsError, match="got 0 feeds"):
        Validation(epochs=1)


def test_a_stream_for_training_is_refused():
    with pytest.raises(SettingsError, match="expected feeds of streams with evaluation = true, got one of fake"):
        Validation(FakeFeed(), epochs=1)
