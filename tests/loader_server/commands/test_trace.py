"""`loader-server trace` against real processes."""

from __future__ import annotations

import argparse
import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

import trainer_client
from loader_server.commands import trace
from shared.errors import DataError, LostError, SettingsError
from tests.loader_server.tracing.test_chrome_trace import refuse_bad_trace
from tests.support.loaders import Loaders, ask, running, wait_until, write_job

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    stream = 'mode = "queue"\n'
    job = write_job(tmp_path_factory.mktemp("job"), samples=300)
    leased = job.read_text() + f'\n[streams.leased]\nlike = "train"\nevaluation = false\n{stream}'
    job.write_text(leased)
    with running(job) as loaders:
        yield loaders


def options(loaders: Loaders, **given: Any) -> argparse.Namespace:
    fields: dict[str, Any] = {"endpoint": loaders.endpoint, "keys": "", "timeout_seconds": 60.0, "json": True}
    fields |= {"seconds": None, "batch": None, "epoch": None, "slowest": None, "stream": ""}
    return argparse.Namespace(**(fields | given))


def look(loaders: Loaders, capsys: pytest.CaptureFixture[str], **given: Any) -> dict[str, Any]:
    capsys.readouterr()
    assert trace.run(options(loaders, **given)) == 0
    return dict(json.loads(capsys.readouterr().out))


def read(feed: trainer_client.Feed, most: int = 1000) -> list[tuple[int, int, str, float]]:
    """Read and train on some batches of an epoch: epoch, number, who built it, and how long it was waited for."""
    found = []
    with feed.open() as reading:
        while len(found) < most:
            began_s = time.perf_counter()
            batch = next(reading, None)
            if batch is None:
                break
            found.append((batch.epoch, batch.number, batch.built_by, 1000 * (time.perf_counter() - began_s)))
            feed.trained()
    return found


def test_a_batch_of_lockstep(loaders, capsys):
    with trainer_client.connect(loaders.endpoint, stream="train") as feed:
        epoch, number, built_by, waited_ms = read(feed, 3)[0]
        (life,) = look(loaders, capsys, batch=number)["batches"]
    assert (life["epoch"], life["batch"], life["stream"]) == (epoch, number, "train")
    assert life["missing"] == []
    assert life["built_by"] == built_by
    assert built_by in {worker["name"] for worker in ask(loaders.endpoint)["workers"]}
    assert sum(part["waited_ms"] for part in life["parts"]) == pytest.approx(life["waited_ms"])
    assert 0 < life["waited_ms"] <= waited_ms
    assert {part["place"] for part in life["parts"]} == {"network", "worker", "trainer"}


@pytest.mark.parametrize("stream", ["dev", "leased"])
def test_a_batch_of_an_evaluation_and_of_a_queue(loaders, capsys, stream):
    with trainer_client.connect(loaders.endpoint, stream=stream) as feed:
        with feed.open() as reading:
            first = next(reading)
            number, built_by = first.number, first.built_by
            if stream == "leased":
                first.done()
            next(reading)
        (life,) = look(loaders, capsys, batch=number, stream=stream)["batches"]
    assert (life["batch"], life["stream"], life["built_by"]) == (number, stream, built_by)
    assert len(life["parts"]) > 5
    not_trained = ["whether it was trained on: no step has counted it yet"]
    assert life["missing"] == (not_trained if stream == "dev" else [])


def test_the_slowest_and_the_trace(loaders, capsys):
    with trainer_client.connect(loaders.endpoint, stream="train") as feed:
        waits = {(epoch, number): waited_ms for epoch, number, _, waited_ms in read(feed)}
        worst = look(loaders, capsys, slowest=3)["batches"]
        # So many that workers are asked for all of their stamps.
        everything = look(loaders, capsys, slowest=1000)["batches"]
        chrome = look(loaders, capsys, seconds=600.0)
        assert trace.run(options(loaders, slowest=3, json=False)) == 0
        table = capsys.readouterr().out.splitlines()
        assert trace.run(options(loaders, batch=worst[0]["batch"], json=False)) == 0
        lines = capsys.readouterr().out.splitlines()
    assert [life["waited_ms"] for life in worst] == sorted((life["waited_ms"] for life in worst), reverse=True)
    assert all(life["waited_ms"] <= waits[life["epoch"], life["batch"]] for life in worst)
    assert all(life["built_by"] for life in worst)
    assert [life["batch"] for life in everything[: len(worst)]] == [life["batch"] for life in worst]
    assert all(life["missing"] == [] for life in everything)
    refuse_bad_trace(chrome)
    names = [event["args"]["name"] for event in chrome["traceEvents"] if event["name"] == "process_name"]
    assert sum(name.startswith("trainer train rank 0") for name in names) == 1
    assert len(names) == 3
    spans = {event["name"] for event in chrome["traceEvents"] if event.get("cat") == "training"}
    assert {f"{epoch}/{number}" for epoch, number in waits} <= spans
    assert len(table) == len(worst) + 1
    assert len(lines) == 8
    assert all(len(line) <= 80 for line in [*table, *lines])


def test_a_worker_that_is_killed_and_the_second_attempt(loaders, capsys):
    with trainer_client.connect(loaders.endpoint, stream="train", prefetch=4) as feed, feed.open() as reading:
        next(reading)
        victim = loaders.workers()[0]
        victim.send_signal(signal.SIGSTOP)
        try:
            # Its wants are asked elsewhere once it has been silent for a heartbeat timeout.
            numbers = [next(reading).number for _ in range(15)]
            given = {"timeout_seconds": 1.0}
            lives = [life for number in numbers for life in look(loaders, capsys, batch=number, **given)["batches"]]
        finally:
            victim.kill()
    wait_until(lambda: len(ask(loaders.endpoint)["workers"]) == 2, "the worker has a successor")
    twice = [life for life in lives if len(life["asked"]) > 1]
    assert twice
    assert all(any("no answer from" in part["name"] for part in life["parts"]) for life in twice)
    assert any("no answer within 1 s" in missing for life in twice for missing in life["missing"])


def test_a_trainer_that_has_left_took_its_stamps_along(loaders):
    with trainer_client.connect(loaders.endpoint, stream="train") as feed:
        read(feed, 3)
    with pytest.raises(DataError, match="What a trainer that has left knew is lost"):
        trace.run(options(loaders, batch=0))


def test_it_says_how_far_stamps_go_back(loaders):
    with trainer_client.connect(loaders.endpoint, stream="train") as feed:
        read(feed, 3)
        with pytest.raises(DataError, match=r"none at 1 trainers, whose stamps go back \d+ s"):
            trace.run(options(loaders, batch=999_999))


def test_what_cannot_be_asked(loaders):
    with pytest.raises(SettingsError, match="one of --batch and --slowest"):
        trace.run(options(loaders, batch=1, slowest=2))


def test_a_coordinator_that_is_not_there():
    given = argparse.Namespace(
        endpoint="tcp://127.0.0.1:9", keys="", timeout_seconds=0.3, json=True, seconds=None, batch=1, epoch=None,
        slowest=None, stream="",
    )  # fmt: skip
    with pytest.raises(LostError, match=r"answers within 0.3 s"):
        trace.run(given)
