"""`loader-server status` of a running job: what was read, and who holds it up."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

import trainer_client
from loader_server.cli import main
from loader_server.commands.status import ask
from tests.support.loaders import running, wait_until, write_job

if TYPE_CHECKING:
    from pathlib import Path


def test_a_reader_that_takes_all_that_is_built_shows_the_loaders_as_the_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = ("tests.support.transforms:slow", "logmel", "characters")
    job = write_job(tmp_path, samples=300, transforms=slow, job='heartbeat_timeout = "1 s"')
    stop = threading.Event()
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        before = ask(loaders.endpoint)["streams"]["train"]
        assert (before["waited_permille"], before["limit"]) == (None, None)

        def read() -> None:
            for _ in feed:
                if stop.is_set():
                    return

        reader = threading.Thread(target=read)
        reader.start()
        try:
            wait_until(lambda: ask(loaders.endpoint)["streams"]["train"]["limit"] == "loaders", "they are the limit")
            train = ask(loaders.endpoint)["streams"]["train"]
            assert train["waited_permille"] >= 50
            with pytest.raises(SystemExit, match="0"):
                main(["status", loaders.endpoint, "--json"])
            assert json.loads(capsys.readouterr().out)["streams"]["train"]["limit"] == "loaders"
            assert train["number"] == 0 < train["read_number"], "nobody counts what was trained before the epoch ends"
        finally:
            stop.set()
            reader.join()
