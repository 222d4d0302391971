"""Jobs that are ended by order while they are trained on: who finishes what, and who is told."""

from __future__ import annotations

import re
import signal
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest
from rich.console import Console

import trainer_client
from loader_server.commands import status
from tests.support.forked import start_talking
from tests.support.loaders import running, wait_until, write_job
from trainer_client import EndedError, FeedCheckpoint, Run, Until, Validation
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

QUEUE = 'mode = "queue"\nlease_timeout = "60 s"'
JOB = 'heartbeat_timeout = "1 s"'
#: Nobody comes to the end of an epoch.
ENDLESS = """
[job]
name = "tones"
seed = 7
listen = "tcp://127.0.0.1:*"
heartbeat_timeout = "10 s"

[streams.train]
source = "synthetic"
kind = "tokens"
samples = 4_000_000
length = "tokens"
budget = "500 steps"
shapes = 4
"""
#: Nobody is given up for silence meanwhile, however busy the machine is.
PATIENT = 'heartbeat_timeout = "10 s"'


@pytest.fixture(params=["lockstep", "queue"])
def mode(request):
    return request.param


def write(folder, mode, job=JOB):
    return write_job(folder, samples=60, budget="2 s", job=job, stream=QUEUE if mode == "queue" else "")


@contextmanager
def ending(job, *arguments):
    """The command, while it runs."""
    with start_talking("loader_server", "end", str(job), *arguments) as process:
        try:
            yield process
        finally:
            process.kill()


def ends(loaders):
    return status.ask(loaders.endpoint)["ends"]


def leased(loaders):
    queue = status.ask(loaders.endpoint)["streams"]["train"]["queue"]
    return sum(work["leased"] for work in queue.values())


@pytest.mark.heritage("D13")
def test_trainers_in_queue_mode_finish_what_they_have_and_no_more(tmp_path, capsys):
    job = write(tmp_path, "queue")
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, prefetch=2) as feed:
        batches = iter(feed)
        got = [next(batches).number]
        wait_until(lambda: leased(loaders) == 3, "what is read ahead is leased")
        with ending(job, "--drain", "300") as command:
            wait_until(lambda: ends(loaders), "trainers are told")
            assert ends(loaders)["leased"] == 3, "no more is leased"
            Console().print(status.tables(status.ask(loaders.endpoint, timeout_s=60.0)))
            assert "the job ends: 1 trainers are attached, with 3 leased batches to finish" in capsys.readouterr().out
            with pytest.raises(EndedError, match="the coordinator's word that the job was ended"):
                got.extend(batch.number for batch in batches)
            done = feed.state()["epochs"]
            assert command.poll() is None, "it waits for the trainer to leave"
            feed.close()
            assert command.communicate(timeout=100) == ("Job tones has ended.\n", "")
        assert (loaders.process.wait(60), len(got)) == (0, 3)
        assert done == [[0, 3, []]]
        assert '"job ends"' in loaders.text() or "job ends" in loaders.text()
    with running(job, workers=1) as again, trainer_client.connect(again.endpoint, epochs=1) as feed:
        assert set(got).isdisjoint(batch.number for batch in feed)


@pytest.mark.heritage("D1")
def test_a_run_ends_in_good_order_and_says_why(tmp_path, capsys, mode):
    job = write(tmp_path, mode)
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, rank=0) as feed:
        run, steps = Run(feed, Until(epochs=10**6)), 0
        with ending(job, "--drain", "300") as command:
            for _ in run:
                steps += 1
            assert run.reason == "the job was ended"
            feed.close()
            assert command.wait(100) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.match(rf"FINISHED: \d+ epochs, {steps} steps, .*: the job was ended", last)


def test_without_draining_nobody_gets_another_batch(tmp_path, mode):
    job = write(tmp_path, mode, PATIENT)
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, rank=0) as feed:
        batches = iter(feed)
        next(batches)
        with ending(job) as command:
            assert command.wait(100) == 0
        wait_until(lambda: feed._session.ended, "the trainer was told")
        with pytest.raises(EndedError):
            next(batches)


@pytest.mark.heritage("D13")
@pytest.mark.parametrize("how", ["deadline", "Ctrl-C"])
def test_a_trainer_that_does_not_finish_is_waited_for_so_long_and_no_longer(tmp_path, how):
    job = write(tmp_path, "queue", PATIENT)
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, prefetch=2) as feed:
        batches = iter(feed)
        next(batches)
        with ending(job, "--drain", "1" if how == "deadline" else "300") as command:
            if how == "Ctrl-C":
                wait_until(lambda: feed._session.ended, "the trainer was told")
                command.send_signal(signal.SIGINT)
            assert command.communicate(timeout=100) == ("Job tones has ended.\n", "")
        wait_until(lambda: feed._session.ended, "the trainer was told")
        with pytest.raises(EndedError):
            list(batches)


