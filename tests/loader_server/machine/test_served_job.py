"""Where the workers of a joined job listen, and where they serve metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from loader_server.machine.served_job import JoinedJob, refuse_conflicts
from shared.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

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
    endpoint: str, keys: str, insecure: bool, expected: str, tmp_path: Path
) -> None:
    folder = SimpleNamespace(
        settings=SimpleNamespace(name="digits", listen=endpoint, metrics_port=0),
        keys=keys or None,
        joined=None,
        targets_folder=tmp_path,
    )
    job = JoinedJob(folder, "", lambda *_: [], insecure=insecure)  # type: ignore[arg-type]
    worker = job.worker(0, "host")
    assert worker.listen == expected
    command = worker.command(worker.listen)
    assert command[command.index("--coordinator") + 1] == endpoint


@pytest.mark.parametrize(("first", "expected"), [(0, ["0", "0"]), (9100, ["9101", "9102"])])
def test_metrics_of_a_joined_jobs_workers_have_the_ports_after_the_hosts(
    first: int, expected: list[str], tmp_path: Path
) -> None:
    settings = SimpleNamespace(name="digits", listen="tcp://loader-a:7400", metrics_port=first)
    folder = SimpleNamespace(settings=settings, keys="keys", joined=None, targets_folder=tmp_path)
    job = JoinedJob(folder, "", lambda *_: [], insecure=False)  # type: ignore[arg-type]
    commands = [child.command(child.listen) for child in (job.worker(place, "host") for place in range(2))]
    assert [command[command.index("--metrics-port") + 1] for command in commands] == expected


def test_joined_jobs_of_a_machine_may_have_equal_metrics_ports(tmp_path: Path) -> None:
    """Its places have one each, whichever of these jobs they serve."""
    folders = [
        SimpleNamespace(
            settings=SimpleNamespace(name=name, listen=f"tcp://{name}:7400", metrics_port=9100), keys="keys",
            joined=SimpleNamespace(tag=name), path=name, targets_folder=tmp_path / name,
        )
        for name in ("digits", "words")
    ]  # fmt: skip
    first = JoinedJob(folders[0], "", lambda *_: [], insecure=False)  # type: ignore[arg-type]
    refuse_conflicts([first], folders[1], "tcp://words:7400", workers=4)  # type: ignore[arg-type]
    folders[1].joined = None
    with pytest.raises(SettingsError, match="a metrics_port different"):
        refuse_conflicts([first], folders[1], "tcp://words:7400", workers=4)  # type: ignore[arg-type]
