"""The loop with a served table: trained as a dense one is, judged by the cut that is saved, resumed, and exported."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import numpy as np
import pytest

from shared.errors import DataError, SettingsError
from shared.quick_import import quick_import
from tests.support.fake_feed import FakeFeed
from tests.trainer_client.training.servers.test_served_loop import Losses, MoveAt, QueueCursor
from tests.trainer_client.training.servers.test_served_model import Served

with quick_import():
    import keras
    import tensorflow as tf

    from trainer_client import Until, Validation
    from trainer_client.layers import ServedEmbedding
    from trainer_client.layers.initial_rows import initial_rows
    from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder
    from trainer_client.training.checkpoints.saved_tables import SavedTables, attach_saved_tables
    from trainer_client.training.evaluating.evaluate import models_own
    from trainer_client.training.evaluating.evaluator import Evaluator
    from trainer_client.training.loop.base_loop import TrainingData
    from trainer_client.training.loop.training_loop import TrainingLoop
    from trainer_client.training.runs.until import LoopSettings
    from trainer_client.training.servers.served_loop import ServedLoop, ServedSettings
    from trainer_client.training.servers.served_model import SharesSettings
    from trainer_client.training.servers.server_connections import ServerConnections
    from trainer_client.training.strategies.single import Single
    from trainer_client.training.train import export_model

FORM = {"inputs": "text", "targets": "weight", "weights": "weight"}
ROWS, DIM = 40, 3
FORM_OF_TABLE = ServedEmbedding("words", DIM, keras.initializers.RandomUniform(-1, 1), rows=ROWS).form


def model_of(table):
    """Of ids up to 16, which come more than once in a row and in a batch."""
    text = keras.Input((None,), dtype="int32")
    means = keras.layers.GlobalAveragePooling1D()(table(keras.ops.cumsum(text, axis=1)))
    return keras.Model(text, keras.layers.Dense(1, kernel_initializer="ones")(means))


def served_model():
    return model_of(ServedEmbedding("words", DIM, keras.initializers.RandomUniform(-1, 1), rows=ROWS))


class OneHot(keras.layers.Layer):
    """A table whose gradient is dense. Keras's optimizers square the parts of a row that a batch names twice."""

    def build(self, shape):
        self.table = self.add_weight(shape=(ROWS, DIM), name="table")

    def call(self, ids):
        return keras.ops.matmul(keras.ops.one_hot(ids, ROWS), self.table)


def dense_model(table):
    model = model_of(table)
    table.set_weights([initial_rows(FORM_OF_TABLE, np.arange(ROWS))])
    return model


def data_of(feed):
    return TrainingData(feed=feed, elements=Single().data(feed, FORM), for_each_shape=partial(feed.warm_up, **FORM))


def train(served, folder, epochs, *callbacks, make=None, pull_every=1, xla=False, model=None, **more):
    feed = FakeFeed(epochs=epochs)
    feed.session.cursor = QueueCursor(feed.session)
    model = model or served_model()
    model.compile((make or served.make)(), "mse")
    shares = SharesSettings(staleness=4, most=0, memory=None)
    worker = ServedSettings(is_chief=True, pull_every=pull_every, shares=shares)
    settings = LoopSettings(until=Until(epochs=len(epochs)), checkpoints=folder, xla=xla, **more)
    with closing(ServerConnections(served.endpoints, None, 60.0)) as connections:
        loop = ServedLoop(model, data_of(feed), connections, worker, settings, callbacks)
        loop.run()
    return loop, model


def train_dense(folder, epochs, make, table=None):
    losses, feed, model = Losses(), FakeFeed(epochs=epochs), dense_model(table or OneHot())
    model.compile(make(), "mse")
    settings = LoopSettings(until=Until(epochs=len(epochs)), checkpoints=folder)
    TrainingLoop(model, data_of(feed), Single(), settings, [losses]).run()
    return losses.steps, model


