"""What coordinator and workers of a running job say of themselves."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

import trainer_client
from loader_server.building.build_counts import BuildCounts, Built, Effort
from loader_server.building.fallbacks import FALLBACK_REASONS
from loader_server.building.quarantine import COMMON_REASONS
from loader_server.metrics.worker_metrics import (
    BUILD_CPU_SECONDS,
    BUILD_SECONDS,
    FALLBACKS,
    MASKED_SAMPLES,
    NOT_FINITE_SAMPLES,
    REMOTE_BLOCKS,
    REMOTE_BYTES,
    REMOTE_RETRIES,
    WANT_QUEUE_SECONDS,
    worker_metrics,
)
from shared.metrics.names import WAIT_BOUNDS_S
from shared.metrics.server import Spread
from tests.support.askers import a_worker, write_synthetic
from tests.support.loaders import Loaders, running, wait_until, write_job
from tests.support.scraping import Scrape, fetch_metrics, metrics_of, read_targets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAMPLES = 60
TRANSFORMS = ("tests.support.transforms:raises", "logmel", "characters")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples that begin with "three" cannot be used, and the longest take no part."""
    folder = tmp_path_factory.mktemp("metrics")
    path = write_job(folder, samples=SAMPLES, transforms=TRANSFORMS, stream='max_length = "0.9 s"')
    more = '[streams.shared]\nlike = "train"\nmode = "queue"\n[streams.elastic]\nlike = "train"\nevaluation = false\n'
    path.write_text(path.read_text() + more)
    return path


@pytest.fixture(scope="module")
def loaders(job: Path) -> Iterator[Loaders]:
    with running(job, workers=2) as loaders:
        yield loaders


def _folder(job: Path) -> Path:
    return job.parent / ".stoker" / "tones" / "targets"


def _of(job: Path, name: str) -> Scrape:
    return fetch_metrics(read_targets(_folder(job))[name]["address"])


def _workers(job: Path) -> list[Scrape]:
    return [fetch_metrics(one["address"]) for one in read_targets(_folder(job)).values() if one["role"] == "worker"]


def _sum(scrapes: list[Scrape], name: str, **labels: str) -> float:
    return sum(
        value
        for scrape in scrapes
        for (one, had), value in scrape.items()
        if one == name and labels.items() <= dict(had).items()
    )


@pytest.fixture(scope="module")
def read(loaders: Loaders) -> dict[str, int]:
    """One epoch that was read: what the trainer saw of it."""
    trainer_client.connect(loaders.endpoint, stream="elastic", elastic=(1, 1)).close()
    with trainer_client.connect(loaders.endpoint) as feed:
        batches = list(feed)
        feed.aggregate({"loss": 0.5}, rows=4)
        cells = sum(batch["audio"].shape[0] * batch["audio"].shape[1] for batch in batches)
        return {
            "batches": len(batches),
            "masked": sum(batch.masked for batch in batches),
            "rows": sum(batch.rows for batch in batches),
            "cells": cells,
        }


def test_each_process_says_where_it_is_and_who(loaders: Loaders, job: Path) -> None:
    found = read_targets(_folder(job))
    assert sorted((one["job"], one["role"]) for one in found.values()) == [
        ("tones", "coordinator"),
        ("tones", "worker"),
        ("tones", "worker"),
    ]
    assert {one["worker"] for one in found.values() if one["role"] == "worker"} == {
        name.removeprefix("worker-") for name in found if name != "coordinator"
    }


@pytest.mark.parametrize("role", ["coordinator", "worker"])
def test_every_declared_metric_of_a_role_is_served(loaders: Loaders, job: Path, read: object, role: str) -> None:
    declared = {metric.name for metric in metrics_of(role)}  # type: ignore[arg-type]

    def served() -> set[str]:
        scrapes = [fetch_metrics(one["address"]) for one in read_targets(_folder(job)).values() if one["role"] == role]
        names = {name for scrape in scrapes for name, _ in scrape if name.startswith("stoker_")}
        return {re.sub(r"(_seconds)_(bucket|sum|count)$", r"\1", name) for name in names}

    wait_until(lambda: served() >= declared, f"a {role} serves {sorted(declared - served())}")
    assert served() == declared


