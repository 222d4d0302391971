"""Samples that are kept across epochs, by real workers of which one is killed while it keeps some."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import trainer_client
from loader_server.commands.status import ask
from loader_server.metrics.worker_metrics import DECODED_SAMPLES
from tests.support.loaders import running, wait_until, write_job
from tests.support.scraping import fetch_metrics, read_targets

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.loaders import Loaders

_AUGMENTED = ("logmel", "spec_augment", "characters")


def _read(loaders: Loaders, *, kill: bool = False) -> list[tuple[int, int, int]]:
    """Two epochs; in the first one a worker may be killed."""
    got = []
    with trainer_client.connect(loaders.endpoint) as feed:
        for epoch in range(2):
            for batch in feed:
                got.append((epoch, batch.number, batch.digest))
                if kill and len(got) == 3:
                    loaders.workers()[0].kill()
    return got


@pytest.mark.heritage("D16")
def test_batches_of_later_epochs_come_from_the_cache_and_are_the_same(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=60, longest_s=0.3, transforms=_AUGMENTED, budget="1 s")
    with running(job, workers=1) as loaders:
        plain = _read(loaders)
    job.write_text(job.read_text().replace("[job]", '[job]\nfeature_cache_bytes = "1 GiB"', 1))
    with running(job) as loaders:
        assert _read(loaders, kill=True) == plain
        wait_until(lambda: _kept(loaders) > 0, "status shows what came from the cache")
        wait_until(lambda: _metered(job)["kept"] > 0, "and so do metrics")


def _kept(loaders: Loaders) -> int:
    return sum(worker["kept"] for worker in ask(loaders.endpoint)["workers"])


def _metered(job: Path) -> dict[str, float]:
    """What the workers' metrics say."""
    found = {"kept": 0.0, "decoded": 0.0}
    for target in read_targets(job.parent / ".stoker/tones/targets").values():
        with suppress(OSError):  # the killed worker's, until its successor has taken its place
            for (name, labels), value in fetch_metrics(target["address"]).items():
                if name == DECODED_SAMPLES.name:
                    found[dict(labels)["kind"]] += value
    return found