def saved_in(folder):
    return CheckpointFolder(folder, 3).read_last()


MAKES = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "clipnorm": lambda: keras.optimizers.SGD(0.05, clipnorm=0.1),
    "clipvalue": lambda: keras.optimizers.SGD(0.05, clipvalue=0.2),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.05, 10, 0.5)),
}


@pytest.mark.parametrize(
    ("name", "servers"), [("sgd", 1), ("sgd", 2), ("adagrad", 2), ("clipnorm", 2), ("clipvalue", 1), ("schedule", 2)]
)
@pytest.mark.heritage("E21")
def test_losses_over_50_steps_are_those_of_a_dense_table(tmp_path, name, servers):
    make = MAKES[name]
    served, losses = Served(servers, make), Losses()
    try:
        train(served, tmp_path / "served", (50,), losses)
        table = keras.layers.Embedding(ROWS, DIM) if name == "sgd" else OneHot()
        dense, model = train_dense(tmp_path / "dense", (50,), make, table)
        assert len(dense) == 50
        assert np.mean(dense[-5:]) < np.mean(dense[:5]) / 2
        np.testing.assert_allclose(losses.steps, dense, rtol=1e-5, atol=1e-7)
        saved = SavedTables(*saved_in(tmp_path / "served"))
        ids = np.arange(ROWS, dtype=np.int64)
        np.testing.assert_allclose(
            saved.rows(FORM_OF_TABLE, ids, training=False), model.trainable_variables[0].numpy(), rtol=1e-5, atol=1e-6
        )
        assert len(saved.whole("words")[0]) < ROWS - 10, "only rows that a gradient has met"
    finally:
        served.close()


@pytest.fixture(params=[1, 2], ids=["one", "two"])
def served(request):
    served = Served(request.param, MAKES["adagrad"])
    yield served
    served.close()


def test_between_two_pulls_rows_are_pulled_anew(served, tmp_path):
    losses = Losses()
    train(served, tmp_path / "served", (20,), losses, pull_every=4)
    dense, _ = train_dense(tmp_path / "dense", (20,), served.make)
    np.testing.assert_allclose(losses.steps[:4], dense[:4], rtol=1e-5)
    assert losses.steps[-1] < losses.steps[0] / 2


def test_a_run_is_resumed_with_another_number_of_servers_as_if_it_had_never_ended(served, tmp_path):
    first, second = Losses(), Losses()
    train(served, tmp_path / "served", (10,), first)
    served.close()
    others = Served(3, served.make)
    try:
        train(others, tmp_path / "served", (10, 15), second)
    finally:
        others.close()
    dense, _ = train_dense(tmp_path / "dense", (10, 15), served.make)
    np.testing.assert_allclose([*first.steps, *second.steps], dense, rtol=1e-5)


def test_servers_that_lose_their_rows_go_back_to_those_of_the_checkpoint(served, tmp_path):
    losses = Losses()
    train(served, tmp_path / "served", (24,), losses, MoveAt(served, 13), save_every_steps=5)
    dense, _ = train_dense(tmp_path / "dense", (24,), served.make)
    back = 13 - (len(losses.steps) - 24)  # what was trained again is trained from the checkpoint on
    assert 0 < back < 13
    np.testing.assert_allclose([*losses.steps[:back], *losses.steps[13:]], dense, rtol=1e-5)


