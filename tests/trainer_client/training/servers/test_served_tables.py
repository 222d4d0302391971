"""Tables on real servers, whose loops run in threads: rows pulled, pushed, saved, and given to other servers."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from shared.errors import DataError, RefusedError, SettingsError
from shared.quick_import import quick_import
from shared.wire.message_parts import Lease
from tests.trainer_client.training.servers.test_served_model import NOTHING, Served

with quick_import():
    import keras

from trainer_client.layers import ServedEmbedding
from trainer_client.layers.initial_rows import initial_rows
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder
from trainer_client.training.checkpoints.saved_tables import SavedTables, record_of_tables
from trainer_client.training.servers.served_model import MovedError
from trainer_client.training.servers.served_tables import refuse_unfit_tables


def adagrad():
    return keras.optimizers.Adagrad(0.1)


def with_tables(rows=None, **more):
    words = ServedEmbedding("words", 4, "ones", rows=rows, **more)
    others = ServedEmbedding("others", 2, seed=3)
    ids = keras.Input((2,), dtype="int64")
    both = keras.layers.Concatenate()([words(ids), others(ids)])
    return keras.Model(ids, keras.layers.Dense(1)(both))


@pytest.fixture(params=[1, 3], ids=["one", "three"])
def served(request):
    served = Served(request.param, make=adagrad)
    yield served
    served.close()


@contextmanager
def two_trainers(served, **how):
    with served.trainer(with_tables(), **how) as chief, served.trainer(with_tables(), **how) as worker:
        chief.serve(NOTHING, 0)
        assert chief.look()
        worker.wait_for_shares(60)
        yield chief, worker


def ids_of(*ids):
    return np.array(ids, np.int64)


def gradients_of(ids, value=1.0):
    return {"words": (ids, np.full((len(ids), 4), value, np.float32))}


def rows_of(trainer, ids, *, training=True, table="words"):
    form = next(form for form in trainer.tables.forms if form.name == table)
    return trainer.tables.rows(form, ids, training=training)


def push(trainer, number, ids, value=1.0):
    trainer.pull()
    return trainer.push(Lease(0, number, 1), {}, gradients_of(ids, value))


IDS = np.sort(np.random.default_rng(0).choice(2**62, 500, replace=False)).astype(np.int64)


def test_rows_go_to_their_servers_and_every_trainer_gets_them(served):
    with two_trainers(served) as (chief, worker):
        np.testing.assert_array_equal(rows_of(worker, IDS), np.ones((500, 4), np.float32))
        assert push(chief, 0, IDS[:300])
        assert push(worker, 1, IDS[200:], value=-2.0)
        chief.pull()
        found, single = rows_of(chief, IDS), adagrad()
        table = keras.Variable(np.ones((500, 4), np.float32))
        for where, value in ((slice(0, 300), 1.0), (slice(200, 500), -2.0)):
            whole = np.zeros((500, 4), np.float32)
            whole[where] = value
            single.apply([keras.ops.convert_to_tensor(whole)], [table])
        np.testing.assert_allclose(found, table.numpy(), rtol=1e-6)
        chief.tables.raise_failure()
    held = [len(server._store._tables[0]) for server, _ in served.running.values()]
    assert sum(held) == 500
    assert min(held) > 400 / len(held), "they are spread"
    assert all(not len(server._store._tables[1]) for server, _ in served.running.values())
    steps = [int(server._store._optimizer.iterations.numpy()) for server, _ in served.running.values()]
    assert steps[-1] == 2, "the first server counts a batch as one step"


def test_a_trainer_gets_rows_with_all_that_it_has_pushed(served):
    """Also those of servers that hear of the batch only by the first one's order."""
    with two_trainers(served) as (chief, _):
        for number in range(20):
            before = rows_of(chief, IDS)
            assert push(chief, number, IDS)
            assert (rows_of(chief, IDS) < before).all()
        chief.tables.raise_failure()


def test_more_ids_than_a_message_may_have_are_asked_for_in_pieces(served):
    with two_trainers(served) as (chief, _):
        many = np.arange(150_000, dtype=np.int64)
        np.testing.assert_array_equal(rows_of(chief, many, table="others"), initial_rows(chief.tables.forms[1], many))


def test_outside_training_rows_are_those_of_the_last_cut(served):
    with two_trainers(served) as (chief, _):
        assert push(chief, 0, IDS)
        chief.save(0)
        cut = rows_of(chief, IDS, training=False)
        assert push(chief, 1, IDS)
        np.testing.assert_array_equal(rows_of(chief, IDS, training=False), cut)
        assert (rows_of(chief, IDS) < cut).all()


def saved_in(folder, chief):
    checkpoints = CheckpointFolder(folder, 3)
    model = with_tables()
    checkpoints.write({}, {"tables": record_of_tables(model)}, chief.tables.saved_arrays())
    return SavedTables(*checkpoints.read_last())


@pytest.mark.parametrize("later", [1, 2, 5])
def test_a_checkpoint_goes_to_another_number_of_servers_with_the_state_of_each_row(served, tmp_path, later):
    others = Served(later, make=adagrad)
    try:
        with two_trainers(served) as (chief, _):
            assert push(chief, 0, IDS)
            chief.save(0)
            saved = saved_in(tmp_path, chief)
            np.testing.assert_array_equal(saved.rows(chief.tables.forms[0], IDS, training=False), rows_of(chief, IDS))
            assert push(chief, 1, IDS)
            after = rows_of(chief, IDS)
        with others.trainer(with_tables()) as chief:
            chief.serve(NOTHING, 1, saved)
            assert chief.look()
            chief.pull()
            np.testing.assert_array_equal(rows_of(chief, IDS), saved.rows(chief.tables.forms[0], IDS, training=True))
            assert push(chief, 1, IDS)
            np.testing.assert_array_equal(rows_of(chief, IDS), after)
        assert sum(len(server._store._tables[0]) for server, _ in others.running.values()) == 500
    finally:
        others.close()


