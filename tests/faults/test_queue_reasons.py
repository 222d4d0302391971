"""Why batches failed in queue mode, from a trainer's words to all places where people look."""

from __future__ import annotations

import contextlib
import io
import json

import pytest
from rich.console import Console

import trainer_client
from loader_server.commands import status
from loader_server.leases.table_counts import NO_REASON, TOOK_TOO_LONG
from loader_server.metrics.coordinator_metrics import FAILED_TRIES
from tests.support.loaders import ask, running, wait_until, write_job
from tests.support.scraping import fetch_metrics, read_targets

STREAM = 'mode = "queue"\nlease_timeout = "20 s"\ntries = 2'


@pytest.mark.heritage("E23")
def test_a_batch_that_failed_says_why_in_dead_letters_status_and_log_and_also_after_a_kill(tmp_path):
    job = write_job(tmp_path, samples=40, budget="2 s", stream=STREAM)
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, epochs=1, prefetch=2) as feed:
        for batch in feed:
            if batch.number == 1:
                batch.failed("loss is not finite: step " + 300 * "9")
            elif batch.number == 2:
                batch.failed()
        loaders.coordinator().kill()
        table = ask(loaders.endpoint)["streams"]["train"]["queue"]["train"]
        shown = _status(loaders.endpoint)
    reason = ("loss is not finite: step " + 300 * "9")[:200]
    letters = {letter["number"]: (letter["failures"], letter["reason"]) for letter in table["dead_letters"]}
    assert letters == {1: (2, reason), 2: (2, "no reason given")}
    assert "1 of epoch 0 (loss is not finite: step 999" in shown
    events = [json.loads(line) for line in loaders.text().splitlines() if line.startswith("{")]
    failures = [event["event"] for event in events if event.get("reason") == reason]
    assert failures == [
        "trainer failed at a batch: it is leased again",
        "batch is given up: trainers failed at it too often",
    ]


def test_failures_are_counted_by_reason(tmp_path):
    job = write_job(tmp_path, samples=40, budget="2 s", stream=STREAM)
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, epochs=1, prefetch=2) as feed:
        seen = set()
        for batch in feed:
            if batch.number < 3 and batch.number not in seen:
                seen.add(batch.number)
                batch.failed("out of memory")
        table = ask(loaders.endpoint)["streams"]["train"]["queue"]["train"]
        shown = _status(loaders.endpoint)
        address = read_targets(job.parent / ".stoker" / "tones" / "targets")["coordinator"]["address"]
        want = {"out of memory": 3, NO_REASON: 0, TOOK_TOO_LONG: 0}
        wait_until(lambda: _counted(address) == want, "the metrics have the reasons", 20)
    assert (table["failed"], table["reasons"]) == (3, {"out of memory": 3})
    assert "train (train): tries failed: out of memory (3)" in shown


def _counted(address: str) -> dict[str, float]:
    """The counters of lost tries by reason."""
    scrape = fetch_metrics(address)
    return {dict(labels)["reason"]: value for (name, labels), value in scrape.items() if name == FAILED_TRIES.name}


def _status(endpoint: str) -> str:
    """What the command prints, in one line."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        Console().print(status.tables(status.ask(endpoint, timeout_s=60.0)))
    return " ".join(out.getvalue().split())
