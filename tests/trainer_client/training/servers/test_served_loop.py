"""The chief's loop over a real server: by what an epoch is judged, whoever trained it and whatever servers did."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import numpy as np
import pytest

from shared.errors import SettingsError
from shared.quick_import import quick_import
from shared.wire.message_parts import DoneSet, EpochDone, Lease
from tests.support.fake_feed import FakeFeed, LeasedCursor
from tests.support.lending import Lending

with quick_import():
    import keras

    from tests.trainer_client.training.servers.test_served_model import Served
    from trainer_client import EarlyStop, InitialValues, NoProgress, Until, Validation
    from trainer_client.session.shared_results import MeansOfTrainers
    from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder
    from trainer_client.training.loop.base_loop import TrainingData
    from trainer_client.training.runs.until import LoopSettings
    from trainer_client.training.servers import served_loop
    from trainer_client.training.servers.served_loop import ServedLoop, ServedSettings
    from trainer_client.training.servers.served_model import ServedModel, SharesSettings
    from trainer_client.training.servers.served_optimizer import CollectedGradients
    from trainer_client.training.servers.server_connections import ServerConnections
    from trainer_client.training.strategies.single import Single

FORM = {"inputs": "audio_length", "targets": "weight", "weights": "weight"}


class QueueCursor(LeasedCursor):
    """Of a trainer that is leased its batches in order; an epoch of no batches is one that others have taken."""

    reading = 0

    def state(self):
        return {"epochs": [[self.at.epoch, self.done, []]]}

    def restore(self, state):
        ((epoch, self.done, _),) = state["epochs"]
        self._go_to(epoch, 0)

    def rewind(self):
        self.restore({"epochs": [[0, 0, []]]})

    # --- leases, of the same batches ---

    def count_handed_over(self, reading, rounds):
        pass

    def give_back(self):
        """Who has lost its server takes the queue back, this batch as well."""

    def in_hand(self):
        return Lease(self.at.epoch, self.done, 1)


class Judged(keras.callbacks.Callback):
    """Notes the epochs that callbacks are told to be over."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(epoch)


class Losses(keras.callbacks.Callback):
    """Of each step, and of each epoch."""

    def __init__(self):
        super().__init__()
        self.steps, self.epochs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(logs["loss"])


class MoveAt(keras.callbacks.Callback):
    """After so many steps the server is another one, which has nothing."""

    def __init__(self, served, steps):
        super().__init__()
        self.served, self.left = served, steps

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            self.served.stop(0)
            self.served.start(0)


@pytest.fixture
def served():
    served = Served(1)
    yield served
    served.close()


def dense():
    return [keras.layers.Reshape((1,)), keras.layers.Dense(1)]


class Worker(Lending):
    """Lends the model of dense layers, and what its step collects gradients in: each step overwrites all of them.

    The optimizer, of which the step is to know nothing, is a new one in each run.
    """

    def __init__(self):
        super().__init__(Single(compiles_updates=False))
        self._kept = None

    def collected(self, optimizer, variables, *, goes_on):
        self._kept = self._kept or CollectedGradients(optimizer, variables, goes_on=goes_on)
        return self._kept

    def _variables(self):
        return self._model.variables


LENT = Worker()


