"""Ctrl-C reaches whoever waits for a batch, and everything is put back afterwards."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import threading
import weakref

import pytest

from shared.commands import run_command
from tests.support.fake_feed import FakeFeed
from tests.support.loaders import wait_until
from tests.support.two_devices import mirrored

from tests.support.tiny_models import FORM, tiny_model  # isort: skip - after the devices are set
import tensorflow as tf  # isort: skip
from trainer_client.tf import ctrl_c, exit_guard

from trainer_client.tf import dataset  # isort: skip
from trainer_client.training.checkpoints.feed_checkpoint import FeedCheckpoint  # isort: skip
from trainer_client.training.strategies.towers.feeding import Rounds  # isort: skip

#: What waits inside TensorFlow runs no handler of an alarm, so a thread has to end it; sooner than who runs this file.
pytestmark = pytest.mark.timeout(200, method="thread")


@pytest.fixture
def starved():
    feeds = []

    def make(**settings):
        feeds.append(FakeFeed(starve_at=(0, 6), slots=16, **settings))
        return feeds[-1]

    yield make
    for feed in feeds:
        feed.close()


def press_when_starving(feed, what=signal.SIGINT):
    """Ctrl-C, once the feed's pass waits for a batch that never comes."""

    def press():
        feed.session.starving.wait()
        os.kill(os.getpid(), what)

    threading.Thread(target=press, daemon=True).start()


def loop(feed, _folder):
    for _ in feed.dataset(**FORM):
        pass


def rounds(feed, _folder):
    for _ in Rounds(feed, FORM, ("CPU:0", "CPU:1"), tuple):
        pass


def rounds_in_a_loop_that_is_not_interrupted(feed, _folder):
    with ctrl_c.deferred() as interruption:
        rounds(feed, _folder)
    raise AssertionError(interruption)


def fit(feed, _folder):
    tiny_model().fit(feed.dataset(**FORM), verbose=0)


def fit_in_long_executions(feed, _folder):
    tiny_model(steps_per_execution=20).fit(feed.dataset(**FORM), verbose=0)


def fit_with_checkpoints(feed, folder):
    tiny_model().fit(feed.dataset(**FORM), verbose=0, callbacks=[FeedCheckpoint(feed, folder)])


def fit_replicated(feed, _folder):
    strategy = mirrored()
    tiny_model(strategy).fit(feed.distributed(strategy, **FORM), verbose=0)


@pytest.mark.parametrize("train", [loop, fit, fit_in_long_executions, fit_with_checkpoints])
def test_it_ends_training_that_waits_for_a_batch(train, starved, tmp_path):
    feed = starved()
    press_when_starving(feed)
    with pytest.raises(KeyboardInterrupt):
        train(feed, tmp_path)


@pytest.mark.parametrize("train", [loop, fit])
def test_sigterm_of_a_command_ends_it_as_ctrl_c_does(train, starved, tmp_path, capsys):
    feed, parser = starved(), argparse.ArgumentParser(prog="stoker-command")
    parser.set_defaults(run=lambda _: train(feed, tmp_path), log_level="warning")
    press_when_starving(feed, signal.SIGTERM)
    with pytest.raises(SystemExit, match="143"):
        run_command(parser, [])
    assert capsys.readouterr().err == "stoker-command: terminated\n"


@pytest.mark.skipif(dataset.copies_batches(), reason="a thread of TensorFlow's reads, and runs no handler")
@pytest.mark.parametrize("times", range(20))
def test_what_a_handler_of_the_users_raises_comes_out_as_it_is(times, starved, tmp_path):
    def leave(*_):
        raise SystemExit(times)

    feed = starved()
    previous = signal.signal(signal.SIGTERM, leave)
    try:
        press_when_starving(feed, signal.SIGTERM)
        with pytest.raises(SystemExit, match=f"^{times}$"):
            loop(feed, tmp_path)
    finally:
        signal.signal(signal.SIGTERM, previous)


@pytest.mark.parametrize("train", [rounds, rounds_in_a_loop_that_is_not_interrupted])
def test_it_ends_training_that_waits_for_a_round(train, starved, tmp_path):
    feed = starved(replicas=2)
    press_when_starving(feed)
    with pytest.raises(KeyboardInterrupt):
        train(feed, tmp_path)
    wait_until(lambda: not exit_guard._inside, "no thread is left inside")


def test_nothing_is_raised_a_second_time(starved, tmp_path):
    feed = starved()
    press_when_starving(feed)
    with pytest.raises(KeyboardInterrupt):
        fit(feed, tmp_path)
    assert sum(range(10_000)) == 49_995_000  # bytecodes enough for a signal that waited


def press_and_wait(feed):
    """Ctrl-C, heard before the feed is opened."""
    os.kill(os.getpid(), signal.SIGINT)
    with feed.session.changed:
        assert feed.session.changed.wait_for(lambda: feed.session.error is not None, 60)


