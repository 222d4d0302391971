"""Before Python shuts down, threads of TensorFlow are out of every pass, and none is on its way in."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from tests.support.fake_feed import FakeFeed
from tests.support.loaders import ROOT
from trainer_client import leaving, tf_dataset


class Pass:
    """What a thread of a framework reads; it comes out so late after it was told."""

    def __init__(self, late_s=0.0):
        self.ended = threading.Event()
        self.late_s = late_s
        leaving.watch(self)

    def end(self):
        self.ended.set()

    def read(self):
        leaving.entered(self)
        self.ended.wait()
        time.sleep(self.late_s)
        leaving.left(self)


@pytest.fixture(autouse=True)
def nobody_inside():
    yield
    leaving._inside.clear()


def ended_after_s():
    began_s = time.monotonic()
    leaving._end_all()
    return time.monotonic() - began_s


def test_whoever_waits_is_told_and_waited_for():
    one = Pass(late_s=0.2)
    thread = threading.Thread(target=one.read)
    thread.start()
    assert 0.2 <= ended_after_s() < leaving._PATIENCE_S
    assert not leaving._inside
    thread.join()


def test_one_that_came_out_just_now_may_be_on_its_way_in():
    one = Pass()
    one.end()
    one.read()
    assert leaving._REST_S / 2 < ended_after_s() < leaving._PATIENCE_S


def test_one_that_rests_is_not_waited_for():
    _kept = Pass()
    time.sleep(leaving._REST_S)
    assert ended_after_s() < leaving._REST_S


def test_one_that_never_comes_out_holds_up_nobody():
    one = Pass()
    leaving.entered(one)
    assert leaving._PATIENCE_S <= ended_after_s() < 2 * leaving._PATIENCE_S


def test_a_pass_that_tensorflow_waits_for_ends():
    feed = FakeFeed(starve_at=(0, 3))
    data = tf_dataset.make(feed, inputs="audio")
    iterator = iter(data)
    next(iterator), next(iterator)
    feed.starving.wait()
    leaving._end_all()
    assert not leaving._inside
    assert len(list(iterator)) == 1  # what had been read before; then an end, and no error that nobody would see
    feed.close()


PROGRAM = """
import threading
from tests.support.fake_feed import FakeFeed
from trainer_client import tf_dataset

feed = FakeFeed(starve_at=(0, 50), epochs=(1000,))

def interrupt():
    feed.starving.wait()
    feed.interrupt(KeyboardInterrupt())

threading.Thread(target=interrupt).start()
data = tf_dataset.make(feed, inputs="audio")
try:
    for _ in data:
        pass
except BaseException as error:
    kept = error  # and with it the iterator, which Python destroys as the last
"""


def test_processes_that_were_stopped_end():
    """Without help a fifth of them hung: TensorFlow asks for more after an error."""
    command = [sys.executable, "-c", PROGRAM]
    processes = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) for _ in range(3)]
    try:
        assert [process.wait(60) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
