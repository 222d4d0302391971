"""JAX's side: arrays over the slots' memory, and slots that come back once a step is through."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import trainer_client
from shared.wire.strings import StringArray, write_strings
from tests.support.loaders import wait_until
from tests.support.lone_core import BATCHES


@pytest.fixture(scope="module")
def adapter():
    """Not imported before a test runs: tests are collected in every process."""
    return pytest.importorskip("trainer_client.jax", exc_type=ImportError)


def test_arrays_share_the_slots_memory_until_the_step_is_through(ends, adapter):
    with trainer_client.connect(ends.endpoint, prefetch=4) as feed:
        memory = feed._session.receiver.memory
        slots = [memory.slot(slot) for slot in range(feed._session.receiver.stream.slots.slots)]
        outbox, batches = feed._session.receiver.outbox, iter(adapter.FeedArrays(feed))
        batch = next(batches)
        places = [array.unsafe_buffer_pointer() for array in batch.values() if isinstance(array, adapter.jax.Array)]
        assert places
        for place in places:
            assert any(slot.ctypes.data <= place < slot.ctypes.data + slot.nbytes for slot in slots)
        total = adapter.jax.jit(adapter.jax.numpy.sum)(batch["audio"])
        del batch
        batches.close()
        total.block_until_ready()

        def is_held():
            adapter.jax.device_put(0).block_until_ready()  # JAX lets go of numpy's arrays in a later call
            gc.collect()
            return outbox.holds_more_than(0)

        wait_until(lambda: not is_held(), "the slot is free again")


def test_values_are_those_of_the_numpy_batch(ends, feed, adapter):
    with trainer_client.connect(ends.endpoint) as other:
        for mine, numpy_batch in zip(adapter.FeedArrays(feed), other, strict=True):
            assert mine.number == numpy_batch.number
            for key, array in mine.items():
                assert array.dtype == numpy_batch[key].dtype
                np.testing.assert_array_equal(np.asarray(array), numpy_batch[key])


@pytest.mark.parametrize("dtype", ["int64", "float64", "uint64"])
def test_wide_arrays_stay_numpys_unless_jax_has_them(feed, dtype, adapter):
    wide, data = np.arange(3).astype(dtype), adapter.FeedArrays(feed)
    assert data._array(wide) is wide
    with adapter.jax.enable_x64(True):
        assert data._array(wide).dtype == dtype


def test_arrays_that_jax_cannot_share_are_copied(feed, adapter):
    unaligned = np.frombuffer(bytes(range(65)), np.uint8)[1:]  # read-only too
    np.testing.assert_array_equal(np.asarray(adapter.FeedArrays(feed)._array(unaligned)), unaligned)


def test_a_sharding_makes_one_array_of_all_processes_rows(feed, adapter):
    mesh = adapter.jax.sharding.Mesh(np.array(adapter.jax.devices()), ("rows",))
    sharding = adapter.jax.sharding.NamedSharding(mesh, adapter.jax.sharding.PartitionSpec("rows"))
    batch = next(iter(adapter.FeedArrays(feed, sharding=sharding)))
    assert batch["audio"].sharding == sharding


def test_its_state_goes_on_where_it_was(ends, feed, adapter):
    data = adapter.FeedArrays(feed)
    next(iter(data))
    state = data.get_state()
    with trainer_client.connect(ends.endpoint) as other:
        resumed = adapter.FeedArrays(other)
        resumed.set_state(state)
        assert [batch.number for batch in resumed] == list(range(1, BATCHES))


def test_ranks_are_jaxs_processes(adapter):
    assert adapter.ranks() == {"rank": 0, "world": 1}


def test_strings_are_no_tensors(feed, adapter):
    tensor = np.zeros(40, np.uint8)
    write_strings(np.array([1, 2, 0, 1]), np.frombuffer("aüb".encode(), np.uint8), tensor)
    texts = StringArray(tensor, (2, -1))
    made = adapter.FeedArrays(feed)._array(texts)
    assert made.tolist() == [["a", "ü"], ["", "b"]]
