"""PyTorch's side: tensors over the slots' memory, and a dataset as torch knows it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import trainer_client
from shared.errors import SettingsError
from shared.wire.strings import StringArray, write_strings
from tests.support.lone_core import BATCHES


@pytest.fixture(scope="module")
def adapter():
    """Not imported before a test runs: tests are collected in every process."""
    return pytest.importorskip("trainer_client.torch", exc_type=ImportError)


def test_tensors_share_the_slots_memory_and_slots_come_back_with_the_last(ends, adapter):
    with trainer_client.connect(ends.endpoint, prefetch=4) as feed:
        memory = feed._session.receiver.memory
        places = {memory.slot(slot).ctypes.data for slot in range(feed._session.receiver.stream.slots.slots)}
        outbox, batches = feed._session.receiver.outbox, iter(adapter.FeedTensors(feed))
        batch = next(batches)
        assert min(tensor.data_ptr() for tensor in batch.values()) in places
        part = batch["audio"][:1]
        del batch
        assert outbox.holds_more_than(0)
        del part
        batches.close()
        assert not outbox.holds_more_than(0)


def test_values_are_those_of_the_numpy_batch(ends, feed, adapter):
    with trainer_client.connect(ends.endpoint) as other:
        for mine, numpy_batch in zip(adapter.FeedTensors(feed), other, strict=True):
            assert mine.keys() == numpy_batch.keys()
            assert (mine.number, mine.epoch, mine.rows) == (numpy_batch.number, numpy_batch.epoch, numpy_batch.rows)
            for key, tensor in mine.items():
                np.testing.assert_array_equal(tensor.numpy(), numpy_batch[key])


def test_a_data_loader_reads_it_in_its_own_process_only(feed, adapter):
    data = adapter.FeedTensors(feed)
    batches = list(adapter.torch.utils.data.DataLoader(data, batch_size=None))
    assert len(batches) == BATCHES
    assert isinstance(batches[0]["audio"], adapter.torch.Tensor)
    with pytest.raises(RuntimeError, match=r"got a DataLoader with num_workers=1\. Leave num_workers out"):
        next(iter(adapter.torch.utils.data.DataLoader(data, batch_size=None, num_workers=1)))
    with pytest.raises(SettingsError, match=r"got one that is sent to another process\. Leave num_workers out"):
        pickle.dumps(data)


def test_its_state_is_a_dict_that_goes_into_a_checkpoint(tmp_path, ends, feed, adapter):
    data = adapter.FeedTensors(feed)
    batches = iter(data)
    next(batches)
    adapter.torch.save({"model": adapter.torch.zeros(1), "data": data.state_dict()}, tmp_path / "checkpoint.pt")
    saved = adapter.torch.load(tmp_path / "checkpoint.pt", weights_only=True)["data"]
    with trainer_client.connect(ends.endpoint) as other:
        resumed = adapter.FeedTensors(other)
        resumed.load_state_dict(copy.deepcopy(saved))
        assert [batch.number for batch in resumed] == list(range(1, BATCHES))


def test_ranks_are_the_environments(monkeypatch, adapter):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert adapter.ranks() == {"rank": 0, "world": 1}
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(SettingsError, match=r"expected numbers in RANK and WORLD_SIZE.*RANK='2', WORLD_SIZE=''"):
        adapter.ranks()
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert adapter.ranks() == {"rank": 2, "world": 4}


def test_strings_are_no_tensors(feed, adapter):
    tensor = np.zeros(40, np.uint8)
    write_strings(np.array([1, 2, 0, 1]), np.frombuffer("aüb".encode(), np.uint8), tensor)
    texts = StringArray(tensor, (2, -1))
    made = adapter.FeedTensors(feed)._tensor(texts)
    assert made == [["a", "ü"], ["", "b"]]
