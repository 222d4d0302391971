"""What a server's store refuses of rows, before anything is decided on them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from shared.errors import ProtocolError
from shared.quick_import import quick_import
from shared.wire.message_parts import DoneSet, EpochDone, Lease, TableForm, TableGradient
from shared.wire.topics import server_messages as m

with quick_import():
    import keras

from trainer_client.layers.initial_rows import initial_rows
from trainer_client.training.servers.served_optimizer import OptimizerVariables
from trainer_client.training.servers.share_store import ShareStore, frame_of

FORM = TableForm("words", 2, None, 0, "uniform", -1.0, 1.0)
adagrad = partial(keras.optimizers.Adagrad, 0.1)


def frame(*arrays):
    return memoryview(frame_of(arrays))


def share(generation=7, given=0):
    return m.ServeShare(
        serial=1, generation=generation, version=0, staleness=1, most=0, parts=(), tables=(FORM,), given=(given,),
        done=DoneSet((EpochDone(0, 0, ()),)), nbytes=0,
    )  # fmt: skip


def give(ids, generation=7, values=None):
    rows = np.ones((len(ids), 2), np.float32)
    arrays = frame(np.array(ids, np.int64), rows, rows) if values is None else values
    return m.GiveRows(
        serial=1, generation=generation, table=0, form=FORM, rows=len(ids), nbytes=len(arrays)
    ), arrays  # fmt: skip


def push(ids, table=0):
    gradients = frame(np.array(ids, np.int64), np.ones((len(ids), 2), np.float32))
    return m.Push(
        serial=1, trainer=1, generation=7, lease=Lease(0, 0, 1), based_on=0, refused=None, is_step=True, parts=(),
        tables=(TableGradient(table, len(ids)),), nbytes=len(gradients),
    ), gradients  # fmt: skip


@pytest.fixture
def store():
    store = ShareStore(adagrad)
    optimizer = adagrad()
    common = OptimizerVariables(optimizer, []).common
    store.adopt(share(), frame(*(variable.numpy() for variable in common)))
    store.common = [variable.numpy() for variable in common]
    return store


def rows(store, ids, cut=0):
    asked = m.PullRows(
        serial=1, trainer=1, generation=7, at_least=0, table=0, cut=cut, ids=np.array(ids, np.int64).tobytes()
    )
    return np.frombuffer(store.rows(asked), np.float32).reshape(-1, 2)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (push([4, 4]), "do not rise"),
        (push([4, 3]), "do not rise"),
        (push([4], table=1), "table 1 of 1"),
        ((push([4])[0], frame(np.zeros(3, np.int64))), "24 bytes for 16"),
    ],
)
def test_gradients_of_rows_that_fit_no_table_are_refused(store, message, words):
    with pytest.raises(ProtocolError, match=words):
        store.read(*message)


def test_gradients_of_rows_are_applied_once_a_step(store):
    before = rows(store, [4, -1])
    store.apply(store.read(*push([-1, 4])))
    assert (rows(store, [4, -1]) < before).all()
    assert int(store._optimizer.iterations.numpy()) == 1
    store.apply(None)
    assert int(store._optimizer.iterations.numpy()) == 1
    np.testing.assert_array_equal(before, initial_rows(FORM, np.array([4, -1], np.int64)))


def test_gradients_that_wait_are_their_own(store):
    """The frame of a message is used again for the next one."""
    message, gradients = push([5])
    held = bytearray(gradients)
    read = store.read(message, memoryview(held))
    held[:] = bytes(len(held))
    ((_, ids, values),) = read.rows
    assert ids.tolist() == [5]
    assert values.tolist() == [[1.0, 1.0]]


def test_rows_that_were_given_belong_to_one_share(store):
    store.give(*give([1, 2], generation=8))
    store.give(*give([3], generation=8))
    assert store.has_rows_of(share(8, given=3))
    assert not store.has_rows_of(share(8, given=2))
    assert not store.has_rows_of(share(9, given=3))
    assert store.has_rows_of(share(9, given=0))
    store.give(*give([2, 3], generation=8))
    assert store.has_rows_of(share(8, given=3)), "sent again, as the answer was lost"
    store.give(*give([9], generation=9))
    assert not store.has_rows_of(share(8, given=3))
    store.adopt(share(9, given=1), frame(*store.common))
    assert (rows(store, [9]) == 1).all()
    np.testing.assert_array_equal(rows(store, [1]), initial_rows(FORM, np.array([1], np.int64)))


@pytest.mark.parametrize(
    ("message", "words"),
    [(give([2, 1]), "do not rise"), (give([1, 2], values=frame(np.zeros(5, np.int64))), "40 bytes for 48")],
)
def test_rows_that_do_not_fit_are_not_taken(store, message, words):
    with pytest.raises(ProtocolError, match=words):
        store.give(*message)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (m.PullRows(serial=1, trainer=1, generation=7, at_least=0, table=1, cut=0, ids=b""), "table 1 of 1"),
        (m.PullRows(serial=1, trainer=1, generation=7, at_least=0, table=0, cut=0, ids=bytes(9)), "9 bytes of ids"),
        (m.SaveRows(serial=1, generation=7, cut=1, table=0, array=3, start=0), "array 3 of 3"),
    ],
)
def test_what_is_not_there_is_refused(store, message, words):
    with pytest.raises(ProtocolError, match=words):
        store.refuse_unknown(message)
    store.refuse_unknown(m.SaveRows(serial=1, generation=7, cut=1, table=0, array=2, start=0))