def test_batches_phases_and_cells_of_workers_add_up(job: Path, read: dict[str, int]) -> None:
    def settled() -> bool:  # batches read ahead into the next epoch are still being built
        return _sum(_workers(job), "stoker_wants_building") + _sum(_workers(job), "stoker_wants_waiting") == 0

    wait_until(settled, "workers have nothing to do")
    workers = _workers(job)
    built = _sum(workers, "stoker_built_batches_total", stream="train")
    assert built >= read["batches"]
    assert _sum(workers, "stoker_built_batches_total", stream="dev") == 0
    assert _sum(workers, "stoker_built_cells_total", stream="train") >= read["cells"]
    assert _sum(workers, "stoker_built_cells_total", kind="masked") > 0
    assert _sum(workers, "stoker_masked_samples_total") >= read["masked"] > 0
    for phase in ("plan_and_read", "decode_and_transform", "write_and_digest"):
        assert 0 < _sum(workers, "stoker_build_seconds_total", phase=phase) < 60
    for phase in ("plan_and_read", "build"):
        assert 0 < _sum(workers, "stoker_build_cpu_seconds_total", phase=phase) < 60
    assert _sum(workers, "stoker_want_queue_seconds_count", stream="train") >= built


def test_remote_files_are_counted_for_the_job(tmp_path: Path) -> None:
    with a_worker(write_synthetic(tmp_path, samples=8, length=20)) as worker:
        worker.remote_counts.add(fetched_bytes=70, found=5, waited=2, retries=1)
        served = {one.metric: one.values for one in worker_metrics(worker)}
    assert served[REMOTE_BYTES] == {(): 70}
    assert served[REMOTE_BLOCKS] == {("found",): 5, ("waited",): 2}
    assert served[REMOTE_RETRIES] == {(): 1}


def test_fallbacks_and_values_that_are_not_finite_are_counted_from_zero(tmp_path: Path) -> None:
    with a_worker(write_synthetic(tmp_path, samples=8, length=20)) as worker:
        zeros = {one.metric: dict(one.values) for one in worker_metrics(worker)}
        worker._builders["train"].fallbacks.count("bad_sample")
        worker.build_counts["train"].add(Built(rows=1, masked=0, digest=0, build_us=1, not_finite=(("x", 3),)), 8)
        served = {one.metric: one.values for one in worker_metrics(worker)}
    assert zeros[FALLBACKS] == {(reason,): 0 for reason in FALLBACK_REASONS}
    assert served[FALLBACKS] == {**zeros[FALLBACKS], ("bad_sample",): 1}
    assert list(zeros[NOT_FINITE_SAMPLES].values()) == [0]
    assert zeros[MASKED_SAMPLES] == {(reason,): 0 for reason in COMMON_REASONS}
    assert served[NOT_FINITE_SAMPLES]["train", "x"] == 3


def test_the_phases_of_building_are_said_in_seconds(tmp_path: Path) -> None:
    with a_worker(write_synthetic(tmp_path, samples=8, length=20)) as worker:
        worker.build_counts["train"] = BuildCounts(read_us=1_500_000, decode_us=250_000, write_us=4_000_000)
        (phases,) = (one.values for one in worker_metrics(worker) if one.metric is BUILD_SECONDS)
    assert phases == {
        ("train", "plan_and_read"): 1.5,
        ("train", "decode_and_transform"): 0.25,
        ("train", "write_and_digest"): 4.0,
    }