def feed_behind_a_press(feed):
    """The main thread is in TensorFlow when it is pressed, and so runs no handler."""

    def press(number):
        press_and_wait(feed)
        return number

    pressed = tf.data.Dataset.range(1).map(lambda number: tf.numpy_function(press, [number], tf.int64))
    return pressed.flat_map(tf.autograph.experimental.do_not_convert(lambda _: feed.dataset(**FORM)))


def press_in_a_callback():
    """Python drops what is raised in the callback of a weak reference."""

    class Watched: ...

    watched = Watched()
    callback = weakref.ref(watched, lambda _: signal.raise_signal(signal.SIGINT))
    del watched
    return callback


def test_one_that_came_before_the_feed_was_opened_is_raised(starved):
    feed = starved()
    elements = iter(feed_behind_a_press(feed))
    with pytest.raises(KeyboardInterrupt):
        next(elements)


def test_one_that_python_drops_is_raised_behind_the_callback(starved):
    feed = starved()
    data = feed.dataset(**FORM)
    with pytest.raises(KeyboardInterrupt):
        press_in_a_callback()
    feed.session.starve_at = None
    assert next(iter(data)), "a Ctrl-C that was raised is dealt with"


class TestWatching:
    @pytest.fixture(autouse=True)
    def nobody_watched(self):
        for feed in list(ctrl_c._feeds):
            ctrl_c.forget(feed.session)

    def test_descriptor_and_handler_are_put_back_with_the_last_feed(self):
        one, two = FakeFeed(), FakeFeed()
        before = signal.getsignal(signal.SIGINT)
        ctrl_c.watch(one.session)
        ctrl_c.watch(two.session)
        ctrl_c.forget(one.session)
        assert signal.getsignal(signal.SIGINT) is not before
        ctrl_c.forget(two.session)
        assert signal.getsignal(signal.SIGINT) is before
        assert signal.set_wakeup_fd(-1) == -1

    def test_who_owned_the_descriptor_still_hears_of_signals_and_gets_it_back(self):
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno())
        feed = FakeFeed()
        try:
            ctrl_c.watch(feed.session)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert ours.recv(1) == bytes([signal.SIGINT])
            ctrl_c.forget(feed.session)
            assert signal.set_wakeup_fd(-1) == theirs.fileno()
        finally:
            signal.set_wakeup_fd(-1)
            ours.close()
            theirs.close()

    def test_a_handler_of_the_users_decides_alone(self):
        feed = FakeFeed()
        heard = threading.Event()
        previous = signal.signal(signal.SIGINT, lambda *_: heard.set())
        try:
            ctrl_c.watch(feed.session)
            signal.raise_signal(signal.SIGINT)
            ctrl_c.forget(feed.session)  # joins the thread that read the byte
        finally:
            signal.signal(signal.SIGINT, previous)
        assert heard.is_set()
        assert feed.session.error is None

    def test_outside_the_main_thread_nothing_is_touched(self):
        feed = FakeFeed()
        before = signal.getsignal(signal.SIGINT)
        thread = threading.Thread(target=ctrl_c.watch, args=(feed.session,))
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGINT) is before

    def test_other_signals_stop_nothing(self):
        feed = FakeFeed()
        previous = signal.signal(signal.SIGUSR1, lambda *_: None)
        try:
            ctrl_c.watch(feed.session)
            signal.raise_signal(signal.SIGUSR1)
            ctrl_c.forget(feed.session)
        finally:
            signal.signal(signal.SIGUSR1, previous)
        assert feed.session.error is None

    def test_each_signal_lets_whoever_waits_look_up(self):
        feed, nudged = FakeFeed(), threading.Event()
        feed.session.nudge = nudged.set
        previous = signal.signal(signal.SIGUSR1, lambda *_: None)
        try:
            ctrl_c.watch(feed.session)
            signal.raise_signal(signal.SIGUSR1)
            assert nudged.wait(60)
        finally:
            ctrl_c.forget(feed.session)
            signal.signal(signal.SIGUSR1, previous)

    def test_an_interrupt_in_a_finaliser_is_raised_behind_it(self):
        class Finalised:
            def __del__(self):
                signal.raise_signal(signal.SIGINT)

        def finalise():
            Finalised()
            return sum(range(10))

        feed = FakeFeed()
        ctrl_c.watch(feed.session)
        try:
            with pytest.raises(KeyboardInterrupt):
                finalise()
        finally:
            ctrl_c.forget(feed.session)


def test_it_ends_replicated_training(starved, tmp_path):
    """The last one, because it may leave scopes of TensorFlow unbalanced."""
    feed = starved(replicas=2)
    press_when_starving(feed)
    with pytest.raises(KeyboardInterrupt):
        fit_replicated(feed, tmp_path)