class EvaluatedAgain(keras.callbacks.Callback):
    """Each epoch's evaluation."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_epoch_end(self, epoch, logs=None):
        self.values.append(logs["val_fake_loss"])


def evaluated(folder):
    """As `trainer-client evaluate` does, with a model of its own."""
    arrays, record = saved_in(folder)
    model = served_model()
    attach_saved_tables(model, arrays, record)
    feed = FakeFeed(epochs=(3,), evaluation=True)
    return Evaluator(model, "mse", ()).evaluate(feed.dataset(**FORM), models_own(arrays, record))["loss"]


def test_the_chief_and_an_evaluation_of_the_checkpoint_have_the_same_values(served, tmp_path):
    noted = EvaluatedAgain()
    validation = Validation(FakeFeed(epochs=(3,), evaluation=True), epochs=1, **FORM)
    train(served, tmp_path, (8, 8), validation, noted)
    assert evaluated(tmp_path) == pytest.approx(noted.values[-1], rel=1e-6)
    assert noted.values[-1] < noted.values[0]


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")  # of Keras, as it saves
@pytest.mark.parametrize("name", ["model.keras", "served"])
def test_an_exported_model_has_the_whole_table(served, tmp_path, name):
    loop, model = train(served, tmp_path / "checkpoints", (8,))
    loop.hold_tables()
    export_model(model, loop._data.elements, tmp_path / name)
    ids = np.array([[1, 3, 1], [7, 21, 4]], np.int32)
    arrays, record = saved_in(tmp_path / "checkpoints")
    other = served_model()
    attach_saved_tables(other, arrays, record)
    for variable, value in zip(other.variables, models_own(arrays, record), strict=True):
        variable.assign(value)
    wanted = other(ids).numpy()
    if name == "served":
        loaded = tf.saved_model.load(str(tmp_path / name))
        got = loaded.serve(tf.constant(ids))
    else:
        got = keras.saving.load_model(tmp_path / name)(ids)
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-6)


class MoveWithin(keras.callbacks.Callback):
    """Once, the server is another one as an epoch is judged."""

    def __init__(self, served):
        super().__init__()
        self.served, self.epochs = served, []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(epoch)
        if len(self.epochs) == 2:
            self.served.stop(0)
            self.served.start(0)
            self.model.predict(np.ones((2, 2), np.int32), verbose=0)


def test_an_epoch_is_judged_again_if_servers_move_while_a_callback_evaluates(served, tmp_path):
    moved, losses = MoveWithin(served), Losses()
    train(served, tmp_path / "served", (5, 5, 5), losses, moved)
    assert moved.epochs == [0, 1, 1, 2]
    dense, _ = train_dense(tmp_path / "dense", (5, 5, 5), served.make)
    np.testing.assert_allclose([*losses.steps[:10], *losses.steps[15:]], dense, rtol=1e-5)


# --- what is refused ---


def test_a_table_in_any_other_training_is_refused(tmp_path):
    model = served_model()
    model.compile("sgd", "mse")
    settings = LoopSettings(until=Until(epochs=1), checkpoints=tmp_path)
    with pytest.raises(SettingsError, match="--strategy parameter-server"):
        TrainingLoop(model, data_of(FakeFeed(epochs=(2,))), Single(), settings).run()
    with pytest.raises(RuntimeError, match="--strategy parameter-server"):
        model.fit(np.ones((2, 2), np.int32), np.ones(2), verbose=0)


def test_xla_is_refused_by_name(served, tmp_path):
    with pytest.raises(SettingsError, match=r"--xla: .* got table words"):
        train(served, tmp_path, (2,), xla=True)


def test_an_id_that_the_table_lacks_ends_the_run(served, tmp_path):
    model = model_of(ServedEmbedding("words", DIM, rows=4))
    with pytest.raises(DataError, match="ids from 0 to 3"):
        train(served, tmp_path, (9,), model=model)


def test_a_checkpoint_of_other_tables_is_refused(served, tmp_path):
    train(served, tmp_path, (2,))
    served.close()
    others = Served(1, served.make)
    try:
        with pytest.raises(DataError, match=r"tables as the model has them: words \(any id of 3"):
            train(others, tmp_path, (2, 2), model=model_of(ServedEmbedding("words", DIM)))
        with pytest.raises(DataError, match="none, got words"):
            train(others, tmp_path, (2, 2), model=model_of(keras.layers.Embedding(ROWS, DIM)))
    finally:
        others.close()
