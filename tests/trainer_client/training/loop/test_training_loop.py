"""The training loop over a feed in memory: the weights of `fit`, wherever it was stopped; retries; what is told."""

from __future__ import annotations

import signal
from functools import partial

import numpy as np
import pytest

from shared.errors import DataError, EndedError, SettingsError
from tests.support.fake_feed import SHAPES, FakeFeed
from tests.support.lending import Lending
from tests.support.loaders import wait_until
from tests.support.summary_files import scalars
from tests.support.tiny_models import tiny_model

import keras  # isort: skip - after the devices are set
import tensorflow as tf  # isort: skip

from trainer_client import EarlyStop, FeedCheckpoint, InitialValues, NoProgress, Until, Validation  # isort: skip
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder  # isort: skip
from trainer_client.training.runs.run_loop import JOB_ENDED  # isort: skip
from trainer_client.training.loop.training_loop import LoopSettings, TrainingData, TrainingLoop  # isort: skip
from trainer_client.training.strategies.single import Single  # isort: skip
from trainer_client.tf.dataset import PREFETCH  # isort: skip
from trainer_client.training.checkpoints.saved_model import SavedRun  # isort: skip

FORM = {"inputs": "audio", "targets": "weight", "weights": "weight"}
STEPS = (4, 3)
LENT = Lending(Single())


class Levels(keras.Model):
    """One dense layer, regularised and under dropout; `seen` lists what it was called with, and `ran`, where there is
    one, what it ran with.
    """

    def __init__(self, spoil=None, dropped=0.5, needs_sizes=False):
        super().__init__()
        self.seen, self.ran = [], None
        self.spoil, self.needs_sizes = spoil, needs_sizes
        self.dense = keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(0.5))
        self.drop = keras.layers.Dropout(dropped, seed=5)

    def call(self, audio, training=False):
        self.seen.append(tuple(audio.shape))
        level = tf.reduce_mean(audio, 1)
        if self.needs_sizes:
            level += float(audio.shape[1]) * 0
        if self.ran is not None:
            note = lambda shape: self.ran.append(tuple(shape.tolist()))  # noqa: E731 - as TensorFlow calls it
            tf.numpy_function(note, [tf.shape(audio)], [], stateful=True)
        if self.spoil is not None:
            level *= tf.reshape(tf.numpy_function(self.spoil, [], tf.float32, stateful=True), ())
        return self.dense(self.drop(level, training=training))


def compiled(spoil=None, dropped=0.5, **how):
    model = Levels(spoil, dropped, **how)
    model.compile(keras.optimizers.Adam(0.1), "mse")
    return model


def looped(folder, until, *, feed=None, model=None, callbacks=(), **settings):
    """A loop over a feed, of this model or of the lent one; run it before the next is made."""
    feed, placement = feed or FakeFeed(epochs=STEPS), LENT if model is None else Single()
    data = TrainingData(feed=feed, elements=placement.data(feed, FORM), for_each_shape=partial(feed.warm_up, **FORM))
    settings = LoopSettings(until=until, checkpoints=folder, **settings)
    return TrainingLoop(LENT.model(compiled) if model is None else model, data, placement, settings, callbacks)


def saved(folder):
    arrays, record = CheckpointFolder(folder, 3).read_last()
    return [arrays[str(at)] for at in range(len(arrays))], record


