"""Each replica's batches are on its device before the step asks; rounds, order, errors and ends stay the feed's."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import tests.support.two_devices  # before TensorFlow is used
from shared.errors import LostError
from tests.support.fake_feed import FakeFeed, tag_of
from tests.support.joined_feed import spread_feed
from tests.support.loaders import wait_until
from trainer_client.tf import exit_guard

import keras  # isort: skip - after the devices are set
import tensorflow as tf  # isort: skip

from tests.support.strategy_runs import FORM, trained  # isort: skip
from trainer_client import Until  # isort: skip
from trainer_client.training.strategies.central import Central  # isort: skip
from trainer_client.training.strategies.mirrored import Mirrored  # isort: skip
from trainer_client.training.strategies.towers.feeding import Rounds, put  # isort: skip

TOWERS = ("CPU:0", "CPU:1")


class Together(list):
    """What was put on the devices so far: of each round, the tags' and all devices."""

    def __call__(self, elements):
        on = [{each.device[-5:] for each in tf.nest.flatten(one)} for one in elements]
        self.append(([one[1].numpy().tolist() for one in elements], on))
        return tuple(elements)


def staging_threads():
    return [one for one in threading.enumerate() if one.name == "stoker-staging"]


def tags_of(number):
    rows = (4, 2)[number % 2]
    return [[tag_of(0, 2 * number + replica, row) for row in range(rows)] for replica in range(2)]


def test_strings_stay_on_the_host():
    element = {"id": tf.constant(["a"]), "number": tf.constant([1])}
    there = put(element, "CPU:1")
    assert there["id"] is element["id"]
    assert there["number"].device.endswith("CPU:1")


def test_the_next_rounds_are_on_their_devices_while_a_step_has_the_one_before():
    feed, there = FakeFeed(epochs=(7,), replicas=2), Together()
    step = tf.function(lambda element: tf.reduce_sum(element[0][0]["audio"]) + tf.reduce_sum(element[1][0]["audio"]))
    for taken, element in enumerate(Rounds(feed, FORM, TOWERS, there), 1):
        step(element)
        wait_until(lambda taken=taken: len(there) == min(taken + 2, 7), "two rounds more are there, and nobody asked")
        assert feed.session.batches_ahead()[1] == 2 * len(there), "handed over, and none is trained on"
        assert [one[1].numpy().tolist() for one in element] == tags_of(taken - 1)
    assert taken == 7
    assert [tags for tags, _ in there] == [tags_of(number) for number in range(7)], "in the plan's order"
    assert all(on == [{"CPU:0"}, {"CPU:1"}] for _, on in there)


@pytest.mark.heritage("T11")
@pytest.mark.parametrize("placement", [Mirrored, Central])
def test_a_step_of_the_loop_has_two_rounds_more_behind_its_own(tmp_path, placement):
    feed, found = spread_feed(2, epochs=(6,)), []

    def look(_wait_s):
        """The loop has its next round, and its step is not begun."""
        behind = min(2, 5 - len(found))
        wait_until(lambda: feed.session.batches_ahead()[1] == 2 * (1 + behind), "two rounds more are there")
        found.append(behind)

    feed.session.count_step_wait = look
    trained(tmp_path, placement(TOWERS), feed, optimizer=keras.optimizers.SGD, until=Until(epochs=1))
    assert found == [2, 2, 2, 2, 1, 0]


def test_the_pass_counts_once_its_consumer_has_seen_the_end_and_not_before():
    feed, there = FakeFeed(epochs=(2,), replicas=2), Together()
    rounds = iter(Rounds(feed, FORM, TOWERS, there))
    next(rounds)
    wait_until(lambda: not staging_threads(), "the thread has seen the end")
    assert feed.epoch == 0
    assert len(list(rounds)) == 1
    assert feed.epoch == 1


def test_a_pass_that_was_left_does_not_count_however_far_its_thread_had_come():
    feed, there = FakeFeed(epochs=(2,), replicas=2), Together()
    data = Rounds(feed, FORM, TOWERS, there)
    left = iter(data)
    next(left)
    wait_until(lambda: not staging_threads(), "the thread has seen the end")
    assert len(list(data)) == 2
    assert feed.epoch == 1
    del left


def test_an_error_of_the_feed_comes_as_its_own_behind_the_rounds_before_it():
    feed, there = FakeFeed(epochs=(9,), replicas=2, fail_at=(0, 7)), Together()
    rounds = iter(Rounds(feed, FORM, TOWERS, there))
    for _ in range(3):
        next(rounds)
    with pytest.raises(LostError) as caught:
        next(rounds)
    assert caught.value is feed.session.error
    assert feed.epoch == 0


def test_one_that_stops_early_leaves_no_thread_and_all_slots_come_back():
    feed, there = FakeFeed(epochs=(20,), replicas=2), Together()
    rounds = iter(Rounds(feed, FORM, TOWERS, there))
    kept = np.array(next(rounds)[1][0]["audio"])
    wait_until(lambda: len(there) == 3, "others are on their devices")
    del rounds
    wait_until(lambda: not staging_threads(), "the thread has ended")
    gc.collect()
    wait_until(lambda: feed.session.let_go() or feed.session.free.qsize() == feed.session.slots, "all slots are free")
    assert len(there) == 3
    assert kept.shape == (4, 8, 3)


def test_one_that_stops_while_nothing_comes_leaves_no_thread_once_the_feed_ends():
    feed, there = FakeFeed(epochs=(20,), replicas=2, starve_at=(0, 4)), Together()
    rounds = iter(Rounds(feed, FORM, TOWERS, there))
    next(rounds)
    feed.session.starving.wait()
    rounds.close()
    feed.session.interrupt(KeyboardInterrupt())
    wait_until(lambda: not staging_threads(), "the thread has ended")
    wait_until(lambda: not exit_guard._inside, "no thread is left inside")
