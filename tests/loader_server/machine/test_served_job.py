"""Where the workers of a joined job listen if nothing is said."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from loader_server.machine.served_job import JoinedJob

FILE = "file:///shared/.stoker/digits/endpoint"
HERE, EVERYWHERE = "tcp://127.0.0.1:*", "tcp://0.0.0.0:*"


@pytest.mark.parametrize(
    ("endpoint", "keys", "insecure", "expected"),
    [
        ("tcp://127.0.0.1:7400", "keys", True, HERE),
        ("tcp://loader-a:7400", "keys", False, EVERYWHERE),
        (FILE, "", False, HERE),
        (FILE, "keys", False, EVERYWHERE),  # the coordinator may come back on another host
        (FILE, "", True, EVERYWHERE),
    ],
)
def test_beyond_loopback_if_the_coordinator_is_or_may_come_to_be_there(
    endpoint: str, keys: str, insecure: bool, expected: str
) -> None:
    folder = SimpleNamespace(
        settings=SimpleNamespace(name="digits", listen=endpoint, metrics_port=0), keys=keys or None, joined=None
    )
    job = JoinedJob(folder, "", lambda *_: [], insecure=insecure)  # type: ignore[arg-type]
    worker = job.worker(0, "host")
    assert worker.listen == expected
    command = worker.command(worker.listen)
    assert command[command.index("--coordinator") + 1] == endpoint