def same(left, right):
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_weights_are_those_of_fit_and_either_goes_on_where_the_other_stopped(tmp_path):
    def fit(folder, epochs, model):
        feed = FakeFeed(epochs=STEPS)
        model.fit(feed.dataset(**FORM), epochs=epochs, verbose=0, callbacks=[FeedCheckpoint(feed, folder)])

    looped(tmp_path / "loop", Until(epochs=4)).run()
    looped(tmp_path / "second", Until(epochs=2)).run()
    fit(tmp_path / "first", 2, model := compiled())
    fit(tmp_path / "second", 4, model)
    fit(tmp_path / "fit", 4, compiled())
    looped(tmp_path / "first", Until(epochs=4)).run()
    want, record = saved(tmp_path / "fit")
    assert record["step"] == 14
    for name in ("loop", "first", "second"):
        arrays, record = saved(tmp_path / name)
        assert (record["epoch"], record["step"], record["feed"]["epoch"]) == (4, 14, 4), name
        for one, other in zip(arrays, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.heritage("L12")
def test_a_run_without_a_checkpoint_begins_with_initial_values_and_goes_on_from_its_own(tmp_path, capsys):
    looped(tmp_path / "source", Until(steps=3)).run()
    want = saved(tmp_path / "source")[0]
    capsys.readouterr()
    initial = InitialValues(tmp_path / "source")
    loop = looped(tmp_path / "own", Until(steps=0), initial=initial)
    loop.run()
    weights = loop._model.trainable_variables
    same([weight.numpy() for weight in weights], want[: len(weights)])
    assert int(loop._model.optimizer.iterations.numpy()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"LOADED: 2 of 2 variables from {tmp_path / 'source' / '00000001.npz'}"
    looped(tmp_path / "own", Until(steps=2), initial=initial).run()
    again = looped(tmp_path / "own", Until(steps=2), initial=initial)
    again.run()
    same([weight.numpy() for weight in again._model.trainable_variables], saved(tmp_path / "own")[0][: len(weights)])
    assert capsys.readouterr().out.count("LOADED: ") == 1, "not once there is a checkpoint"


def test_initial_values_that_do_not_fit_end_the_run_before_its_first_step(tmp_path):
    np.savez(tmp_path / "others.npz", kernel=np.zeros(3))
    loop = looped(tmp_path / "own", Until(steps=2), initial=InitialValues(tmp_path / "others.npz"))
    with pytest.raises(DataError, match=r"no value for \S*dense\S*/kernel, .*; values of no variable: kernel"):
        loop.run()
    assert not list((tmp_path / "own").glob("*.npz"))


def rules():
    return [EarlyStop(NoProgress(1, 99.0), monitor="loss")]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """What a run saved that these rules stopped, and nothing else."""
    folder = tmp_path_factory.mktemp("whole")
    looped(folder, Until(epochs=9), callbacks=rules()).run()
    return saved(folder)


@pytest.mark.parametrize("stop", range(1, 9))
def test_stopped_after_any_step_and_resumed_the_weights_are_those_of_an_unbroken_run(tmp_path, unbroken, stop):
    loop = looped(tmp_path / "parts", Until(steps=stop), callbacks=rules(), save_every_steps=1)
    assert loop.run().startswith(f"{min(stop, 7)} steps are reached" if stop < 8 else "stopped early")
    looped(tmp_path / "parts", Until(epochs=9), callbacks=rules()).run()
    (arrays, record), (parts, again) = unbroken, saved(tmp_path / "parts")
    same(arrays, parts)
    assert {name: again[name] for name in ("epoch", "step", "feed")} == {
        name: record[name] for name in ("epoch", "step", "feed")
    }
    assert record["epoch"] == 2, "stopped early"
    assert [value for _, value in again["early_stop"]["evaluated"]] == pytest.approx(
        [value for _, value in record["early_stop"]["evaluated"]]
    )


def test_batches_are_fetched_while_a_step_computes(tmp_path):
    feed, ahead = FakeFeed(epochs=(5,)), []

    class Wait(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 0:
                wait_until(lambda: len(feed.session.yielded) > 1, "another batch is fetched")
                ahead.append(feed.session.cursor.at.number)

    looped(tmp_path, Until(epochs=1), feed=feed, callbacks=[Wait()]).run()
    assert ahead == [1], "what is fetched is not trained on"


def test_a_finished_run_trains_nothing_more(tmp_path, capsys):
    looped(tmp_path, Until(epochs=2)).run()
    before = saved(tmp_path)
    capsys.readouterr()
    loop = looped(tmp_path, Until(epochs=2))
    assert loop.run() == "2 epochs are reached"
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["STARTING", "FINISHED"]
    same(saved(tmp_path)[0], before[0])
    looped(tmp_path, Until(epochs="+1")).run()
    assert saved(tmp_path)[1]["epoch"] == 3


def test_a_run_that_goes_on_takes_the_mark_of_the_run_before_away_before_it_warms_up(tmp_path, monkeypatch):
    """Warming up may take minutes, in which whoever follows the folder would take it for finished."""
    folder = CheckpointFolder(tmp_path, 3)
    looped(tmp_path, Until(epochs=1)).run()
    loop, seen = looped(tmp_path, Until(epochs=2)), [folder.is_finished()]
    warm_up = loop._warm_up
    monkeypatch.setattr(loop, "_warm_up", lambda: seen.append(folder.is_finished()) or warm_up())
    loop.run()
    assert [*seen, folder.is_finished()] == [True, False, True]


def test_a_signal_waits_for_the_step_in_hand_and_what_was_trained_on_is_saved(tmp_path):
    class Ask(keras.callbacks.Callback):
        def __init__(self, step):
            super().__init__()
            self.left = step

        def on_train_batch_begin(self, batch, logs=None):
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)

    looped(tmp_path / "whole", Until(epochs=2)).run()
    for step in (2, 4, 6):
        feed, before = FakeFeed(epochs=STEPS), signal.getsignal(signal.SIGINT)
        with feed, pytest.raises(KeyboardInterrupt):
            looped(tmp_path / str(step), Until(epochs=2), feed=feed, callbacks=[Ask(step)]).run()
        assert saved(tmp_path / str(step))[1]["step"] == step
        assert signal.getsignal(signal.SIGINT) is before
        looped(tmp_path / str(step), Until(epochs=2)).run()
        same(saved(tmp_path / "whole")[0], saved(tmp_path / str(step))[0])


def interrupt_after(step):
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == step - 1:
                signal.raise_signal(signal.SIGINT)

    return Interrupt()


def test_an_interruption_says_what_is_saved_and_at_which_step(tmp_path):
    feed = FakeFeed(epochs=STEPS)
    loop = looped(tmp_path, Until(epochs=2), feed=feed, callbacks=[interrupt_after(3)])
    with feed, pytest.raises(KeyboardInterrupt, match=rf"^saved {tmp_path}/.*00000001\.npz, step 3$"):
        loop.run()


def test_one_that_comes_before_the_first_step_says_that_nothing_is(tmp_path, monkeypatch):
    feed = FakeFeed(epochs=STEPS)
    loop = looped(tmp_path, Until(epochs=2), feed=feed)
    monkeypatch.setattr(loop, "_warm_up", _interrupt)
    with feed, pytest.raises(KeyboardInterrupt, match=r"^at step 0, nothing was saved$"):
        loop.run()


def _interrupt():
    raise KeyboardInterrupt


def test_a_job_that_is_ended_leaves_a_checkpoint_and_the_run_ends_in_good_order(tmp_path, capsys):
    feed = FakeFeed(epochs=(9,))

    class End(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                feed.interrupt(EndedError(expected="a job", got="none", where="job", remedy="Start another."))

    assert looped(tmp_path, Until(epochs=2), feed=feed, callbacks=[End()]).run() == JOB_ENDED
    assert 2 <= saved(tmp_path)[1]["step"] <= 2 + PREFETCH + 1, "what was fetched is trained on"
    assert capsys.readouterr().out.splitlines()[-1].endswith(f": {JOB_ENDED}")


@pytest.mark.parametrize("how", ["ended", "signal"])
def test_an_epoch_whose_last_step_is_interrupted_is_judged_before_it_is_saved(tmp_path, how):
    feed, judged = FakeFeed(epochs=STEPS), []

    class Stop(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3 and how == "ended":
                feed.interrupt(EndedError(expected="a job", got="none", where="job", remedy="Start another."))
            elif batch == 3:
                signal.raise_signal(signal.SIGINT)

        def on_epoch_end(self, epoch, logs=None):
            judged.append((epoch, sorted(logs)))

    callbacks = [Stop(), EarlyStop(NoProgress(3), monitor="loss")]
    loop = looped(tmp_path, Until(epochs=2), feed=feed, callbacks=callbacks)
    if how == "ended":
        assert loop.run() == JOB_ENDED
    else:
        with feed, pytest.raises(KeyboardInterrupt):
            loop.run()
    record = saved(tmp_path)[1]
    assert (record["epoch"], record["step"], record["noted"]) == (1, 4, {})
    assert len(record["early_stop"]["evaluated"]) == 1
    assert judged == [(0, ["loss"])]
    assert [epoch for epoch, *_ in feed.session.reported] == [1]


def test_whoever_takes_the_model_of_a_checkpoint_alone_has_what_early_stopping_saw_with_it(tmp_path):
    stop, other, model = EarlyStop(NoProgress(9), monitor="loss"), EarlyStop(NoProgress(9), monitor="loss"), compiled()
    looped(tmp_path, Until(epochs=2), model=model, callbacks=[stop]).run()
    assert SavedRun(tmp_path, 3, writes=False).read(model, other).steps == 7
    assert other.state() == stop.state()
    assert len(other.state()["evaluated"]) == 2


def test_a_run_that_reaches_its_steps_within_an_epoch_is_saved_there(tmp_path):
    looped(tmp_path, Until(steps=6)).run()
    assert (saved(tmp_path)[1]["epoch"], saved(tmp_path)[1]["step"]) == (1, 6)


@pytest.mark.parametrize("judged", [False, True])
def test_a_job_that_ends_while_an_epoch_is_validated_ends_the_run_in_good_order(tmp_path, judged):
    feed, dev = FakeFeed(epochs=STEPS), FakeFeed(epochs=(2,), evaluation=True)
    ended = EndedError(expected="a job", got="none", where="job", remedy="Start another.")

    class End(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            feed.interrupt(ended)
            dev.interrupt(ended)

    rules = [EarlyStop(NoProgress(3), monitor="val_fake_loss")] if judged else []
    callbacks = [End(), Validation(dev, epochs=1, **FORM), *rules]
    loop = looped(tmp_path, Until(epochs=2), feed=feed, callbacks=callbacks, save_every_steps=3)
    assert loop.run() == JOB_ENDED
    assert saved(tmp_path)[1]["step"] == (3 if judged else 4), "with early stop the epoch is judged again"


@pytest.mark.parametrize("judged", [False, True])
def test_an_epoch_that_was_interrupted_while_it_was_judged_is_judged_again(tmp_path, judged):
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    rules = [EarlyStop(NoProgress(3), monitor="loss")] if judged else []
    with pytest.raises(KeyboardInterrupt):
        looped(tmp_path, Until(epochs=2), callbacks=[Interrupt(), *rules], save_every_steps=3).run()
    assert saved(tmp_path)[1]["step"] == (3 if judged else 4)


def test_one_graph_serves_all_shapes_each_of_which_was_tried_before_the_first_step_largest_first(tmp_path):
    model, tried = compiled(), []

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            tried.extend(model.ran)

    model.ran = []
    loop = looped(tmp_path, Until(epochs=2), model=model, callbacks=[Look()])
    loop.run()
    assert tried == [(4, 8, 3), (4, 8, 3), (2, 16, 3)], "built with the largest; more rows, more bytes"
    assert model.seen[-1] == (None, None, 3)
    assert loop._step.traces == 1
    counts = loop._session.accounts.counts
    assert counts.retraces == 0
    assert all(counts.phases_s[name] > 0 for name in ("warm_up", "step", "checkpoint"))


def test_a_model_that_needs_sizes_has_a_graph_for_each_shape_before_the_first_step(tmp_path):
    model = compiled(needs_sizes=True)
    loop = looped(tmp_path, Until(epochs=2), model=model)
    loop.run()
    traced = [shape for shape in model.seen if None not in shape]
    assert traced[-2:] == [(4, 8, 3), (2, 16, 3)]
    assert loop._session.accounts.counts.retraces == 0


def test_a_shape_that_was_not_planned_is_counted(tmp_path):
    loop = looped(tmp_path, Until(epochs=1), model=compiled(needs_sizes=True))
    loop._session.shapes = loop._session.shapes[:1]  # the other one is met later
    loop._session.shapes, all_shapes = loop._session.shapes, FakeFeed().session.shapes
    loop._warm_up()
    loop._session.shapes = all_shapes
    loop._warm_up = lambda: None
    loop.run()
    assert loop._session.accounts.counts.retraces == 1


def test_gradients_that_are_not_finite_are_tried_again_and_change_nothing_until_they_are(tmp_path):
    left = iter([1.0, np.nan, np.inf, 1.0])
    spoil = lambda: np.float32(next(left, 1.0))  # noqa: E731 - as TensorFlow calls it
    model = compiled(spoil)
    feed = FakeFeed(epochs=(1,))
    loop = looped(tmp_path, Until(epochs=1), model=model, feed=feed)
    loop._warm_up()
    left = iter([np.nan, np.inf, 1.0])
    loop.run()
    assert loop._progress.totals.steps == 1
    assert int(model.optimizer.iterations.numpy()) == 1
    assert next(left, None) is None, "tried three times"


def test_after_so_many_tries_training_ends_with_the_variables_as_they_were(tmp_path):
    poisoned = [False]
    model = compiled(lambda: np.float32(np.nan if poisoned[0] else 1.0))
    feed = FakeFeed(epochs=(4,))

    class Poison(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            poisoned[0] = batch == 1

    loop = looped(
        tmp_path, Until(epochs=2), model=model, feed=feed, callbacks=[Poison()], retries=2, save_every_steps=2
    )
    with pytest.raises(DataError, match=r"batch 2 of epoch 0 of fake, step 2: expected finite .*in each of 3 tries"):
        loop.run()
    arrays, record = saved(tmp_path)
    assert (record["step"], record["feed"]["number"]) == (2, 2)
    same([variable.numpy() for variable in model.trainable_variables], arrays[: len(model.trainable_variables)])


def test_a_batch_without_samples_changes_no_variable(tmp_path):
    feed = FakeFeed(epochs=(3,), empty_at=lambda epoch, number: number == 1)
    model = compiled()
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append([value.numpy().copy() for value in (*model.trainable_variables, model.optimizer.iterations)])

    loop = looped(tmp_path, Until(epochs=1), model=model, feed=feed, callbacks=[Look()])
    feed.session.content = None
    fill = feed.session.fill

    def masked(arrays, epoch, number):
        fill(arrays, epoch, number)
        if feed.session.empty_at(epoch, number):
            arrays["weight"][...] = 0

    feed.session.fill = masked
    loop.run()
    same(seen[0], seen[1])
    assert not np.array_equal(seen[1][0], seen[2][0])


class StepLosses(keras.callbacks.Callback):
    """The loss of each step."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


def test_the_loss_of_a_line_is_the_mean_over_the_samples_since_the_line_before(tmp_path, capsys):
    """Batches have four samples and two in turn."""
    steps = StepLosses()
    looped(tmp_path, Until(steps=6), callbacks=[steps], summaries=tmp_path / "logs", tell_every=3).run()
    wants = [np.average(steps.losses[at : at + 3], weights=rows) for at, rows in ((0, (4, 2, 4)), (3, (2, 4, 2)))]
    lines = [line for line in capsys.readouterr().out.splitlines() if " steps/s" in line]
    for line, step, want in zip(lines, (3, 6), wants, strict=True):
        assert f"step {step}: loss {want:.4f}, " in line
    written = {one.step: one.value for one in scalars(tmp_path / "logs") if one.name == "loss"}
    assert written == {step: pytest.approx(want) for step, want in zip((3, 6), wants, strict=True)}


def test_a_line_without_samples_has_no_loss(tmp_path, capsys):
    feed = FakeFeed(epochs=(3,), empty_at=lambda _epoch, number: number != 1)
    looped(tmp_path, Until(steps=3), feed=feed, summaries=tmp_path / "logs", tell_every=1).run()
    lines = [line for line in capsys.readouterr().out.splitlines() if " steps/s" in line]
    assert ["no samples, " in line for line in lines] == [True, False, True]
    assert [one.step for one in scalars(tmp_path / "logs") if one.name == "loss"] == [2]


def test_validation_and_callbacks_of_the_users_are_called_as_fit_does(tmp_path, capsys):
    dev = FakeFeed(epochs=(2,), evaluation=True)
    dev.session.stream = "dev"
    facts = []

    class Note(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            facts.append((epoch, sorted(logs), int(self.model.optimizer.iterations.numpy())))
            self.model.stop_training = epoch == 2

    callbacks = [Validation(dev, epochs=2, **FORM), Note()]
    loop = looped(tmp_path, Until(epochs=8), callbacks=callbacks, summaries=tmp_path / "logs", tell_every=2)
    assert loop.run() == "a callback stopped it"
    assert facts == [(0, ["loss"], 4), (1, ["loss", "val_dev_loss"], 7), (2, ["loss"], 11)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "STARTING: training fake from epoch 0, step 0, until 8 epochs"
    assert lines[1].startswith("epoch 0.50, step 2: loss ")
    assert "this process" not in lines[1]
    assert any(line.startswith("dev at step 7, after 2 epochs: loss ") for line in lines)
    assert any(line.startswith("epoch 2 is over, step 7: loss ") and "val_dev_loss" in line for line in lines)
    assert lines[-1].startswith("FINISHED: 3 epochs, 11 steps, 34 samples, 0:00:")
    assert loop._session.ended == [("a callback stopped it", 3, 11)]
    written = scalars(tmp_path / "logs")
    assert {"loss", "waiting", "batches_ready", "batches_staged", "epoch/val_dev_loss"} <= {one.name for one in written}


def test_how_many_batches_lie_ahead_of_the_model_is_smoothed_over_steps(tmp_path):
    feed, said = FakeFeed(epochs=(4,)), [(10, 2), (0, 2), (0, 2), (0, 0)]
    feed.session.ahead = partial(next, iter(said))
    looped(tmp_path, Until(steps=4), feed=feed, summaries=tmp_path / "logs", tell_every=2).run()
    found = {(one.name, one.step): one.value for one in scalars(tmp_path / "logs") if one.name.startswith("batches")}
    assert found == pytest.approx(
        {
            ("batches_ready", 2): 10 * 0.95,
            ("batches_staged", 2): 2,
            ("batches_ready", 4): 10 * 0.95**3,
            ("batches_staged", 4): 2 * 0.95,
        }
    )


def test_what_cannot_be_trained_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="got Recorder with a train_step of its own"):
        looped(tmp_path, Until(epochs=1), model=tiny_model())
    feed = FakeFeed()
    feed.session.world = 2
    with pytest.raises(SettingsError, match=r"expected a world of one rank, got one of 2.*exchange no gradients"):
        looped(tmp_path, Until(epochs=1), feed=feed)
    two = [EarlyStop(NoProgress(3)), EarlyStop(NoProgress(2))]
    with pytest.raises(SettingsError, match="expected one EarlyStop at most, got 2"):
        looped(tmp_path, Until(epochs=1), callbacks=two)
    model = Levels()
    model.compile("sgd", lambda targets, outputs: tf.reduce_mean(outputs))
    with pytest.raises(SettingsError, match="expected a loss with a value for each row"):
        looped(tmp_path, Until(epochs=1), model=model).run()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_layers_may_compute_in_half_the_bits(tmp_path, policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = compiled()
        looped(tmp_path, Until(epochs=2), model=model).run()
    finally:
        keras.config.set_dtype_policy(before)
    assert model.dense.compute_dtype == policy.removeprefix("mixed_")
    arrays, record = saved(tmp_path)
    assert record["step"] == 7
    assert all(np.isfinite(array).all() for array in arrays)


def test_the_step_may_be_compiled_by_xla(tmp_path):
    for name, xla in (("plain", False), ("xla", True)):
        feed = FakeFeed(epochs=STEPS, shapes=SHAPES[:1])
        looped(tmp_path / name, Until(epochs=1), feed=feed, model=compiled(dropped=0.0), xla=xla).run()
    for one, other in zip(saved(tmp_path / "plain")[0], saved(tmp_path / "xla")[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
