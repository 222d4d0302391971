from __future__ import annotations

import gc
import threading

import numpy as np

from shared.hashing import digest64
from shared.wire.message_parts import Ticket, WireShape
from shared.wire.messages import Pushed
from trainer_client.batch import Batch, owned


class Held:
    """Says so when it goes, as an item of the outbox does."""

    def __init__(self, returned: list[str]) -> None:
        self.returned = returned

    def __del__(self) -> None:
        self.returned.append(threading.current_thread().name)


def counted() -> tuple[list[str], np.ndarray]:
    returned: list[str] = []
    return returned, owned(np.arange(64, dtype=np.uint8), Held(returned))


def header(**more) -> Pushed:
    said = {
        "epoch": 0,
        "number": 0,
        "empty": False,
        "digest": 0,
        "rows": 1,
        "masked": 0,
        "nbytes": 64,
        "build_us": 1,
        "read_us": 0,
        "held_us": 1,
    }
    said |= {"waiting": 0, "reason": "", "reasons": ()}
    return Pushed(ticket=Ticket(0, 1), in_slot=True, shape=WireShape(1, ()), **{**said, **more})


def test_it_is_the_same_memory():
    data = np.zeros(64, np.uint8)
    view = owned(data, None)
    data[5] = 9
    assert view[5] == 9
    assert view.__array_interface__["data"] == data.__array_interface__["data"]


def test_the_slot_returns_once_with_the_last_view():
    returned, view = counted()
    inner = view[8:24].view(np.float32).reshape(2, 2)
    del view
    gc.collect()
    assert returned == []
    row = inner[1]
    del inner
    assert returned == []
    del row
    assert len(returned) == 1


def test_from_whichever_thread_drops_it():
    returned, view = counted()
    holder = [view]
    del view
    thread = threading.Thread(target=holder.clear, name="elsewhere")
    thread.start()
    thread.join()
    assert returned == ["elsewhere"]


def test_the_memory_lives_as_long_as_the_view():
    returned: list[str] = []
    view = owned(np.full(1_000_000, 7, np.uint8), Held(returned))
    gc.collect()
    np.zeros(1_000_000, np.uint8)
    assert int(view.sum()) == 7_000_000
    assert returned == []


def test_a_batch_is_a_dict_of_arrays_that_knows_which_one_it_is():
    arrays = {"audio": np.zeros((2, 3), np.float32)}
    batch = Batch(arrays, np.zeros(64, np.uint8), header(epoch=3, number=14, digest=99, rows=2, masked=1))
    assert dict(batch) == arrays
    assert (batch.epoch, batch.number, batch.empty, batch.digest, batch.rows, batch.masked) == (3, 14, False, 99, 2, 1)
    assert batch.built_by == ""


def test_a_digest_that_nobody_wrote_is_counted_from_the_bytes():
    payload = np.arange(64, dtype=np.uint8)
    assert Batch({}, payload, header(digest=0)).digest == digest64(payload.data)
    assert Batch({}, payload, header(digest=5)).digest == 5


def test_views_of_a_batch_keep_the_slot_after_the_batch_is_gone():
    returned, view = counted()
    batch = Batch({"a": view[:32], "b": view[32:]}, view, header())
    kept = batch["b"]
    del batch, view
    gc.collect()
    assert returned == []
    assert kept[0] == 32
    del kept
    assert len(returned) == 1
