"""Far more strangers at each port than a server has descriptors: everybody else is served."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

import psutil
import pytest

import trainer_client
from shared.keys import make_keys
from tests.support import crowd
from tests.support.loaders import Loaders, ask, running, wait_until, write_job
from tests.support.scraping import fetch_metrics, read_targets, total

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.scraping import Scrape

_STRANGERS = 1100
_FILES = 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("crowds")


@pytest.fixture(scope="module")
def loaders(folder: Path) -> Iterator[Loaders]:
    make_keys(folder / "keys")
    with running(write_job(folder, samples=60, job='keys = "keys"'), workers=1) as loaders:
        for process in (psutil.Process(loaders.process.pid), *_servers(loaders)):  # a worker that is replaced, too
            process.rlimit(psutil.RLIMIT_NOFILE, (_FILES, _FILES))
        yield loaders


def _servers(loaders: Loaders) -> list[psutil.Process]:
    return [loaders.coordinator(), *loaders.workers()]


def _ports(loaders: Loaders) -> set[int]:
    """All that coordinator and worker serve on: messages, sealed payloads, metrics."""
    return {
        one.laddr.port
        for process in _servers(loaders)
        for one in process.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    }


def _epoch(feed: trainer_client.Feed) -> list[tuple[int, int]]:
    batches = [(batch.number, batch.digest, batch.masked) for batch in feed]
    assert not any(masked for _, _, masked in batches)
    return [(number, digest) for number, digest, _ in batches]


@pytest.mark.fault(38)
@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("kind", ["TCP", "ZeroMQ"])
def test_everybody_else_is_served(loaders: Loaders, folder: Path, kind: str, shared_memory: bool) -> None:
    how = {"stream": "dev", "keys": str(folder / "keys"), "shared_memory": shared_memory}
    ports = _ports(loaders)
    endpoints = [loaders.endpoint, ask(loaders.endpoint, keys=how["keys"])["workers"][0]["endpoint"]]
    assert len(ports) == 5
    servers = _servers(loaders)
    shut = loaders.text().count("too many connections")
    strangers = crowd.of_tcp if kind == "TCP" else functools.partial(crowd.of_zeromq, refused_at=endpoints)
    with crowd.room_for_files(16_000), trainer_client.connect(loaders.endpoint, **how) as feed:
        calm = _epoch(feed)
        with strangers(ports, _STRANGERS):
            if kind == "TCP":  # ZeroMQ's are hung up on at once
                wait_until(lambda: loaders.text().count("too many connections") >= shut + 2, "both shut their doors")
            until_s = time.monotonic() + 1.5  # who was hung up on has come back meanwhile

            def are_back() -> bool:
                assert _epoch(feed) == calm
                return time.monotonic() > until_s

            wait_until(are_back, "they have come back")
            with trainer_client.connect(loaders.endpoint, connect_timeout_s=60, **how) as newcomer:
                assert _epoch(newcomer) == calm
        with trainer_client.connect(loaders.endpoint, **how) as newcomer:
            assert _epoch(newcomer) == calm
    wait_until(lambda: all(one.num_fds() < 100 for one in servers), "the strangers' connections are gone")
    assert _servers(loaders) == servers, "nobody had to be replaced"
    assert "out of descriptors" not in loaders.text()
    gone = ["unfinished"] if kind == "TCP" else ["unfinished", "not_understood"]  # either side hangs up first

    def are_counted() -> bool:
        """At any of its ports: those that are tried first may take all the descriptors that there are for strangers."""
        for one in _metrics(folder):
            seen = sum(total(one, "stoker_connection_changes_total", kind=kind) for kind in gone)
            if seen <= 200 or one["stoker_connections", (("port", "messages"),)] >= 50:
                return False
        return True

    wait_until(are_counted, "the strangers are counted, and gone")
    assert sum(one["stoker_doors_shut_total", ()] for one in _metrics(folder)) >= 2


def _metrics(folder: Path) -> list[Scrape]:
    return [fetch_metrics(target["address"]) for target in read_targets(folder / ".stoker/tones/targets").values()]
