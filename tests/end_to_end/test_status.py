"""`loader-server status` of a running job: what was read, and who holds it up."""

from __future__ import annotations

import json
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest

import trainer_client
from loader_server.cli import main
from loader_server.commands.index import index_streams
from loader_server.commands.status import ask, with_limit
from loader_server.job_file import JobFile
from tests.support.loaders import running, wait_until, write_job
from tests.support.scraping import fetch_metrics, read_targets
from tests.support.stores import plain_server

if TYPE_CHECKING:
    from pathlib import Path


def test_what_limits_a_job_that_reads_all_that_is_built_is_named_with_what_it_would_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = ("tests.support.transforms:slow", "logmel", "characters")
    job = write_job(tmp_path, samples=200, transforms=slow, job='heartbeat_timeout = "1 s"')
    stop = threading.Event()
    with running(job, workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        before = with_limit(ask(loaders.endpoint))
        assert (before["streams"]["train"]["waited_permille"], before["limit"]["limit"]) == (None, "nobody")

        def read() -> None:
            while not stop.is_set():
                for _ in feed:
                    if stop.is_set():
                        return

        def limit_told() -> dict[str, Any]:
            with pytest.raises(SystemExit, match="0"):
                main(["status", loaders.endpoint, "--json", "--timeout-seconds", "60"])
            limit: dict[str, Any] = json.loads(capsys.readouterr().out)["limit"]
            return limit

        def is_named() -> bool:
            report = with_limit(ask(loaders.endpoint))
            assert report["streams"]["train"]["number"] == 0, "nobody counts what was trained before the epoch ends"
            return report["limit"]["limit"] == "transforms" and report["limit"]["gains"] is not None

        reader = threading.Thread(target=read)
        reader.start()
        try:
            wait_until(is_named, "the transforms are the limit, and what would be gained is known")
            wait_until(lambda: limit_told()["limit"] == "transforms", "the command tells it")
            assert limit_told()["sentence"].startswith("limit: transforms in workers")
            wait_until(lambda: heard(feed) == "transforms", "the coordinator tells the trainer")
            wait_until(lambda: scraped(job) == "transforms", "a scrape has it too")
        finally:
            stop.set()
            reader.join()


def heard(feed: trainer_client.Feed) -> str | None:
    """What limits the job, as the trainer heard it with a gain that it can use."""
    latest = feed._session.receiver.stream.limits.latest
    return latest.limit if latest is not None and latest.loaders_gain is not None else None


def scraped(job: Path) -> str:
    """What limits the stream, as Prometheus would see it."""
    (coordinator,) = (
        target
        for target in read_targets(job.parent / ".stoker/tones/targets").values()
        if target["role"] == "coordinator"
    )
    values = {dict(labels)["limit"]: value for (name, labels), value in fetch_metrics(coordinator["address"]).items()
              if name == "stoker_limit" and dict(labels)["stream"] == "train"}  # fmt: skip
    (limit,) = (limit for limit, value in values.items() if value)
    return limit


def test_what_came_of_a_store_is_counted(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far/a.txt").write_text("a line\n" * 999)
    with plain_server(tmp_path / "far", ranges=True) as address:
        (tmp_path / "job.toml").write_text(
            '[job]\nname = "j"\nlisten = "tcp://127.0.0.1:*"\n[streams.train]\nsource = "lines"\n'
            f'paths = ["http://{address}/a.txt"]\ntransforms = ["characters"]\nlength = "text"\nbudget = "600 steps"\n'
        )
        index_streams(JobFile(tmp_path / "job.toml"), ["train"], processes=1)
        shutil.rmtree(tmp_path / ".stoker/remote")
        with running(tmp_path / "job.toml", workers=1) as loaders:
            with trainer_client.connect(loaders.endpoint) as feed:
                assert sum(1 for _ in feed) > 9

            def counted() -> tuple[int, bool]:
                (worker,) = ask(loaders.endpoint)["workers"]
                return worker["remote_bytes"], worker["remote_found"] + worker["remote_waited"] > 0

            wait_until(lambda: counted() == (999 * 7, True), "each byte is counted once")