def test_a_coordinator_that_dies_while_trainers_finish_is_told_again(tmp_path):
    job = write(tmp_path, "queue")
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, prefetch=2) as feed:
        batches = iter(feed)
        next(batches)
        wait_until(lambda: leased(loaders) == 3, "what is read ahead is leased")
        with ending(job, "--drain", "300") as command:
            wait_until(lambda: ends(loaders), "trainers are told")
            loaders.coordinator().kill()
            with pytest.raises(EndedError):
                list(batches)
            assert feed.state()["epochs"] == [[0, 3, []]]
            feed.close()
            assert command.wait(100) == 0


def test_whoever_finishes_or_waits_for_others_is_told_too(tmp_path):
    job = write(tmp_path, "queue")
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, epochs=1) as feed:
        told = []

        def finish():
            with pytest.raises(EndedError):
                feed.finish(lambda: told.append("done"))
            told.append("ended")

        waiting = threading.Thread(target=finish)
        waiting.start()
        with ending(job, "--drain", "300") as command:
            waiting.join(100)
            feed.close()
            assert command.wait(100) == 0
        assert told == ["ended"]


def go_in_step(loaders, rank, gate, told):
    """The steps of a rank that has some batches read ahead of them, and waits for the other in each."""
    steps = []
    with trainer_client.connect(loaders.endpoint, rank=rank, world=2) as feed:
        read = feed.open()
        waiting = deque(next(read) for _ in range(3 * rank))
        while True:
            with suppress(EndedError):
                waiting.append(next(read))
            if not waiting:
                return steps
            gate.wait(100)
            steps.append(waiting.popleft().number // 2)
            told.set()


def test_ranks_in_step_all_end_with_the_same_one_however_far_they_have_read(tmp_path):
    (job := tmp_path / "job.toml").write_text(ENDLESS)
    told, gate = threading.Event(), threading.Barrier(2)
    with running(job, workers=1) as loaders, ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(go_in_step, loaders, rank, gate, told) for rank in range(2)]
        assert told.wait(100)
        with ending(job, "--drain", "300"):
            steps = [rank.result(100) for rank in ranks]
    assert steps[0] == steps[1] == list(range(len(steps[0])))


def test_an_elastic_run_ends_in_all_of_its_ranks(tmp_path):
    (job := tmp_path / "job.toml").write_text(ENDLESS)
    told, gate = threading.Event(), threading.Barrier(2)

    def train(feed):
        run = Run(feed, Until(epochs=9))
        for _ in run:
            gate.wait(100)
            told.set()
        return run.reason, run.totals.steps

    with running(job, workers=1) as loaders, ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(trainer_client.run_elastic, train, loaders.endpoint, elastic=(2, 2)) for _ in range(2)]
        assert told.wait(100)
        with ending(job, "--drain", "300"):
            ends = [run.result(100) for run in runs]
    assert ends[0] == ends[1]
    assert ends[0][0] == "the job was ended"


def test_fit_ends_with_what_it_trained_on_saved(tmp_path, capsys, mode):
    import keras  # TensorFlow is for this test alone

    from tests.support.tiny_models import FORM, tiny_model

    job = write(tmp_path, mode)
    with ExitStack() as on_exit:
        loaders = on_exit.enter_context(running(job, workers=1))
        feed, dev = (
            on_exit.enter_context(trainer_client.connect(loaders.endpoint, stream=name, rank=0))
            for name in ("train", "dev")
        )
        checkpoint = FeedCheckpoint(feed, tmp_path / "model", until=Until(epochs=10**6))
        begun = []

        def end_once(*_, **__):
            if not begun:
                begun.append(on_exit.enter_context(ending(job, "--drain", "300")))

        after_a_step = keras.callbacks.LambdaCallback(on_train_batch_end=end_once)
        callbacks = [Validation(dev, epochs=1, **FORM), checkpoint, after_a_step]
        model = tiny_model()
        model.fit(feed.dataset(**FORM), epochs=checkpoint.epochs, verbose=0, callbacks=callbacks)
        assert checkpoint.reason == "the job was ended"
        feed.close()
        dev.close()
        assert begun[0].wait(100) == 0
    _, record = CheckpointFolder(tmp_path / "model", 1).read_last()
    assert record["step"] == len(model.seen) > 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(": the job was ended")
