"""Before Python shuts down, threads of TensorFlow are out of every pass, and none is on its way in; later iterators go
without a word.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.support.fake_feed import FakeFeed
from tests.support.loaders import ROOT, running, write_job
from trainer_client.tf import exit_guard


class FeedPass:
    """What a thread of a framework reads, until it was told to end and is let go."""

    def __init__(self):
        self.ended = threading.Event()
        self.let_go = threading.Event()
        exit_guard.watch(self)

    def end(self):
        self.ended.set()

    def read(self):
        self.ended.wait()
        self.let_go.wait()
        exit_guard.leave(self)


@pytest.fixture(autouse=True)
def nobody_inside(monkeypatch):
    monkeypatch.setattr(exit_guard, "_last_left_s", [0.0])
    monkeypatch.setattr(exit_guard, "_inside", set())


class Clock:
    """Goes on only while somebody sleeps."""

    def __init__(self):
        self.now_s = 1000.0

    def sleep(self, pause_s):
        self.now_s += pause_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(exit_guard, "monotonic", lambda: clock.now_s)
    monkeypatch.setattr(exit_guard, "sleep", clock.sleep)
    return clock


def ended_after_s(clock):
    began_s = clock.now_s
    exit_guard._end_all()
    return clock.now_s - began_s


def test_whoever_waits_is_told_and_waited_for(monkeypatch, clock):
    one, looks = FeedPass(), []
    thread = threading.Thread(target=one.read)
    exit_guard.enter(one)
    thread.start()

    def looked(pause_s):
        clock.sleep(pause_s)
        looks.append(one.ended.is_set())
        if len(looks) == 3:
            one.let_go.set()
            thread.join()

    monkeypatch.setattr(exit_guard, "sleep", looked)
    exit_guard._end_all()
    assert looks[:3] == [True] * 3
    assert not exit_guard._inside


def test_one_that_came_out_just_now_may_be_on_its_way_in(clock):
    one = FeedPass()
    exit_guard.enter(one)
    exit_guard.leave(one)
    assert exit_guard._REST_S <= ended_after_s(clock) <= exit_guard._REST_S + 2 * exit_guard._LOOK_AGAIN_S


def test_one_that_rests_is_not_waited_for(clock):
    one = FeedPass()
    exit_guard.enter(one)
    exit_guard.leave(one)
    clock.sleep(1.1 * exit_guard._REST_S)
    assert ended_after_s(clock) == 0
    assert one.ended.is_set()


def test_one_that_never_comes_out_holds_up_nobody(clock):
    one = FeedPass()
    exit_guard.enter(one)
    assert exit_guard._PATIENCE_S <= ended_after_s(clock) <= exit_guard._PATIENCE_S + 2 * exit_guard._LOOK_AGAIN_S


def test_a_pass_that_tensorflow_waits_for_ends(monkeypatch):
    monkeypatch.setattr(exit_guard, "_PATIENCE_S", 60.0)
    feed = FakeFeed(starve_at=(0, 3))
    data = feed.dataset(inputs="audio").prefetch(2)  # reads in a thread of TensorFlow's
    iterator = iter(data)
    next(iterator), next(iterator)
    feed.session.starving.wait()
    exit_guard._end_all()
    assert not exit_guard._inside
    assert len(list(iterator)) == 1  # what had been read before; then an end, and no error that nobody would see
    feed.close()


#: Each way is gone by a fork, made before TensorFlow has started anything: importing it takes seconds.
TRAINER = """
import json, os, signal, sys, threading
from pathlib import Path
from shared.quick_import import quick_import
from tests.support.lean_keras import lean_keras
with quick_import(), lean_keras():
    from tests.support.two_devices import mirrored
    import keras, tensorflow as tf
    import trainer_client
    from tests.support.fake_feed import FakeFeed
    from tests.support.tiny_models import FORM, tiny_model

endpoint, folder, *ways = sys.argv[1:]
children = {}
for number, way in enumerate(ways):
    child = os.fork()
    if not child:
        os.dup2(os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT), 2)
        break
    children[child] = number
else:
    codes = {}
    while len(codes) < len(children):
        child, status = os.wait()
        codes[children[child]] = os.waitstatus_to_exitcode(status)
        Path(folder, "codes").write_text(json.dumps(codes))
    sys.exit()

