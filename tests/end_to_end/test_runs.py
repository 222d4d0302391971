"""Runs with a target, against real loaders: a plain loop, several ranks, and queue mode."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import trainer_client
from tests.support.loaders import running, write_job
from trainer_client import Run, Until

SAMPLES = 60


@pytest.fixture(scope="module")
def loaders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    path = write_job(folder, samples=SAMPLES, longest_s=0.5, job="group = 2")
    path.write_text(path.read_text() + '\n[streams.shared]\nlike = "train"\nevaluation = false\nmode = "queue"\n')
    with running(path, workers=1) as found:
        yield found


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
    assert lines[3].startswith(f"FINISHED: 3 epochs, {run.totals.steps} steps, {3 * SAMPLES} samples, 0:00:")
    assert lines[3].endswith(": 3 epochs are reached")


def train_all(endpoint, until, *places):
    """A run for each place, all at once: the rows that each was given, its totals and its reason."""

    def train(place):
        with trainer_client.connect(endpoint, **place) as feed:
            run = Run(feed, until)
            return sum(batch.rows for batch in run), run.totals, run.reason

    with ThreadPoolExecutor(len(places)) as threads:
        return zip(*threads.map(train, places), strict=True)


def test_all_ranks_end_at_the_same_step_and_one_speaks(loaders, capsys):
    until = Until(epochs=1, steps=10_000)
    rows, totals, reasons = train_all(loaders.endpoint, until, {"rank": 0, "world": 2}, {"rank": 1, "world": 2})
    assert sum(rows) == SAMPLES
    assert [one.samples for one in totals] == list(rows)
    assert totals[0].steps == totals[1].steps
    assert set(reasons) == {"1 epochs are reached"}
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_in_queue_mode_all_samples_of_all_epochs_are_trained_on_once(loaders):
    how = {"stream": "shared", "epochs": 2}
    rows, totals, _ = train_all(loaders.endpoint, Until(epochs=2, max_time_s=600), how, how)
    assert sum(rows) == 2 * SAMPLES
    assert sum(one.samples for one in totals) == 2 * SAMPLES
