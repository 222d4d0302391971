"""`FeedCheckpoint`: model and cursor, committed together and restored together."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

from shared.errors import DataError, EndedError, SettingsError, WorldChangedError
from tests.support.another_user import as_another_user, folder_for_all
from tests.support.fake_feed import FakeFeed
from tests.support.two_devices import mirrored

import keras  # isort: skip - after the devices are set
import tensorflow as tf  # isort: skip

from tests.support.tiny_models import FORM, StopAfter, Stopped, take_back, tiny_model  # isort: skip
from trainer_client.training.checkpoints.feed_checkpoint import FeedCheckpoint  # isort: skip
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder  # isort: skip
from trainer_client import EarlyStop, InitialValues, NoProgress, Until  # isort: skip

EPOCHS = (5, 6, 4)


def test_its_public_names():
    own = {name for name in vars(FeedCheckpoint) if name[0] != "_"} - set(vars(keras.callbacks.Callback))
    assert own == {"epochs", "reason"}
    assert str(inspect.signature(FeedCheckpoint)) == (
        "(feed: 'Feed', folder: 'str | Path', *, every: 'int | None' = None, keep: 'int' = 3, "
        "early_stop: 'EarlyStop | None' = None, until: 'Until | None' = None, "
        "initial: 'InitialValues | None' = None) -> 'None'"
    )


def fit(feed, callbacks, model=None, epochs=3):
    """Without a model, the one of the fit before is as new again."""
    if model is None:
        take_back()
        model = tiny_model()
    model.fit(feed.dataset(**FORM), epochs=epochs, verbose=0, callbacks=callbacks)
    return model


def values(model):
    return [tf.convert_to_tensor(v).numpy() for v in [*model.variables, *model.optimizer.variables]]


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    feed = FakeFeed(epochs=EPOCHS)
    return values(fit(feed, [FeedCheckpoint(feed, tmp_path_factory.mktemp("whole"))]))


@pytest.mark.fault(66)
def test_a_closed_folder_is_refused_before_the_first_step():
    feed = FakeFeed(epochs=EPOCHS)
    with folder_for_all() as folder:
        callback = FeedCheckpoint(feed, folder / "new")
        callback.set_model(tiny_model())
        refusal = rf"^checkpoints: expected a folder that user [1-9]\d* may write to, got {folder} of user"
        with as_another_user(), pytest.raises(SettingsError, match=refusal):
            callback.on_train_begin()


class TestResume:
    @pytest.mark.fault(17)
    @pytest.mark.parametrize("stop_after", [1, 5, 8])
    def test_stopped_anywhere_and_resumed_the_model_is_the_same(self, tmp_path, stop_after, never_stopped):
        feed = FakeFeed(epochs=EPOCHS)
        with pytest.raises(Stopped):
            fit(feed, [FeedCheckpoint(feed, tmp_path, every=2), StopAfter(stop_after)])
        feed = FakeFeed(epochs=EPOCHS)
        resumed = fit(feed, [FeedCheckpoint(feed, tmp_path, every=2)], tiny_model(new=True))
        for want, got in zip(never_stopped, values(resumed), strict=True):
            np.testing.assert_array_equal(got, want)

    def test_a_model_that_is_trained_without_being_called_is_saved(self, tmp_path):
        class Counting(keras.Model):
            def __init__(self):
                super().__init__()
                self.rows = self.add_weight(shape=(), trainable=False, initializer="zeros")

            def train_step(self, data):
                self.rows.assign_add(tf.reduce_sum(data[2]))
                return {"loss": 0.0}

        feed, model = FakeFeed(epochs=EPOCHS), Counting()
        model.compile()
        fit(feed, [FeedCheckpoint(feed, tmp_path)], model)
        arrays, record = CheckpointFolder(tmp_path, 1).read_last()
        assert not model.built
        assert (arrays["0"], record["epoch"]) == (model.rows.numpy(), 3)

    def test_without_a_checkpoint_the_feed_starts_at_its_beginning(self, tmp_path):
        feed = FakeFeed(epochs=EPOCHS)
        feed.restore({**feed.state(), "epoch": 1, "number": 3})
        assert len(fit(feed, [FeedCheckpoint(feed, tmp_path)], epochs=1).seen) == 5

    def test_epochs_are_absolute_so_a_finished_run_trains_nothing_more(self, tmp_path):
        feed = FakeFeed(epochs=EPOCHS)
        model = fit(feed, [FeedCheckpoint(feed, tmp_path)])
        assert len(model.seen) == 15
        fit(feed, [FeedCheckpoint(feed, tmp_path)], model)
        assert len(model.seen) == 15
        fit(feed, [FeedCheckpoint(feed, tmp_path)], model, epochs=4)
        assert len(model.seen) == 20

    def test_a_model_without_variables_and_nothing_left_to_train_is_refused(self, tmp_path):
        feed = FakeFeed(epochs=EPOCHS)
        fit(feed, [FeedCheckpoint(feed, tmp_path)])
        with pytest.raises(SettingsError, match=r"expected a built model.*Call or build the model"):
            fit(feed, [FeedCheckpoint(feed, tmp_path)], tiny_model(new=True))

    def test_saved_at_the_very_end_of_an_epoch_the_next_one_follows(self, tmp_path):
        feed = FakeFeed(epochs=EPOCHS)
        with pytest.raises(Stopped):
            fit(feed, [FeedCheckpoint(feed, tmp_path, every=5), StopAfter(5)])
        feed = FakeFeed(epochs=EPOCHS)
        assert len(fit(feed, [FeedCheckpoint(feed, tmp_path)]).seen) == 6 + 4

    def test_stopped_politely_inside_an_epoch_its_rest_follows(self, tmp_path):
        class Enough(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                self.model.stop_training = batch == 2

        feed = FakeFeed(epochs=EPOCHS)
        assert len(fit(feed, [FeedCheckpoint(feed, tmp_path), Enough()]).seen) == 3
        feed = FakeFeed(epochs=EPOCHS)
        assert len(fit(feed, [FeedCheckpoint(feed, tmp_path)]).seen) == 2 + 6 + 4

    def test_another_model_is_refused(self, tmp_path):
        feed = FakeFeed(epochs=EPOCHS)
        fit(feed, [FeedCheckpoint(feed, tmp_path)], epochs=1)
        with pytest.raises(
            DataError,
            match=r"expected the model\'s 9 variables, of which number \d is .*kernel with shape \(.*\), got 9 values",
        ):
            fit(feed, [FeedCheckpoint(feed, tmp_path)], tiny_model(units=2))

    def test_another_plan_is_refused(self, tmp_path):
        feed = FakeFeed(epochs=EPOCHS)
        feed.session.cursor.state = lambda: {"epoch": 0, "number": 2, "plan": "other"}
        fit(feed, [FeedCheckpoint(feed, tmp_path)], epochs=1)
        with pytest.raises(SettingsError, match="expected plan p, got other"):
            fit(feed, [FeedCheckpoint(feed, tmp_path)])

    def test_replicated_variables_come_back(self, tmp_path):
        strategy = mirrored()
        models = []
        for epochs in (1, 1):
            feed = FakeFeed(epochs=EPOCHS, replicas=2, slots=16)
            models.append(tiny_model(strategy))
            data = feed.distributed(strategy, **FORM)
            models[-1].fit(data, epochs=epochs, verbose=0, callbacks=[FeedCheckpoint(feed, tmp_path)])
        assert models[1].seen == []
        for want, got in zip(values(models[0]), values(models[1]), strict=True):
            np.testing.assert_array_equal(got, want)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_narrow_variables_come_back_exactly(self, tmp_path, dtype):
        def model():
            made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, dtype=dtype)])
            made.compile("sgd", "mse")
            return made

        form = {"map": lambda batch: (batch["audio"][:, 0], batch["weight"], batch["weight"])}
        made = [model(), model()]
        for one in made:
            feed = FakeFeed(epochs=EPOCHS)
            one.fit(feed.dataset(**form), epochs=1, verbose=0, callbacks=[FeedCheckpoint(feed, tmp_path)])
        for want, got in zip(values(made[0]), values(made[1]), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)


def test_what_an_epoch_came_to_is_told_with_its_rows(tmp_path):
    feed = FakeFeed(epochs=EPOCHS)
    model = tiny_model()
    history = model.fit(feed.dataset(**FORM), epochs=2, verbose=0, callbacks=[FeedCheckpoint(feed, tmp_path)]).history
    told = [(1, 5, 16, {"loss": history["loss"][0]}), (2, 11, 18, {"loss": history["loss"][1]})]
    assert feed.session.reported == told


class WorldEnds(keras.callbacks.Callback):
    """After so many batches."""

    def __init__(self, feed, after):
        super().__init__()
        self.feed, self.left = feed, after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            self.feed.session.interrupt(
                WorldChangedError(expected="it to go on", got="one is gone", where="here", remedy="Join the next.")
            )


class TestElastic:
    """A world that ends, and the next one, which is another feed."""

    def test_the_chief_commits_what_is_trained_as_the_world_ends(self, tmp_path, never_stopped):
        feed = FakeFeed(epochs=EPOCHS, is_elastic=True)
        with pytest.raises(WorldChangedError, match="one is gone"):
            fit(feed, [FeedCheckpoint(feed, tmp_path), WorldEnds(feed, 7)])
        feed = FakeFeed(epochs=EPOCHS, is_elastic=True)
        resumed = fit(feed, [FeedCheckpoint(feed, tmp_path)])
        assert len(resumed.seen) == 15 - 7, "nothing is trained anew"
        for want, got in zip(never_stopped, values(resumed), strict=True):
            np.testing.assert_array_equal(got, want)

    def test_only_the_chief_commits(self, tmp_path):
        feed = FakeFeed(epochs=EPOCHS, is_elastic=True, rank=1)
        with pytest.raises(WorldChangedError):
            fit(feed, [FeedCheckpoint(feed, tmp_path, every=1), WorldEnds(feed, 7)])
        assert list(tmp_path.iterdir()) == []

    def test_a_first_world_begins_with_the_chiefs_weights(self, tmp_path):
        began = []

        class NoteWeights(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                began.append(self.model.get_weights())

        for rank in (0, 1):
            feed = FakeFeed(epochs=EPOCHS, is_elastic=True, rank=rank)
            keras.utils.set_random_seed(rank)
            layers = keras.layers.Input((None, 3)), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)
            model = keras.Sequential(layers)
            model.compile(loss="mse")
            with pytest.raises(Stopped):
                model.fit(
                    feed.dataset(inputs="audio", targets="weight"), verbose=0,
                    callbacks=[FeedCheckpoint(feed, tmp_path), NoteWeights(), StopAfter(1)],
                )  # fmt: skip
            assert feed.session.cursor.at.number == 1
        for of_chief, of_other in zip(*began, strict=True):
            np.testing.assert_array_equal(of_chief, of_other)

    def test_a_chief_that_was_overtaken_is_told_so(self, tmp_path):
        feed = FakeFeed(epochs=EPOCHS, is_elastic=True)

        class Overtaken(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                (tmp_path / "00000009.npz").touch()

        with pytest.raises(WorldChangedError, match="number 9 from another trainer"):
            fit(feed, [FeedCheckpoint(feed, tmp_path, every=2), Overtaken()])

    def test_the_chief_commits_if_it_ends_while_ranks_agree_on_the_time(self, tmp_path):
        feed = FakeFeed(epochs=EPOCHS, is_elastic=True)
        over = WorldChangedError(expected="it to go on", got="one is gone", where="here", remedy="Join the next.")
        checkpoint = FeedCheckpoint(feed, tmp_path, until=ends_at_third_step(feed, over))
        with pytest.raises(WorldChangedError, match="one is gone"):
            fit(feed, [checkpoint])
        assert CheckpointFolder(tmp_path, 1).read_last()[1]["step"] == 3


def ends_at_third_step(feed, error):
    """A target of two ranks in step, who agree on the time after steps 1 and 3; the second time this is raised."""

    def agreed(_spent_s, at):
        if at["step"] == 3:
            raise error
        return 1.0

    feed.session.world, feed.session.agreed = 2, agreed
    return Until(max_time_s=5)


class JobEnds(keras.callbacks.Callback):
    """While the step in hand is the last of these many."""

    def __init__(self, feed, after):
        super().__init__()
        self.feed, self.left = feed, after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            self.feed.session.interrupt(ended())


def ended():
    return EndedError(expected="a batch", got="the coordinator's word", where="here", remedy="Start it again.")


class FailsAfterEpoch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise Stopped


class TestEndedJob:
    def test_ended_before_the_first_batch_a_new_model_leaves_nothing_that_the_next_run_stumbles_over(self, tmp_path):
        feed = FakeFeed(epochs=EPOCHS)
        at_once = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: feed.session.interrupt(ended()))
        assert fit(feed, [FeedCheckpoint(feed, tmp_path), at_once], tiny_model(new=True)).seen == []
        feed = FakeFeed(epochs=EPOCHS)
        model = fit(feed, [FeedCheckpoint(feed, tmp_path)], tiny_model(new=True), epochs=1)
        assert len(model.seen) == 5

    def test_ended_with_the_last_step_of_an_epoch_the_next_one_follows_whatever_fails_later(self, tmp_path):
        feed = FakeFeed(epochs=EPOCHS)
        with pytest.raises(Stopped):
            fit(feed, [FailsAfterEpoch(), FeedCheckpoint(feed, tmp_path), JobEnds(feed, 5)])
        feed = FakeFeed(epochs=EPOCHS)
        assert len(fit(feed, [FeedCheckpoint(feed, tmp_path)], epochs=2).seen) == 6

    def test_an_epoch_that_was_not_judged_is_not_saved_as_if_it_were(self, tmp_path):
        feed = FakeFeed(epochs=EPOCHS)
        stop = EarlyStop(NoProgress(9), monitor="loss")
        with pytest.raises(Stopped):
            fit(feed, [FailsAfterEpoch(), FeedCheckpoint(feed, tmp_path, every=4, early_stop=stop), JobEnds(feed, 5)])
        assert CheckpointFolder(tmp_path, 1).read_last()[1]["step"] == 4

    def test_ended_while_ranks_agree_on_the_time_the_step_in_hand_is_saved(self, tmp_path, capsys):
        feed = FakeFeed(epochs=EPOCHS)
        checkpoint = FeedCheckpoint(feed, tmp_path, until=ends_at_third_step(feed, ended()))
        assert len(fit(feed, [checkpoint]).seen) == 3
        _, record = CheckpointFolder(tmp_path, 1).read_last()
        assert [record["step"], record["run"]["steps"], record["feed"]["number"]] == [3, 3, 3]
        assert capsys.readouterr().out.splitlines()[-1].endswith(": the job was ended")

    @pytest.mark.parametrize("judges", [False, True])
    def test_ended_while_fit_evaluates_by_itself_the_epoch_has_no_values_of_that(self, tmp_path, capsys, judges):
        feed, dev = FakeFeed(epochs=EPOCHS), FakeFeed(epochs=(3,))
        how = {"early_stop": EarlyStop(NoProgress(9))} if judges else {}
        checkpoint = FeedCheckpoint(feed, tmp_path, every=2, until=Until(epochs=9), **how)
        ends = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: epoch and dev.session.interrupt(ended())
        )
        model, data = tiny_model(), {"validation_data": dev.dataset(**FORM)}
        history = model.fit(feed.dataset(**FORM), epochs=9, verbose=0, callbacks=[checkpoint, ends], **data).history
        assert (len(history["loss"]), len(history["val_loss"])) == (2, 1)
        assert capsys.readouterr().out.splitlines()[-1].endswith(": the job was ended")
        _, record = CheckpointFolder(tmp_path, 1).read_last()
        assert (record["epoch"], record["step"]) == ((1, 9) if judges else (2, 11)), "what is not judged is not saved"
        with pytest.raises(tf.errors.OpError, match="the coordinator's word"):
            model.evaluate(dev.dataset(**FORM), verbose=0)

    def test_another_error_of_what_fit_evaluates_leaves_it(self, tmp_path):
        feed, dev = FakeFeed(epochs=EPOCHS), FakeFeed(epochs=(3,), fail_at=(0, 1))
        with pytest.raises(tf.errors.OpError):
            tiny_model().fit(
                feed.dataset(**FORM), verbose=0, callbacks=[FeedCheckpoint(feed, tmp_path)],
                validation_data=dev.dataset(**FORM),
            )  # fmt: skip


class TestTargets:
    @pytest.mark.heritage("D7")
    def test_absolute_or_so_many_more_than_the_checkpoint_has(self, tmp_path, capsys):
        seen = []
        for target in (2, 2, "+2"):
            feed = FakeFeed(epochs=EPOCHS)
            checkpoint = FeedCheckpoint(feed, tmp_path, until=Until(epochs=target))
            take_back()
            model = tiny_model()
            model.fit(FakeFeed(epochs=(1,)).dataset(**FORM), verbose=0)
            model.seen.clear()
            fit(feed, [checkpoint], model, epochs=checkpoint.epochs)
            seen.append(len(model.seen))
        assert seen == [5 + 6, 0, 4 + 5]
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "STARTING: training fake from epoch 0, step 0, until 2 epochs"
        assert re.fullmatch(r"FINISHED: 2 epochs, 11 steps, 34 samples, 0:\d\d:\d\d: 2 epochs are reached", lines[1])
        assert lines[4] == "STARTING: training fake from epoch 2, step 11, until 4 epochs"
        assert lines[5].startswith("FINISHED: 4 epochs, 20 steps, 62 samples, 0:0")

    def test_so_many_steps_are_all_saved_and_the_next_run_goes_on_there(self, tmp_path):
        for target, want in ((8, 8), ("+1", 1), (9, 0), (10, 1)):
            feed = FakeFeed(epochs=EPOCHS)
            checkpoint = FeedCheckpoint(feed, tmp_path, until=Until(steps=target))
            take_back()
            model = tiny_model()
            model.fit(FakeFeed(epochs=(1,)).dataset(**FORM), verbose=0)
            model.seen.clear()
            fit(feed, [checkpoint], model, epochs=checkpoint.epochs)
            assert (len(model.seen), checkpoint.epochs) == (want, 2**31 - 1)
        assert (feed.epoch, feed.number) == (1, 5)

    @pytest.mark.heritage("L10")
    def test_after_so_long_it_ends_with_the_step_in_hand(self, tmp_path, capsys):
        feed = FakeFeed(epochs=(1000,), delay_s=0.01)
        checkpoint = FeedCheckpoint(feed, tmp_path, until=Until(max_time_s=0.3))
        steps = len(fit(feed, [checkpoint], epochs=checkpoint.epochs).seen)
        assert 1 <= steps < 1000
        assert (feed.epoch, feed.number, checkpoint.reason) == (0, steps, "0:00:00 are over")
        assert f"FINISHED: 0 epochs, {steps} steps" in capsys.readouterr().out

    def test_the_last_line_tells_early_stopping_and_others_from_the_target(self, tmp_path, capsys):
        class Enough(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                self.model.stop_training = True

        early = {"early_stop": EarlyStop(NoProgress(1, 99.0), monitor="loss")}
        for name, others, how, epochs in (("a", [], early, 9), ("b", [Enough()], {}, 9), ("c", [], {}, 1)):
            feed = FakeFeed(epochs=EPOCHS)
            fit(feed, [FeedCheckpoint(feed, tmp_path / name, until=Until(epochs=9), **how), *others], epochs=epochs)
        ends = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FINISHED")]
        assert ": stopped early, loss is " in ends[0]
        assert ends[1].endswith(": another callback stopped it")
        assert ends[2].endswith(": fit was given no more epochs")

    def test_without_a_target_there_is_nothing_to_pass_to_fit(self, tmp_path):
        with pytest.raises(SettingsError, match="expected a target, got none"):
            _ = FeedCheckpoint(FakeFeed(), tmp_path).epochs

    def test_a_checkpoint_of_a_run_without_a_target_counts_as_well(self, tmp_path, capsys):
        feed = FakeFeed(epochs=EPOCHS)
        model = fit(feed, [FeedCheckpoint(feed, tmp_path)], epochs=1)
        checkpoint = FeedCheckpoint(feed, tmp_path, until=Until(epochs="+1"))
        fit(feed, [checkpoint], model, epochs=checkpoint.epochs)
        assert len(model.seen) == 11
        assert "STARTING: training fake from epoch 1, step 5, until 2 epochs" in capsys.readouterr().out


class TestManners:
    def test_every_and_keep_are_checked(self, tmp_path):
        with pytest.raises(SettingsError, match="expected every and keep of at least 1, got every=0, keep=3"):
            FeedCheckpoint(FakeFeed(), tmp_path, every=0)

    def test_a_keras_that_would_miscount_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(keras, "__version__", "3.6.0")
        with pytest.raises(SettingsError, match=r"expected Keras 3.7 or later, got 3.6.0"):
            FeedCheckpoint(FakeFeed(), tmp_path)

    def test_a_feed_of_other_ranks_than_the_model_has_replicas_warns(self, tmp_path):
        feed = FakeFeed(epochs=(1,), slots=16)
        with pytest.warns(UserWarning, match="The model has 2 replicas here, and the feed occupies 1 ranks"):
            fit(feed, [FeedCheckpoint(feed, tmp_path)], tiny_model(mirrored()), epochs=1)

    def test_the_models_train_function_is_put_back(self, tmp_path):
        feed = FakeFeed(epochs=EPOCHS)
        model = fit(feed, [], epochs=1)
        own = model.train_function
        fit(feed, [FeedCheckpoint(feed, tmp_path)], model, epochs=1)
        assert model.train_function is own

    def test_it_is_put_back_after_an_error_of_the_feed(self, tmp_path):
        feed = FakeFeed(epochs=EPOCHS)
        model = fit(feed, [], epochs=1)
        own = model.train_function
        feed.session.fail_at = (0, 2)
        with pytest.raises(Exception, match="worker w1"):
            fit(feed, [FeedCheckpoint(feed, tmp_path)], model)
        assert model.train_function is own

    def test_after_an_error_of_another_callback_the_next_fit_counts_once(self, tmp_path):
        feed = FakeFeed(epochs=EPOCHS)
        model = tiny_model()
        with pytest.raises(Stopped):
            fit(feed, [FeedCheckpoint(feed, tmp_path, every=1), StopAfter(2)], model)
        fit(feed, [FeedCheckpoint(feed, tmp_path)], model)
        assert len(model.seen) == 15
        assert (feed.epoch, feed.number) == (3, 0)

    @pytest.mark.heritage("R8")
    def test_waiting_and_computing_are_told_apart(self, tmp_path):
        feed = FakeFeed(epochs=(6,), delay_s=0.03)
        checkpoint = FeedCheckpoint(feed, tmp_path)
        model = tiny_model()
        history = model.fit(feed.dataset(**FORM), epochs=1, verbose=0, callbacks=[checkpoint]).history
        times = checkpoint.times
        assert times.steps == 6
        assert times.wait_s > 0.03
        assert times.compute_s > 0
        assert history["data_wait_s"] == [times.wait_s]
        assert sum(feed.session.waits_s) == pytest.approx(times.wait_s)


class StartsWith(keras.callbacks.Callback):
    """Notes the kernel that each run of `fit` takes its first step with."""

    def __init__(self):
        super().__init__()
        self.kernels = []

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0 and self.model.built:
            self.kernels.append(self.model.dense.kernel.numpy())


@pytest.mark.heritage("L12")
@pytest.mark.parametrize("is_built", [True, False])
def test_a_model_begins_with_initial_values_once_and_is_restored_afterwards(tmp_path, capsys, is_built):
    first, second = FakeFeed(epochs=EPOCHS), FakeFeed(epochs=EPOCHS)
    source = fit(first, [FeedCheckpoint(first, tmp_path / "source")], tiny_model(new=True), epochs=1)
    capsys.readouterr()
    initial, folder = InitialValues(tmp_path / "source"), tmp_path / "own"
    model, begins = tiny_model(new=True), StartsWith()
    if is_built:
        model({"audio": np.zeros((1, 8, 3), np.float32), "tag": np.zeros(1, np.int64)})
    model.optimizer.learning_rate = 0.0
    fit(second, [FeedCheckpoint(second, folder, initial=initial), begins], model, epochs=1)
    np.testing.assert_array_equal(model.dense.kernel.numpy(), source.dense.kernel.numpy())
    assert capsys.readouterr().out == f"LOADED: 2 of 2 variables from {tmp_path / 'source' / '00000001.npz'}\n"
    model.dense.kernel.assign(model.dense.kernel + 1)
    fit(second, [FeedCheckpoint(second, folder, initial=initial)], model, epochs=1)
    assert capsys.readouterr().out == ""
    np.testing.assert_array_equal(model.dense.kernel.numpy(), source.dense.kernel.numpy())


def test_initial_values_that_do_not_fit_end_fit_and_change_nothing(tmp_path):
    feed = FakeFeed(epochs=EPOCHS)
    np.savez(tmp_path / "others.npz", kernel=np.zeros(3))
    model = tiny_model(new=True)
    callback = FeedCheckpoint(feed, tmp_path / "own", initial=InitialValues(tmp_path / "others.npz"))
    with pytest.raises(DataError, match="no value for dense"):
        fit(feed, [callback], model)
    assert not list(tmp_path.glob("own/*.npz"))