def test_the_effort_of_wants_is_said_by_phase_and_in_intervals(tmp_path: Path) -> None:
    with a_worker(write_synthetic(tmp_path, samples=8, length=20)) as worker:
        zeros = {one.metric: dict(one.values) for one in worker_metrics(worker)}
        effort = Effort(queued_s=0.02, read_cpu_s=0.25, build_cpu_s=0.5, send_cpu_s=2)
        worker.build_counts["train"].add_effort(effort)
        served = {one.metric: one.values for one in worker_metrics(worker)}
    phases = ("plan_and_read", "build", "encode_and_seal")
    assert zeros[BUILD_CPU_SECONDS] == {("train", phase): 0 for phase in phases}
    assert served[BUILD_CPU_SECONDS] == dict(zip((("train", phase) for phase in phases), (0.25, 0.5, 2), strict=True))
    queued = served[WANT_QUEUE_SECONDS]["train",]
    assert isinstance(queued, Spread)
    assert (queued.total, sum(queued.counts), queued.counts[WAIT_BOUNDS_S.index(0.025)]) == (0.02, 1, 1)


def test_the_coordinator_knows_who_is_there_and_how_far(loaders: Loaders, job: Path, read: dict[str, int]) -> None:
    with trainer_client.connect(loaders.endpoint) as feed:
        for _ in zip(range(2), feed, strict=False):
            feed.trained()

        def seen() -> bool:
            scrape = _of(job, "coordinator")
            return (
                scrape["stoker_trainers", (("stream", "train"),)] == 1
                and scrape["stoker_trained_batch_number", (("stream", "train"),)] == 2
            )

        wait_until(seen, "the coordinator has heard of two batches")
    scrape = _of(job, "coordinator")
    assert scrape["stoker_workers", ()] == 2
    assert scrape["stoker_attaches_total", ()] >= 2
    assert scrape["stoker_reattaches_total", ()] == 0
    assert scrape["stoker_epoch_batches", (("stream", "train"),)] == read["batches"]
    assert ("stoker_trained_epoch", (("stream", "dev"),)) not in scrape  # an evaluation stream goes nowhere
    left_out = _sum([scrape], "stoker_left_out_samples", stream="train")
    assert scrape["stoker_samples", (("stream", "train"),)] == SAMPLES
    assert read["rows"] + read["masked"] + left_out == SAMPLES
    assert left_out > 0


def test_a_worker_that_is_killed_takes_its_target_over(loaders: Loaders, job: Path) -> None:
    before = read_targets(_folder(job))
    victim = loaders.workers()[0]
    words = " ".join(victim.cmdline()).split()
    name = words[words.index("--name") + 1]
    victim.kill()
    wait_until(
        lambda: read_targets(_folder(job))[f"worker-{name}"]["address"] != before[f"worker-{name}"]["address"],
        "the worker is back at another address",
    )
    assert read_targets(_folder(job)).keys() == before.keys()
    after = _of(job, f"worker-{name}")
    assert after["stoker_wants_waiting", ()] == 0
    assert after["stoker_restarts_total", ()] == 1
    assert _of(job, "coordinator")["stoker_restarts_total", ()] == 0


def test_targets_go_with_their_processes_and_dead_ones_at_the_next_start(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=8, longest_s=0.3)
    with running(job, workers=1) as loaders:
        names = read_targets(_folder(job)).keys()
        loaders.workers()[0].send_signal(signal.SIGTERM)  # ends in good order, and is started again
    assert len(names) == 2
    assert read_targets(_folder(job)) == {}
    stale = _folder(job) / "trainer-0.json"
    stale.write_text('[{"targets": ["127.0.0.1:1"], "labels": {"role": "trainer"}}]')
    with running(job, workers=1):
        assert read_targets(_folder(job)).keys() == names


def test_ports_follow_the_coordinator_s(tmp_path: Path) -> None:
    port = 20_000 + os.getpid() % 10_000  # below those that the system gives away
    job = write_job(tmp_path, samples=8, longest_s=0.3, job=f"metrics_port = {port}")
    with running(job, workers=2):
        addresses = sorted(one["address"] for one in read_targets(_folder(job)).values())
    assert addresses == [f"127.0.0.1:{port + offset}" for offset in range(3)]
