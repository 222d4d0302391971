"""Lines of trainer, worker and coordinator about one batch and one trainer, joined by what they have in common."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

import trainer_client
from shared.stations.limit import LIMITS
from tests.support.loaders import Loaders, running, wait_until, write_job
from tests.support.log_lines import Lines

if TYPE_CHECKING:
    from pathlib import Path


def lines_of(loaders: Loaders, event: str) -> list[dict[str, Any]]:
    """The loaders' lines with this event."""
    found = [json.loads(line) for line in loaders.text().splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


def key(line: dict[str, Any]) -> tuple[object, ...]:
    return tuple(line[name] for name in ("run", "trainer", "epoch", "number", "slot"))


@pytest.mark.parametrize("mode", ["", 'mode = "queue"'], ids=["lockstep", "queue"])
def test_a_batch_and_its_trainer_are_found_in_all_logs(tmp_path: Path, mode: str) -> None:
    job = write_job(tmp_path, samples=40, stream=mode, job='heartbeat_timeout = "1 s"')
    with running(job, workers=2, arguments=("--log-level", "debug")) as loaders, Lines(logging.DEBUG) as lines:
        with trainer_client.connect(loaders.endpoint) as feed:
            wait_until(lambda: lines_of(loaders, "trainer is there"), "the coordinator has seen the trainer")
            batches = sum(1 for _ in feed)
        wait_until(lambda: len(lines_of(loaders, "batch is pushed")) >= batches, "the workers have said all")
        asked, came = lines.fields("batch is asked for"), lines.fields("batch came")
        (done,) = lines.fields("epoch done")
        accepted, pushed = (lines_of(loaders, event) for event in ("want is accepted", "batch is pushed"))
        (there,) = lines_of(loaders, "trainer is there")
    # Wants of the next epoch may be asked for just before the feed is closed, and then no worker takes them.
    first = [{key(line) for line in lines if line["epoch"] == 0} for lines in (asked, accepted)]
    assert first[0] == first[1]
    assert {key(line) for line in accepted} <= {key(line) for line in asked}
    assert {key(line) for line in came} <= {key(line) for line in pushed}
    assert len({line["number"] for line in came if line["epoch"] == 0}) == batches
    about = [*asked, *came, *accepted, *pushed, done, there]
    assert {(line["run"], line["trainer"], line.get("rank")) for line in about} == {
        (there["run"], there["trainer"], None if mode else 0)
    }
    assert {line["job"] for line in about} == {"tones"}
    assert {line["worker"] for line in accepted} <= {line["worker"] for line in lines_of(loaders, "worker is there")}
    assert (done["epoch"], done["steps"]) == (0, batches)
    assert done["limit"] in {"unknown", *LIMITS}
    assert ("share" in done, "complete" in done) == (bool(mode), not mode)


def test_a_coordinator_that_stood_still_is_told_by_all_sides_once(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=40, job='heartbeat_timeout = "0.5 s"')
    with (
        Lines() as lines,
        running(job, workers=2) as loaders,
        trainer_client.connect(loaders.endpoint) as feed,
    ):
        next(iter(feed))
        wait_until(lambda: lines_of(loaders, "trainer is there"), "it is there")
        coordinator = loaders.coordinator()
        coordinator.suspend()
        try:
            wait_until(lambda: "the coordinator is silent" in lines.events, "the trainer notices")
            wait_until(lambda: len(lines_of(loaders, "the coordinator is silent")) == 2, "the workers notice")
        finally:
            coordinator.resume()
        wait_until(lambda: "the coordinator answers again" in lines.events, "the trainer hears it")
        wait_until(lambda: len(lines_of(loaders, "the coordinator answers again")) == 2, "the workers hear it")
        wait_until(lambda: lines_of(loaders, "this coordinator stood still"), "it notices as well")
        assert lines.events.count("the coordinator is silent") == 1
        assert len({line["worker"] for line in lines_of(loaders, "the coordinator is silent")}) == 2
        (silent,) = lines.fields("the coordinator is silent")
        (there, *_) = lines_of(loaders, "trainer is there")
        assert {name: silent[name] for name in ("job", "trainer", "rank", "run")} == {
            name: there[name] for name in ("job", "trainer", "rank", "run")
        }
        (again,) = lines.fields("the coordinator answers again")
        assert again["seconds"] > 0.4
