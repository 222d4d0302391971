"""What a server's store refuses of rows, before anything is decided on them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from shared.errors import ProtocolError
from shared.quick_import import quick_import
from shared.wire.message_parts import (
    DoneSet,
    EpochDone,
    Lease,
    PartGradient,
    TableForm,
    TableGradient,
    VariablePart,
)
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


SCALAR, MATRIX = VariablePart(0, 0, (), "float32"), VariablePart(1, 0, (3, 2), "float32")


def serve(parts, store):
    variables = [keras.Variable(np.zeros(part.shape, part.dtype)) for part in parts]
    optimizer = adagrad()
    state = OptimizerVariables(optimizer, variables)
    everything = [*variables, *state.common, *(variable for each in state.of_each for variable in each)]
    store.adopt(replace(share(), parts=parts), frame(*(variable.numpy() for variable in everything)))


def of_parts(*gradients, of=()):
    parts, arrays = zip(*gradients, strict=True)
    return replace(push([4])[0], parts=parts, tables=of), frame(*(array for each in arrays for array in each))


ROW_IDS, ROW = np.array([0], np.int64), np.ones((1, 2), np.float32)
WHOLE = np.ones((3, 2), np.float32)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (of_parts((PartGradient(2, None), [WHOLE])), "part 2 of 2"),
        (of_parts((PartGradient(0, 1), [ROW_IDS, ROW])), "rows of part 0, which has none"),
        (of_parts((PartGradient(0, 0), [])), "rows of part 0, which has none"),
        (of_parts((PartGradient(1, None), [WHOLE]), (PartGradient(1, None), [WHOLE])), "several gradients of a part"),
        (of_parts((PartGradient(1, 1), [ROW_IDS + 3, ROW])), "row 3 of 3"),
        (of_parts((PartGradient(1, 1), [ROW_IDS - 1, ROW])), "row -1 of 3"),
        (of_parts((PartGradient(1, 2**40), [ROW_IDS, ROW])), "16 bytes for"),
        (
            of_parts(
                (PartGradient(1, None), [WHOLE, ROW_IDS, ROW, ROW_IDS, ROW]),
                of=(TableGradient(0, 1), TableGradient(0, 1)),
            ),
            "several gradients of a table",
        ),
    ],
)
def test_gradients_that_are_of_no_part_are_refused(store, message, words):
    serve((SCALAR, MATRIX), store)
    with pytest.raises(ProtocolError, match=words):
        store.read(*message)


def test_gradients_of_parts_are_read(store):
    serve((SCALAR, MATRIX), store)
    read = store.read(*of_parts((PartGradient(0, None), [np.float32(2)]), (PartGradient(1, 1), [ROW_IDS, ROW])))
    assert [place for place, _ in read.parts] == [0, 1]
    store.apply(read)


def test_a_share_whose_parts_are_larger_than_its_frame_takes_no_memory(store):
    parts = (VariablePart(0, 0, (2**40, 2**40), "float32"),)
    with pytest.raises(ProtocolError, match="8 bytes for"):
        store.adopt(replace(share(), parts=parts), frame(np.zeros(1)))


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