def train(served, folder, epochs, *callbacks, layers=None, is_chief=True, workers=1, gathered=(), **more):
    """Train for as many epochs as there are, of so many steps each; why it ended, and the last record.

    Without layers, the model is the one of the run before, as it was before the first step.
    """
    feed = FakeFeed(epochs=epochs)
    session = feed.session
    session.gathered = dict(gathered)
    session.cursor = QueueCursor(session)
    model = LENT.model(dense_model) if layers is None else keras.Sequential([keras.layers.Input(()), *layers()])
    model.compile(served.make(), "mse")
    data = TrainingData(feed=feed, elements=Single().data(feed, FORM), for_each_shape=partial(feed.warm_up, **FORM))
    shares = SharesSettings(staleness=4, most=0, memory=None)
    worker = ServedSettings(is_chief=is_chief, pull_every=1, shares=shares, workers=workers)
    settings = LoopSettings(until=Until(epochs=len(epochs)), checkpoints=folder, **more)
    connections = ServerConnections(served.endpoints, None, 60.0)
    with pytest.MonkeyPatch.context() as patch, closing(connections):
        if layers is None:
            patch.setattr(served_loop, "Single", lambda **_: LENT)
            patch.setattr(served_loop, "CollectedGradients", LENT.collected)
        reason = ServedLoop(model, data, connections, worker, settings, callbacks).run()
    return reason, CheckpointFolder(folder, 3).read_last()[1] if is_chief else session


@pytest.mark.parametrize(("monitor", "judged"), [("loss", [0, 2]), ("val_fake_loss", [0, 1, 2])])
def test_an_epoch_whose_batches_others_took_has_what_it_was_evaluated_by_and_no_loss(served, tmp_path, monitor, judged):
    validation = Validation(FakeFeed(epochs=(1,), evaluation=True), epochs=1, **FORM)
    stop = EarlyStop(NoProgress(9), monitor=monitor)
    reason, record = train(served, tmp_path, (2, 0, 2), validation, stop)
    assert reason == "3 epochs are reached"
    assert [epoch for epoch, _ in record["early_stop"]["evaluated"]] == judged


def test_an_epoch_at_whose_end_servers_have_moved_is_judged_once_it_is_trained_again(served, tmp_path):
    judged = Judged()
    reason, record = train(served, tmp_path, (2, 3), MoveAt(served, 5), judged)
    assert reason == "2 epochs are reached"
    assert judged.epochs == [0, 1]
    assert record["step"] == 5


def test_an_epoch_that_was_taken_back_to_its_midst_is_judged_by_all_of_its_batches(served, tmp_path):
    losses = Losses()
    train(served, tmp_path, (6,), losses, MoveAt(served, 4), save_every_steps=2)
    behind = len(losses.steps) - 4  # what came after the move, from the checkpoint on
    assert 2 < behind < 6, "some of the epoch were trained on again, and not all"
    trained = [*losses.steps[: 6 - behind], *losses.steps[4:]]
    np.testing.assert_allclose(losses.epochs, [np.average(trained, weights=[4, 2] * 3)], rtol=1e-6)


class RateAt(keras.callbacks.Callback):
    """Sets the learning rate where it is told to; notes what the server goes by once that callback is over."""

    def __init__(self, served, **rates):
        super().__init__()
        self.served, self.rates, self.server_rates = served, rates, []

    def _set(self, where):
        self.server_rates.append(float(server_optimizer(self.served).learning_rate.numpy()))
        if where in self.rates:
            self.model.optimizer.learning_rate = self.rates.pop(where)

    def on_train_begin(self, logs=None):
        self.began_at = float(self.model.optimizer.learning_rate.numpy())
        if "begin" in self.rates:
            self.model.optimizer.learning_rate = self.rates.pop("begin")

    def on_epoch_begin(self, epoch, logs=None):
        self._set("epoch_begin")

    def on_train_batch_begin(self, batch, logs=None):
        self._set("batch_begin")

    def on_train_batch_end(self, batch, logs=None):
        self._set("batch_end")

    def on_epoch_end(self, epoch, logs=None):
        self._set("epoch_end")


def server_optimizer(served):
    return served.running[0][0]._store._optimizer


@pytest.mark.parametrize(
    ("where", "before"), [("begin", 0), ("epoch_begin", 1), ("batch_begin", 2), ("batch_end", 3), ("epoch_end", 6)]
)
def test_what_a_callback_sets_is_on_the_server_before_the_next_is_called_and_in_the_checkpoint(
    served, tmp_path, where, before
):
    callback = RateAt(served, **{where: 0.5})
    train(served, tmp_path, (2, 2), callback)
    assert callback.server_rates[before:] == pytest.approx([0.5] * (12 - before))
    assert callback.server_rates[:before] == pytest.approx([0.1] * before)
    arrays, record = CheckpointFolder(tmp_path, 3).read_last()
    rates = [array for at, array in arrays.items() if int(at) >= record["model_variables"]]
    assert rates[1] == 0.5


