"""Very little data in real processes: epochs in parts, evaluation beside them, more ranks than there are batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import trainer_client
from shared.errors import RefusedError
from tests.support.forked import run_module
from tests.support.loaders import Loaders, running, write_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAMPLES = 40


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    """Forty samples in four parts, of which a few ranks leave none empty."""
    job = write_job(tmp_path_factory.mktemp("job"), samples=SAMPLES, budget="2 s", stream="epoch_parts = 4")
    with running(job, workers=1) as loaders:
        yield loaders


def _epoch(feed: trainer_client.Feed) -> list[int]:
    """The samples of the rest of the epoch, as often as they came."""
    return [tag for batch in feed for tag in batch["tag"][batch["weight"] > 0].tolist()]


@pytest.mark.fault(50)
def test_the_parts_of_a_pass_hold_every_sample_once(loaders: Loaders) -> None:
    with trainer_client.connect(loaders.endpoint, replicas=2) as feed:
        for epoch in range(0, 8, 4):
            assert feed.epoch == epoch
            parts = [_epoch(feed) for _ in range(4)]
            assert all(parts)
            assert sorted(tag for part in parts for tag in part) == list(range(SAMPLES))


@pytest.mark.fault(50)
@pytest.mark.parametrize("ranks", [1, 64])
def test_an_evaluation_reads_all_of_the_data_each_time(loaders: Loaders, ranks: int) -> None:
    with trainer_client.connect(loaders.endpoint, stream="dev", replicas=ranks) as feed:
        for _ in range(3):
            assert sorted(_epoch(feed)) == list(range(SAMPLES))


@pytest.mark.fault(50)
def test_more_ranks_than_the_parts_have_batches_for_are_refused_before_training(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=SAMPLES, budget="2 s", stream="epoch_parts = 4")
    with running(job, workers=1) as loaders:
        with pytest.raises(
            RefusedError, match=r"expected a group of batches for each of the 4 parts.*epoch_parts = 1 "
        ):
            trainer_client.connect(loaders.endpoint, rank=3, world=64)
        with trainer_client.connect(loaders.endpoint) as feed:
            assert _epoch(feed)


@pytest.mark.fault(50)
@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ("epoch_parts = 40", "expected a group of batches for each of the 40 parts of the data"),
        ("epoch_parts = 4\nevaluation = true", "expected an evaluation stream without parts"),
        ('max_length = { 0 = "0.5 s", 2 = "1 s" }\nevaluation = true', "got one for each of 2 epochs"),
        ('max_length = { 0 = "0.01 s", 2 = "1 s" }', "samples of at most 1 steps: expected at least one sample"),
    ],
)
def test_parts_that_nobody_could_train_on_are_refused_at_the_start(tmp_path: Path, stream: str, words: str) -> None:
    job = write_job(tmp_path, samples=SAMPLES, budget="2 s", stream=stream)
    code, _, errors = run_module("loader_server", "run", str(job), "--workers", "1")
    assert code == 1
    assert words in errors
