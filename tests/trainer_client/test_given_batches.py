"""What a framework's loop was given counts once the next batch or the state is asked for."""

from __future__ import annotations

import numpy as np
import pytest

import trainer_client
from shared.errors import SettingsError
from tests.support.lone_core import BATCHES
from trainer_client.given_batches import GivenBatches


def test_arrays_are_converted_and_the_epoch_is_counted(feed):
    given = GivenBatches(feed, np.ndarray.tolist, "here")
    batches = list(given)
    assert [batch.number for batch in batches] == list(range(BATCHES))
    assert all(isinstance(value, list) for batch in batches for value in batch.values())
    assert (feed.epoch, feed.number) == (1, 0)


def test_the_state_after_a_step_is_behind_its_batch(feed):
    given = GivenBatches(feed, np.asarray, "here")
    batches = iter(given)
    assert next(batches).number == 0
    assert next(batches).number == 1
    assert (given.state()["number"], given.state()["number"]) == (2, 2)  # asked twice, counted once
    assert next(batches).number == 2
    assert feed.number == 2
    batches.close()  # a loop that is left: its last batch was given, and nothing says that it was trained on
    assert next(iter(given)).number == 2


def test_it_goes_on_where_a_state_was(ends, feed):
    given = GivenBatches(feed, np.asarray, "here")
    batches = iter(given)
    next(batches)
    state = given.state()
    with trainer_client.connect(ends.endpoint) as other:
        resumed = GivenBatches(other, np.asarray, "here")
        resumed.restore(state)
        assert [batch.number for batch in resumed] == list(range(1, BATCHES))
    given.restore(state | {"number": 0})
    assert next(iter(given)).number == 0


def test_several_ranks_of_one_process_are_refused(ends):
    with trainer_client.connect(ends.endpoint, replicas=2) as feed, pytest.raises(SettingsError) as caught:
        GivenBatches(feed, np.asarray, "FeedTensors")
    assert str(caught.value).startswith("FeedTensors: expected a feed of one rank, got one of 2.")
