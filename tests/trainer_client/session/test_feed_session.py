"""What a session does for frameworks that read it in their own ways."""

from __future__ import annotations

import socket
import threading

import pytest

import trainer_client
from shared.errors import SettingsError
from shared.wire import messages as m
from tests.support.ends import Ends
from tests.support.loaders import wait_until


def test_a_nudge_makes_whoever_waits_look_up_and_wait_on(monkeypatch):
    with Ends() as ends:
        ends.answers[m.Want] = lambda _: []
        with trainer_client.connect(ends.endpoint) as feed:
            waiting = feed._session.receiver.outbox._waiting
            waits, wait = threading.Semaphore(0), waiting.wait
            monkeypatch.setattr(waiting, "wait", lambda *how: (waits.release(), wait(*how)))
            raised = []

            def read():
                with pytest.raises(KeyboardInterrupt) as caught:
                    next(iter(feed))
                raised.append(caught.value)

            consumer = threading.Thread(target=read)
            consumer.start()
            assert waits.acquire(timeout=60)
            feed._session.nudge()
            assert waits.acquire(timeout=60), "it looked up"
            assert raised == [], "it waits on"
            feed.interrupt(KeyboardInterrupt())
            consumer.join(60)
            assert len(raised) == 1


def test_a_framework_is_asked_to_let_go_and_told_of_the_end(feed):
    asked, closed = [], []
    feed._session.serve_framework(let_go=lambda: asked.append(1), on_close=closed.append)
    kept = list(feed)
    assert len(asked) == feed._session.maker.copied > 0
    assert len(kept) > len(asked)
    assert closed == []
    feed.close()
    assert closed == [feed._session]


def test_what_the_training_loop_waited_is_what_heartbeats_tell(feed):
    with feed.open() as reading:
        next(reading)
        feed.waited(0.25)
        feed.waited(0.5)
        before_s = feed._session.receiver.standing.waited_s
        next(reading)
    assert feed._session.receiver.standing.waited_s == before_s >= 0.75


def test_computation_counts_from_a_batch_or_from_the_data_that_the_loop_waited_for(feed):
    standing = feed._session.receiver.standing
    with feed.open() as reading:
        feed.computed()
        assert standing.computed_s == 0.0
        next(reading)
        feed.computed()
        after_s = standing.computed_s
        assert after_s > 0
        feed.computed()
        assert standing.computed_s == after_s
        feed.waited(0.25)
        feed.computed()
        assert standing.computed_s > after_s
        after_s = standing.computed_s
        next(reading)  # read ahead by whoever reports waits for steps
        feed.computed()
        assert standing.computed_s == after_s


def test_one_that_cannot_serve_its_metrics_leaves_no_thread(ends):
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingsError, match="metrics_port"):
        trainer_client.connect(ends.endpoint, metrics_port=taken.getsockname()[1])
    wait_until(lambda: not set(threading.enumerate()) - before, "no thread is left")
