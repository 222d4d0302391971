"""Rows of a table on one server: found, made, updated as in a dense run, and cut for a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.quick_import import quick_import
from shared.wire.message_parts import TableForm
from trainer_client.training.servers.row_index import NOWHERE, RowIndex

with quick_import():
    import keras
    import tensorflow as tf

from trainer_client.layers.initial_rows import initial_rows
from trainer_client.training.servers.row_table import RowTable

FORM = TableForm("words", 3, None, 7, "uniform", -0.5, 0.5)
IDS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 50)


def ids_of(*ids):
    return np.array(ids, np.int64)


# --- the index ---


@settings(deadline=None)
@given(st.lists(st.lists(IDS, max_size=40), max_size=8))
def test_an_index_finds_what_a_dict_finds(rounds):
    index, places = RowIndex(), {}
    for ids in rounds:
        new = list(dict.fromkeys(each for each in ids if each not in places))
        index.add(ids_of(*new))
        places |= {each: len(places) + at for at, each in enumerate(new)}
        asked = [*ids, 7, -1, 2**63 - 1]
        assert index.find(ids_of(*asked)).tolist() == [places.get(each, NOWHERE) for each in asked]
        assert len(index) == len(places)


def test_an_index_grows_and_finds_all_that_it_had():
    index, ids = RowIndex(), np.random.default_rng(1).permutation(100_000).astype(np.int64) * 1024
    for start in range(0, len(ids), 7_001):
        index.add(ids[start : start + 7_001])
    np.testing.assert_array_equal(index.find(ids), np.arange(len(ids)))
    assert (index.find(ids + 1) == NOWHERE).all()


# --- updates ---

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
}


def dense_run(make, ids, steps):
    """The table of a dense run after these steps, each with ids and gradients."""
    table, optimizer = keras.Variable(initial_rows(FORM, ids)), make()
    for named, gradients in steps:
        whole = np.zeros((len(ids), 3), np.float32)
        whole[np.searchsorted(ids, named)] = gradients
        optimizer.apply([tf.constant(whole)], [table])
    return table.numpy()


def steps_over(ids, many, seed):
    random = np.random.default_rng(seed)
    for _ in range(many):
        named = np.sort(random.choice(ids, random.integers(1, len(ids)), replace=False))
        yield named, random.standard_normal((len(named), 3)).astype(np.float32)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_rows_are_those_of_a_dense_run(make):
    """Also of more rows than are updated at once, and of a schedule that counts steps, of which each is one."""
    ids = np.arange(-1500, 1500, dtype=np.int64)
    steps = list(steps_over(ids, 5, 3))
    table = RowTable(FORM, make())
    for at, (named, gradients) in enumerate(steps):
        table.apply(named, gradients, at, None)
    np.testing.assert_allclose(table.rows(ids), dense_run(make, ids, steps), rtol=1e-6, atol=1e-7)


def test_adam_is_the_lazy_one():
    """A row that no batch names stands still, with its state; its correction goes by all steps."""
    table, ids = RowTable(FORM, keras.optimizers.Adam(0.1)), ids_of(1, 2)
    gradient = np.ones((1, 3), np.float32)
    table.apply(ids_of(1), gradient, 0, None)
    after = table.rows(ids)
    for steps in range(1, 5):
        table.apply(ids_of(2), gradient, steps, None)
    np.testing.assert_array_equal(table.rows(ids)[0], after[0])
    table.apply(ids_of(1), gradient, 5, None)
    first, second = 0.9 * 0.1 + 0.1, 0.999 * 0.001 + 0.001  # its own two gradients
    rate = 0.1 * np.sqrt(1 - 0.999**6) / (1 - 0.9**6)
    np.testing.assert_allclose(table.rows(ids)[0], after[0] - rate * first / (np.sqrt(second) + 1e-7), rtol=1e-5)


def test_a_learning_rate_that_was_set_holds_for_rows():
    table = RowTable(FORM, keras.optimizers.SGD(0.1))
    table.apply(ids_of(4), np.ones((1, 3), np.float32), 0, 2.0)
    np.testing.assert_allclose(table.rows(ids_of(4)), initial_rows(FORM, ids_of(4)) - 2.0, rtol=1e-6)


def test_rows_that_are_only_asked_for_take_no_memory():
    table = RowTable(FORM, keras.optimizers.Adagrad(0.1))
    np.testing.assert_array_equal(table.rows(ids_of(5, -9)), initial_rows(FORM, ids_of(5, -9)))
    assert (len(table), table.count_new(ids_of(5, -9))) == (0, 2)
    table.apply(ids_of(5), np.ones((1, 3), np.float32), 0, None)
    assert (len(table), table.count_new(ids_of(5, -9))) == (1, 1)
    assert table.row_bytes == 8 + 2 * 12


# --- cuts ---


def test_a_cut_stays_as_it_was_and_is_given_to_other_servers():
    make = OPTIMIZERS["adagrad"]
    ids = np.arange(0, 3000, 3, dtype=np.int64)
    shuffled = np.random.default_rng(0).permutation(ids)
    table, gradients = RowTable(FORM, make()), np.ones((len(ids), 3), np.float32)
    for start in range(0, len(ids), 300):
        named = np.sort(shuffled[start : start + 300])
        table.apply(named, gradients[: len(named)], 0, None)
    before = table.rows(ids)
    table.cut()
    table.apply(ids, gradients, 1, None)
    table.apply(ids_of(1), gradients[:1], 2, None)
    np.testing.assert_array_equal(table.rows_of_cut(ids), before)
    np.testing.assert_array_equal(table.rows_of_cut(ids_of(1, 10**9)), initial_rows(FORM, ids_of(1, 10**9)))
    arrays = [whole_of(table, array) for array in range(3)]
    np.testing.assert_array_equal(arrays[0], ids)
    np.testing.assert_array_equal(arrays[1], before)
    other = RowTable(FORM, make())
    other.give(ids, arrays[1:])
    other.apply(ids, gradients, 1, None)
    np.testing.assert_array_equal(other.rows(ids), table.rows(ids))


def whole_of(table, array):
    pieces, at = [], 0
    while True:
        rows, arrays, piece = table.piece_of_cut(array, at, 1000)
        assert arrays == 3
        assert piece.nbytes <= 1000
        if not len(piece):
            break
        pieces.append(piece.copy())
        at += len(piece)
    assert at == rows
    return np.concatenate(pieces)


def test_a_table_that_was_never_cut_has_rows_as_they_are_made():
    np.testing.assert_array_equal(
        RowTable(FORM, keras.optimizers.SGD(1.0)).rows_of_cut(ids_of(3)), initial_rows(FORM, ids_of(3))
    )
