"""Runs with a target, against real loaders: a plain loop, several ranks, and queue mode."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import trainer_client
from loader_server.commands import status
from tests.support.loaders import running, wait_until, write_job
from trainer_client import Run, Until

SAMPLES = 60


@pytest.fixture(scope="module")
def loaders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    path = write_job(folder, samples=SAMPLES, longest_s=0.5, job="group = 2")
    path.write_text(path.read_text() + '\n[streams.shared]\nlike = "train"\nevaluation = false\nmode = "queue"\n')
    with running(path, workers=1) as found:
        yield found


def results(loaders):
    """What the coordinator knows: whoever tells it may have left before it heard."""
    return status.ask(loaders.endpoint)["streams"]["train"]["results"] or {"epoch": 0, "ended": ""}


@pytest.mark.heritage("D7")
def test_so_many_more_epochs_than_were_saved(loaders, capsys):
    with trainer_client.connect(loaders.endpoint, rank=0) as feed:
        run = Run(feed, Until(epochs=1))
        steps = sum(1 for _ in run)
        saved = run.state()
    with trainer_client.connect(loaders.endpoint, rank=0) as feed:
        run = Run(feed, Until(epochs="+2"))
        run.restore(saved)
        assert {batch.epoch for batch in run} == {1, 2}
        assert (feed.epoch, run.totals.epochs, run.totals.samples) == (3, 3, 3 * SAMPLES)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == f"STARTING: training train from epoch 1, step {steps}, until 3 epochs"
    totals = f"3 epochs, {run.totals.steps} steps, {3 * SAMPLES} samples"
    assert re.fullmatch(rf"FINISHED: {totals}, \d:\d\d:\d\d: 3 epochs are reached", lines[3])
    wait_until(lambda: results(loaders)["ended"] == "3 epochs are reached", "the coordinator knows why it ended")


def train_all(endpoint, until, *places):
    """A run for each place, all at once: the rows that each was given, its totals and its reason."""

    def train(place):
        with trainer_client.connect(endpoint, **place) as feed:
            run = Run(feed, until)
            return sum(batch.rows for batch in run), run.totals, run.reason

    with ThreadPoolExecutor(len(places)) as threads:
        return zip(*threads.map(train, places), strict=True)


@pytest.mark.heritage("L8")
def test_all_ranks_end_at_the_same_step_and_one_speaks(loaders, capsys):
    until = Until(epochs=1, steps=10_000)
    rows, totals, reasons = train_all(loaders.endpoint, until, {"rank": 0, "world": 2}, {"rank": 1, "world": 2})
    assert sum(rows) == SAMPLES
    assert [one.samples for one in totals] == list(rows)
    assert totals[0].steps == totals[1].steps
    assert set(reasons) == {"1 epochs are reached"}
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.heritage("L10")
def test_all_ranks_end_with_the_same_step_when_the_time_is_over(loaders):
    before = status.ask(loaders.endpoint)["streams"]["train"]["results"]
    places = {"rank": 0, "world": 2}, {"rank": 1, "world": 2}
    began_s = time.monotonic()
    _, totals, reasons = train_all(loaders.endpoint, Until(epochs=10**6, max_time_s=1.0), *places)
    assert time.monotonic() - began_s < 30
    assert totals[0].steps == totals[1].steps >= 1
    assert set(reasons) == {"0:00:01 are over"}
    wait_until(lambda: results(loaders)["ended"] == "0:00:01 are over", "the coordinator knows why it ended")
    after = status.ask(loaders.endpoint)["streams"]["train"]["results"]
    assert "value" not in after["values"]
    assert before is None or after["values"] == before["values"]


def test_in_queue_mode_all_samples_of_all_epochs_are_trained_on_once(loaders):
    how = {"stream": "shared", "epochs": 2}
    rows, totals, _ = train_all(loaders.endpoint, Until(epochs=2, max_time_s=600), how, how)
    assert sum(rows) == 2 * SAMPLES
    assert sum(one.samples for one in totals) == 2 * SAMPLES


@pytest.mark.heritage("D12")
def test_status_and_metrics_show_the_mean_over_all_ranks(loaders, capsys):
    def train(rank):
        with trainer_client.connect(loaders.endpoint, rank=rank, world=2) as feed:
            run = Run(feed, Until(epochs=1))
            for batch in run:
                run.note(loss=float(batch.number))
            # Another number than the coordinator's own, for it knows what all ranks have told.
            return run.totals.samples, feed.aggregate({"rank": rank}, rows=1 + rank)

    with ThreadPoolExecutor(2) as threads:
        samples, aggregates = zip(*threads.map(train, range(2)), strict=True)
    assert sum(samples) == SAMPLES
    assert aggregates == ({"rank": 2 / 3},) * 2
    whole = {"epoch": 1, "step": 0, "rows": 3, "values": {"rank": 2 / 3}, "ended": ""}
    wait_until(lambda: results(loaders) == whole, "the mean over all ranks is shown")
    ended = capsys.readouterr().out.splitlines()[-1]
    assert ended.startswith("FINISHED: 1 epochs, ")


def test_a_coordinator_that_dies_while_a_rank_waits_for_the_others_loses_nothing(loaders):
    def waiting(rank):
        with trainer_client.connect(loaders.endpoint, rank=rank, world=2) as feed, ThreadPoolExecutor(1) as thread:
            answer = thread.submit(feed.aggregate, {"loss": float(rank)}, rows=3, epoch=7)
            told[rank].set()
            killed.wait(60)
            return answer.result(60)

    told, killed = [threading.Event(), threading.Event()], threading.Event()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(waiting, 0)
        assert told[0].wait(60)
        loaders.coordinator().kill()
        second = threads.submit(waiting, 1)
        killed.set()
        assert first.result(60) == second.result(60) == {"loss": 0.5}
    wait_until(lambda: results(loaders)["epoch"] == 7, "it is shown")
