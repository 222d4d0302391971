"""Queue mode while processes are killed: each batch is done once, and the work goes on."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

import trainer_client
from loader_server.commands import status
from tests.faults.queue_chaos import Place
from tests.support.loaders import running, wait_until, write_job

JOB = 'heartbeat_timeout = "400 ms"'
STREAM = 'mode = "queue"\nlease_timeout = "20 s"'


@pytest.mark.fault(12)
@pytest.mark.fault(17)
def test_leases_survive_the_coordinator_and_those_of_a_killed_trainer_go_to_another(tmp_path):
    job = write_job(tmp_path, samples=60, budget="2 s", job=JOB, stream=STREAM)
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint, epochs=1, prefetch=4) as feed:
        victim = Place(60.0, tmp_path, loaders.endpoint, 1)
        victim.start()
        wait_until(lambda: victim.logs[0].stat().st_size, "the other trainer has a batch in hand")
        got, is_killed = Counter(), threading.Event()
        for batch in feed:
            got[batch.number] += 1
            if not is_killed.is_set():
                is_killed.set()
                loaders.coordinator().kill()
                victim.kill()
        train = status.ask(loaders.endpoint)["streams"]["train"]
        assert got == dict.fromkeys(range(train["batches"]), 1)
        table = train["queue"]["train"]
        assert (table["epoch"], table["dead"], table["unknown"], table["expired"]) == (1, 0, 0, 0)
