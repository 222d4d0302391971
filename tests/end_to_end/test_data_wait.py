"""The data wait that is told is the time that the consumer really waited, within two points of the whole."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import keras
import pytest

import trainer_client
from tests.support.loaders import running, write_job
from tests.support.tiny_models import tiny_model
from trainer_client.tf import dataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.loaders import Loaders

_POINTS = 0.02
_STEP_S = 0.005
#: What a machine that stands still between two measurements adds to one batch belongs to neither.
_STALLS = 3


@pytest.fixture(scope="module")
def slow_loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    """About 8 samples of 4 ms make a batch: a build takes longer than a step."""
    transforms = ("tests.support.transforms:slow", "logmel", "characters")
    job = write_job(tmp_path_factory.mktemp("wait"), samples=400, transforms=transforms, budget="8 s")
    with running(job, workers=1) as loaders:
        yield loaders


def _step() -> None:
    threading.Event().wait(_STEP_S)


@pytest.mark.heritage("R8")
def test_a_loop_over_numpy_batches(slow_loaders: Loaders) -> None:
    with trainer_client.connect(slow_loaders.endpoint, prefetch=2) as feed:
        counts = feed._session.accounts.counts
        untold, conversions, told_s = [], [], 0.0
        began_s = stepped_s = time.perf_counter()
        for _ in feed:
            waited_s = time.perf_counter() - stepped_s
            untold.append(waited_s - (counts.wait_s - told_s))
            conversions.append(counts.conversion_s - sum(conversions))
            told_s = counts.wait_s
            _step()
            stepped_s = time.perf_counter()
        whole_s = stepped_s - began_s
    assert len(untold) > 5 * _STALLS
    assert min(untold) >= 0
    assert sum(sorted(untold)[:-_STALLS]) / whole_s < _POINTS
    assert sum(sorted(conversions)[:-_STALLS]) / whole_s < _POINTS
    assert counts.wait_s / whole_s > 0.1
    assert counts.build_wait_s + counts.transfer_wait_s == pytest.approx(counts.wait_s)


class _Steps(keras.callbacks.Callback):
    """Makes each execution of steps take long."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        _step()


@pytest.mark.heritage("R8")
@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_fit_tells_what_it_waited_and_not_what_the_generator_was_blocked(
    slow_loaders: Loaders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_per_execution: int
) -> None:
    waits_s: list[float] = []
    told = dataset._Iterator.__next__

    def timed(iterator: dataset._Iterator) -> object:
        began_s = time.perf_counter()
        try:
            return told(iterator)
        finally:
            waits_s.append(time.perf_counter() - began_s)

    monkeypatch.setattr(dataset._Iterator, "__next__", timed)
    model = tiny_model(steps_per_execution=steps_per_execution, record=False)
    with trainer_client.connect(slow_loaders.endpoint, prefetch=2) as feed:
        feed._session.cursor.rewind()
        data = feed.dataset(map=lambda batch: ({"audio": batch["audio"]}, batch["weight"], batch["weight"]))
        keeper = trainer_client.FeedCheckpoint(feed, str(tmp_path))
        model.fit(data, callbacks=[keeper, _Steps()], verbose=0)
        times, blocked_s = keeper.times, feed._session.accounts.counts.wait_s
    whole_s = times.wait_s + times.compute_s
    assert len(waits_s) > 10
    assert times.wait_s / whole_s == pytest.approx(sum(waits_s) / whole_s, abs=_POINTS)
    assert 0.05 * whole_s < times.wait_s
    assert blocked_s > 0