def test_whoever_trained_last_all_go_back_to_the_rows_of_the_checkpoint(served, tmp_path):
    with two_trainers(served) as (chief, worker):
        assert push(chief, 0, IDS[:250])
        done = chief.save(0)
        saved = saved_in(tmp_path, chief)
        assert push(worker, 1, IDS)
        last = len(served.endpoints) - 1
        served.stop(last)
        served.start(last)
        rows_of(worker, IDS)
        with pytest.raises(MovedError):
            worker.tables.raise_failure()
        chief.withdraw()
        chief.serve(done, 1, saved)
        assert chief.look()
        worker.wait_for_shares(60)
        found = rows_of(worker, IDS)
        assert (found[:250] < 1).all()
        assert (found[250:] == 1).all(), "no gradient of the checkpoint has met these"


def test_a_server_that_was_restarted_while_rows_were_given_serves_nothing(served, tmp_path):
    with two_trainers(served) as (chief, _):
        assert push(chief, 0, IDS)
        done = chief.save(0)
        saved = saved_in(tmp_path, chief)
        chief.withdraw()
        give, last = chief.tables.give, len(served.endpoints) - 1

        def give_and_restart(*arguments):
            given = give(*arguments)
            served.stop(last)
            served.start(last)
            return given

        chief.tables.give = give_and_restart
        chief.serve(done, 1, saved)
        assert not chief.look()
        chief.tables.give = give
        chief.withdraw()
        chief.serve(done, 1, saved)
        assert chief.look()
        assert (rows_of(chief, IDS) < 1).all()


def test_a_checkpoint_that_too_few_servers_have_no_memory_for_is_refused_by_name(served, tmp_path):
    small = Served(1, make=adagrad, memory=499 * 40)
    try:
        with two_trainers(served) as (chief, _):
            assert push(chief, 0, IDS)
            chief.save(0)
            saved = saved_in(tmp_path, chief)
        with small.trainer(with_tables()) as chief, pytest.raises(RefusedError, match=r"those of the checkpoint.*Add"):
            chief.serve(NOTHING, 1, saved)
    finally:
        small.close()


def test_rows_that_a_server_has_no_memory_for_are_refused_by_name():
    served = Served(1, make=adagrad, memory=20_000)
    try:
        with served.trainer(with_tables()) as chief:
            chief.serve(NOTHING, 0)
            assert chief.look()
            assert push(chief, 0, IDS[:100])
            with pytest.raises(RefusedError, match=r"--server-memory, 0\.0 MiB.*Add parameter servers"):
                push(chief, 1, IDS)
            assert push(chief, 2, IDS[:100]), "rows that are there take no more"
    finally:
        served.close()


# --- what is refused ---


def test_an_id_that_a_table_of_so_many_rows_lacks_is_an_error(served):
    with served.trainer(with_tables(rows=10)) as chief:
        chief.serve(NOTHING, 0)
        assert chief.look()
        rows_of(chief, ids_of(0, 9))
        chief.tables.raise_failure()
        for outside in (-1, 10):
            rows_of(chief, ids_of(3, outside))
            with pytest.raises(DataError, match=f"ids from 0 to 9, got {outside}"):
                chief.tables.raise_failure()
        chief.tables.raise_failure()


def test_a_model_with_other_tables_than_the_chief_has_is_refused(served):
    with served.trainer(with_tables()) as chief, served.trainer(with_tables(seed=9)) as worker:
        chief.serve(NOTHING, 0)
        assert chief.look()
        with pytest.raises(SettingsError, match="the same --model"):
            worker.look()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: keras.optimizers.AdamW(0.1), "without weight_decay"),
        (lambda: keras.optimizers.SGD(0.1, weight_decay=0.1), "without weight_decay"),
        (lambda: keras.optimizers.Adam(0.1, global_clipnorm=1.0), "without global_clipnorm"),
        (lambda: keras.optimizers.Adam(0.1, use_ema=True), "without use_ema"),
        (lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "without gradient_accumulation_steps"),
        (lambda: keras.optimizers.Adafactor(0.1), "updates each number by itself"),
        (lambda: keras.optimizers.Nadam(0.1), "updates each number by itself"),
    ],
)
def test_an_optimizer_that_cannot_train_rows_apart_is_refused_by_name(make, words):
    with pytest.raises(SettingsError, match=words):
        refuse_unfit_tables(with_tables(), make())
    refuse_unfit_tables(keras.Sequential([keras.layers.Dense(1)]), make())


class Twice(keras.Model):
    def __init__(self):
        super().__init__()
        self.table, self.dense = ServedEmbedding("words", 4), keras.layers.Dense(1, name="words")

    def call(self, ids):
        return self.dense(self.table(ids))


def test_a_table_and_a_layer_of_one_name_are_refused():
    model = Twice()
    model(np.zeros((1, 1), np.int64))
    with pytest.raises(SettingsError, match='two that are called "words"'):
        refuse_unfit_tables(model, adagrad())