def test_a_rate_that_is_set_as_the_last_epoch_ends_is_in_its_checkpoint(served, tmp_path):
    train(served, tmp_path, (2,), RateAt(served, epoch_end=0.5))
    arrays, record = CheckpointFolder(tmp_path, 3).read_last()
    assert arrays[str(record["model_variables"] + 1)] == 0.5


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras' own callback, with this numpy
def test_a_rate_goes_back_with_the_checkpoint_and_callbacks_set_it_anew(served, tmp_path):
    """The server is lost after the rate was set: the epoch begins again, and so does its schedule."""
    by_epoch = keras.callbacks.LearningRateScheduler(lambda epoch: 0.5 if epoch else 0.25)
    train(served, tmp_path, (2, 3), by_epoch, MoveAt(served, 3))
    assert float(server_optimizer(served).learning_rate.numpy()) == 0.5


def test_a_callback_that_changes_anything_else_of_the_optimizer_ends_training_with_its_name(served, tmp_path):
    class Weaken(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.optimizer.beta_1 = 0.5

    with pytest.raises(SettingsError, match=r"got beta_1 changed from 0\.9 to 0\.5"):
        train(served, tmp_path, (2,), Weaken())


def test_a_chief_that_goes_on_with_what_servers_have_goes_on_with_their_rate(served, tmp_path):
    """It was set after the last checkpoint."""
    train(served, tmp_path, (2,))
    served.stop(0)
    served.start(0)
    with served.trainer(dense_model()) as other:
        other.serve(DoneSet((EpochDone(1, 0, ()),)), 2)
        assert other.look()
        other.set_rate(0.5)
        watch = RateAt(served)
        train(served, tmp_path, (2, 2), watch)
    assert watch.server_rates == [0.5] * len(watch.server_rates)
    assert watch.began_at == 0.5


class ForgottenAt(RateAt):
    """The server forgets all trainers just before the rate is set, though it serves on."""

    def _set(self, where):
        if where in self.rates:
            self.served.running[0][0].state._heard_s.clear()
        super()._set(where)


def test_a_rate_is_set_again_if_the_server_had_forgotten_the_chief(served, tmp_path):
    callback = ForgottenAt(served, batch_end=0.5)
    _, record = train(served, tmp_path, (4,), callback)
    assert callback.server_rates[-1] == 0.5
    assert record["step"] == 4


def test_the_queue_is_taken_back_while_nothing_is_served(served, tmp_path, monkeypatch):
    """A chief without a checkpoint meets servers that serve what an earlier one gave them."""
    seen = []

    def rewind(cursor):
        seen.append(served.running[0][0].state.generation)
        cursor.restore({"epochs": [[0, 0, []]]})

    monkeypatch.setattr(QueueCursor, "rewind", rewind)
    with served.trainer(dense_model()) as other:
        other.serve(DoneSet((EpochDone(0, 0, ()),)), 0)
        train(served, tmp_path, (2,))
    assert seen == [0]


def test_a_worker_reads_where_the_queue_is_once_the_chief_has_given_shares(served, tmp_path, monkeypatch):
    """It attached when the queue was at its end."""

    def follow(cursor):
        cursor.restore({"epochs": [[1, 0, []]]})
        return True

    monkeypatch.setattr(QueueCursor, "follow", follow, raising=False)
    with served.trainer(dense_model()) as other:
        other.serve(DoneSet((EpochDone(0, 0, ()),)), 0)
        reason, session = train(served, tmp_path, (2, 3), is_chief=False)
    assert reason == "2 epochs are reached"
    assert session.yielded == [(1, 0), (1, 1), (1, 2)]


def dense_model():
    return keras.Sequential([keras.layers.Input(()), *dense()])


def test_a_step_that_came_too_late_has_no_line(served, tmp_path, capsys, monkeypatch):
    push, late = ServedModel.push, iter([False, False, True, True, True, False])
    monkeypatch.setattr(ServedModel, "push", lambda *how: False if next(late, False) else push(*how))
    train(served, tmp_path, (6,), tell_every=2)
    lines = [line for line in capsys.readouterr().out.splitlines() if " steps/s" in line]
    assert [line.partition(":")[0] for line in lines] == ["epoch 0.33, step 2"]


def test_the_epochs_line_has_all_workers_and_others_say_that_they_are_of_this_process(served, tmp_path, capsys):
    losses = Losses()
    whole = MeansOfTrainers(means={"loss": 0.25}, rows=99, parts=2, trainers=2)
    train(served, tmp_path, (2, 2), losses, workers=2, gathered={1: whole}, tell_every=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("epoch 1.00, step 2: ")
    assert f" steps/s; this process: loss {np.average(losses.steps[:2], weights=[4, 2]):.4f}, waiting " in lines[1]
    assert lines[2] == "epoch 1 is over, step 2 (99 samples of 2 processes): loss 0.2500"
    assert lines[4].startswith("epoch 2 is over, step 4 (6 samples of 1 process): loss ")
    assert losses.epochs[0] == 0.25


def test_lines_count_the_steps_of_all_workers(served, tmp_path, capsys, monkeypatch):
    """The server has heard of twice as many, of which this worker's are half."""
    monkeypatch.setattr(ServedModel, "heard_version", property(lambda self: 2 * max(self.version, self._heard_version)))
    train(served, tmp_path, (4,), tell_every=4)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines if " steps/s" in line] == [
        "epoch 0.50, step 4",
        "epoch 1.00, step 8",
    ]
    assert "epoch 1 is over, step 8" in lines[-2]
    assert lines[-1].startswith("FINISHED: 1 epochs, 8 steps, ")


def table():
    return [
        keras.layers.Embedding(99, 4, embeddings_initializer="ones"),
        keras.layers.Dense(1, kernel_initializer="ones"),
    ]


def test_xla_compiles_what_a_worker_computes_and_not_the_rows_that_it_pushes(tmp_path):
    values = []
    for xla in (False, True):
        with closing(Served(2)) as servers:
            train(servers, tmp_path / str(xla), (3, 2), layers=table, xla=xla)
        arrays, _ = CheckpointFolder(tmp_path / str(xla), 3).read_last()
        values.append([arrays[str(at)] for at in range(len(arrays))])
    for one, other in zip(*values, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert np.unique(values[0][0]).size > 1


def test_the_chief_gives_servers_initial_values_if_there_is_no_checkpoint(served, tmp_path, capsys):
    train(served, tmp_path / "source", (3,))
    arrays, record = CheckpointFolder(tmp_path / "source", 3).read_last()
    served.stop(0)
    served.start(0)
    np.savez(tmp_path / "own.npz", **{name: arrays[str(at)] + 1 for at, name in enumerate(record["names"])})
    capsys.readouterr()
    initial = InitialValues(tmp_path / "own.npz")
    train(served, tmp_path / "own", (2,), RateAt(served, begin=0.0), initial=initial)
    first = CheckpointFolder(tmp_path / "own", 3).read("00000001.npz", otherwise="")[0]
    last = CheckpointFolder(tmp_path / "own", 3).read_last()[0]
    for at in range(record["model_variables"]):
        np.testing.assert_array_equal(first[str(at)], arrays[str(at)] + 1)
        np.testing.assert_array_equal(last[str(at)], arrays[str(at)] + 1)
    assert capsys.readouterr().out.splitlines()[0] == f"LOADED: 2 of 2 variables from {tmp_path / 'own.npz'}"