class Leave(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        leave()

def fit():
    tiny_model().fit(data, epochs=1, verbose=0, callbacks=[Leave()])

exec(way)
"""

#: A feed that all may read at once.
FEED = """
feed = trainer_client.connect(endpoint, stream="dev")
data = feed.dataset(**FORM)
"""

STOPPED = """
def interrupt(feed):
    feed.session.starving.wait()
    feed.interrupt(KeyboardInterrupt())

kept = []
for _ in range(3):
    feed = FakeFeed(starve_at=(0, 50), epochs=(1000,))
    threading.Thread(target=interrupt, args=(feed,)).start()
    data = feed.dataset(inputs="audio")
    try:
        for _ in data:
            pass
    except BaseException as error:
        kept.append(error)  # and with it the iterator, which Python destroys as the last
sys.exit(len(kept))
"""

STAGED = """
from trainer_client.training.strategies.towers.feeding import Rounds

kept = []
for starve_at in (None, (0, 2)):
    feed = FakeFeed(epochs=(1000,), replicas=2, starve_at=starve_at)
    kept.append(iter(Rounds(feed, FORM, ("CPU:0", "CPU:1"), tuple)))
    next(kept[-1])
feed.session.starving.wait()
"""

#: There will be no batch, so nothing else can end the wait.
STARVED = """
def leave(): pass

def press():
    feed.session.starving.wait()
    os.kill(os.getpid(), signal.SIGINT)

feed = FakeFeed(starve_at=(0, 6))
data = feed.dataset(**FORM)
threading.Thread(target=press, daemon=True).start()
try:
    fit()
except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    raise
"""

#: How a program leaves, and the exit code of that.
WAYS = {
    "with an error": (FEED + "def leave(): raise ZeroDivisionError\nfit()", 1),
    "at Ctrl-C": (FEED + "def leave(): os.kill(os.getpid(), signal.SIGINT)\nfit()", -signal.SIGINT),
    "at Ctrl-C while a batch is waited for": (STARVED, -signal.SIGINT),
    "with iterators open, and those of a strategy": (
        FEED
        + """
opened = [iter(one) for one in (data, data.map(lambda *parts: parts[0]["audio"]), tf.data.Dataset.zip(data, data))]
kept = [next(iterator) for iterator in opened]
for element in data:
    break
strategy = mirrored()
pairs = trainer_client.connect(endpoint, stream="dev", strategy=strategy)
iterator = iter(pairs.distributed(strategy))
kept = next(iterator)
""",
        0,
    ),
    "after passes that were stopped": (STOPPED, 3),
    "while its replicas' next rounds are staged, or nothing comes": (STAGED, 0),
}


def run(program, *arguments):
    """Run it in a process of its own, which ends with all that it has forked; how it ended, and what it said."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            said = process.communicate(timeout=250)[1]
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, said


pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """Of each way, the exit code and what was said."""
    folder = tmp_path_factory.mktemp("left")
    with running(write_job(folder, samples=60, longest_s=0.5, job="group = 2")) as loaders:
        try:
            code, complained = run(TRAINER, loaders.endpoint, str(folder), *(way for way, _ in WAYS.values()))
        except subprocess.TimeoutExpired:
            hung = {way: said for way, (code, said) in ends(folder).items() if code is None}
            pytest.fail(f"no end of a program that leaves {' or '.join(hung)}: {hung}")
    assert code == 0, complained
    return ends(folder)


def ends(folder):
    """Of each way, the exit code, or None while there is none, and what was said."""
    codes, said = folder / "codes", [folder / str(number) for number in range(len(WAYS))]
    codes = json.loads(codes.read_text()) if codes.exists() else {}
    return {
        way: (codes.get(one.name), one.read_text() if one.exists() else "never begun")
        for way, one in zip(WAYS, said, strict=True)
    }


def test_a_process_whose_passes_were_stopped_ends(left):
    """Without help a fifth of those with one pass hung: TensorFlow asks for more after an error."""
    code, said = left["after passes that were stopped"]
    assert code == 3, said


def test_a_process_that_waits_for_a_batch_is_interrupted_and_exits(left):
    code, said = left["at Ctrl-C while a batch is waited for"]
    assert (code, "interrupted\n" in said) == (-signal.SIGINT, True), said


def test_whichever_way_a_program_leaves_nothing_is_said_of_an_ended_python(left):
    """None of them closes its feed. Without help each had a warning for every iterator that was still there."""
    assert {way: code for way, (code, _) in left.items()} == {way: code for way, (_, code) in WAYS.items()}, left
    assert [said for _, said in left.values() if "Python interpreter" in said] == []
