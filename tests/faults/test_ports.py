"""A worker's ports under keys: the one that is given, and the next for sealed payloads, which a firewall may shut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

import trainer_client
from shared.keys import make_keys
from tests.support.fleet import fleet
from tests.support.loaders import wait_until, write_job
from tests.support.reserved_host import reserved_host, reserved_pair

if TYPE_CHECKING:
    from pathlib import Path


def _write_job(folder: Path) -> Path:
    make_keys(folder / "keys")
    return write_job(folder, samples=24, job='keys = "keys"')


@pytest.mark.slow
def test_sealed_payloads_come_from_the_port_after_the_one_that_is_given(tmp_path: Path) -> None:
    with fleet(_write_job(tmp_path)) as loaders, reserved_pair() as host:
        worker = loaders.join("vm-1", "--listen", f"tcp://{host}")
        port = int(host.rpartition(":")[2])
        process = psutil.Process(worker.pid)
        listening = {one.laddr.port for one in process.net_connections() if one.status == psutil.CONN_LISTEN}
        assert {port, port + 1} <= listening
        assert "port for sealed payloads is taken" not in loaders.text()


@pytest.mark.slow
def test_a_trainer_that_cannot_reach_it_says_so_once_and_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with fleet(_write_job(tmp_path)) as loaders, reserved_host() as shut:
        port = shut.rpartition(":")[2]
        loaders.join("vm-1", odd=(f"sealed={port}:{tmp_path / 'real-port'}",))
        keys = str(tmp_path / "keys")
        with trainer_client.connect(loaders.endpoint, keys=keys, shared_memory=False, prefetch=2) as feed:

            def is_told() -> bool:
                next(batches)
                return "payloads come by the connection for messages" in caplog.text

            batches = (batch for _ in iter(int, 1) for batch in feed)
            wait_until(is_told, "the trainer says that it reads by the slower way")
            for _ in range(20):
                next(batches)
            assert feed._session.receiver.count_fallbacks() > 20
    told = [record for record in caplog.records if "payloads come by the connection" in record.getMessage()]
    assert len(told) == 1
    assert f"port={port}" in told[0].getMessage()
