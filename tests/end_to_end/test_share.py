"""Two jobs of one machine that share built batches: each has the bytes that it would have alone, and each batch is
built about once.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

import pytest
from rich.console import Console

import trainer_client
from loader_server.commands.status import ask, tables
from loader_server.metrics.worker_metrics import TAKEN_BATCHES
from tests.support.loaders import running, wait_until, write_job
from tests.support.scraping import fetch_metrics, read_targets

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.loaders import Loaders

#: Epoch, number, digest and rows of each.
Batches: TypeAlias = "list[tuple[int, ...]]"

_AUGMENTED = ("logmel", "spec_augment", "characters")
#: Several wants at each worker, so that it has other work while another builds what it wants.
_EPOCHS = 3


def make_jobs(folder: Path, *, job: str = "share = true", names: str = "ab") -> list[Path]:
    """Job files that differ in their names only, over the same recordings."""
    first = write_job(folder, name=names[0], samples=160, transforms=_AUGMENTED, budget="3 s", job=job)
    made = []
    for name in names:
        made.append(folder / f"{name}.toml")
        made[-1].write_text(first.read_text().replace(f'name = "{names[0]}"', f'name = "{name}"'))
    return made


def read(endpoint: str, *, after: int = 0, then: threading.Event | None = None, stream: str = "train") -> Batches:
    """What a trainer gets, in order; after so many batches it waits."""
    got = []
    with trainer_client.connect(endpoint, stream=stream, epochs=_EPOCHS, prefetch=8) as feed:
        for _ in range(_EPOCHS):
            for batch in feed:
                got.append((batch.epoch, batch.number, batch.digest, int(batch["weight"].sum())))
                if then is not None and len(got) == after:
                    assert then.wait(100)
    return got


def taken_and_built(loaders: Loaders, *jobs: str) -> tuple[int, int]:
    """Over all workers of these jobs."""
    workers = [one for name in jobs for one in ask(loaders.endpoint_of(name))["workers"]]
    return sum(one["taken"] for one in workers), sum(one["built"] for one in workers)


def test_one_that_lags_behind_the_shelf_builds_again_and_misses_nothing(tmp_path: Path, expected: Batches) -> None:
    """Room for a few batches: what the slow one gets is the same, though workers of both are killed."""
    jobs = make_jobs(tmp_path, job='share = true\nshare_bytes = "400 KiB"')
    go_on = threading.Event()
    with running(*jobs, workers=2) as loaders, ThreadPoolExecutor() as pool:
        slow = pool.submit(read, loaders.endpoint_of("b"), after=5, then=go_on)
        fast = read(loaders.endpoint_of("a"))
        assert fast == expected
        go_on.set()
        for worker in loaders.workers():
            worker.kill()
        assert slow.result() == expected
        wait_until(lambda: built_alone(loaders, "b") > len(expected) / 2, "they were built again, and told of")


def built_alone(loaders: Loaders, job: str) -> int:
    taken, built = taken_and_built(loaders, job)
    return built - taken


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Batches:
    """What the job gives without anybody beside it."""
    (job,) = make_jobs(tmp_path_factory.mktemp("alone"), job="", names="c")
    with running(job, workers=2) as loaders:
        return read(loaders.endpoint)


@pytest.mark.timeout(300)
def test_two_jobs_get_what_each_would_alone_and_batches_are_built_about_once(tmp_path: Path, expected: Batches) -> None:
    jobs = make_jobs(tmp_path)
    with running(*jobs, workers=2) as loaders, ThreadPoolExecutor() as pool:
        both = list(pool.map(read, [loaders.endpoint_of(name) for name in "ab"]))
        assert both == [expected, expected]
        wait_until(lambda: taken_and_built(loaders, *"ab")[1] >= 2 * len(expected), "all are told of")
        taken, built = taken_and_built(loaders, *"ab")
        there_are = len(expected) // _EPOCHS * (_EPOCHS + 1)  # trainers read ahead into the next epoch
        # One that is held up for long is built past; without sharing all would be built twice.
        assert taken > 0.5 * len(expected)
        assert built - taken < 1.5 * there_are, "each is built about once"
        wait_until(lambda: metered(tmp_path, "ab") == taken_and_built(loaders, *"ab")[0], "metrics say the same")
        assert "had been built by others" in said(loaders, "a") + said(loaders, "b")


def metered(folder: Path, jobs: str) -> float:
    """What the workers' metrics say of batches that were taken."""
    targets = [one for name in jobs for one in read_targets(folder / ".stoker" / name / "targets").values()]
    return sum(
        value
        for target in targets
        for (name, _), value in fetch_metrics(target["address"]).items()
        if name == TAKEN_BATCHES.name
    )


def said(loaders: Loaders, job: str) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(tables(ask(loaders.endpoint_of(job))))
    return captured.get()
