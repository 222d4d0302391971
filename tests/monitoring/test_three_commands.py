"""The commands with which the page on monitoring begins are run as they stand there, but for their ports."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.loaders import wait_until, write_job
from tests.support.monitoring import PROMETHEUS, WHY_NOT, Prometheus
from tests.support.reserved_host import reserved_host

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "monitoring" / "README.md").read_text()

#: The addresses of the page: where the run is asked, and where Prometheus is.
OURS = ("127.0.0.1:7490", "127.0.0.1:9091")


def _commands() -> list[str]:
    block = re.search(r"^Three commands.*?```\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
    assert block is not None
    return [line.removeprefix("$ ").removesuffix(" &") for line in block[1].splitlines()]


def test_the_package_is_the_one_that_tests_install() -> None:
    install, *_ = _commands()
    assert install.startswith("apt-get install ")
    assert install.endswith(" prometheus")
    assert "apt-get install -y --no-install-recommends prometheus" in (ROOT / "Makefile").read_text()


@contextmanager
def _started(command: list[str], folder: Path, log: Path) -> Iterator[None]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file, env=environment)
    try:
        yield
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.skipif(PROMETHEUS is None, reason=WHY_NOT)
def test_prometheus_sees_the_job_with_nothing_but_these_commands(tmp_path: Path) -> None:
    _, run, watch = _commands()
    write_job(tmp_path, samples=20)
    shutil.copytree(ROOT / "monitoring" / "prometheus", tmp_path / "monitoring" / "prometheus")
    config = tmp_path / "monitoring" / "prometheus" / "prometheus.yml"
    with reserved_host() as asked, reserved_host() as shown:
        for ours, here in zip(OURS, (asked, shown), strict=True):
            run, watch = run.replace(ours, here), watch.replace(ours, here)
            config.write_text(config.read_text().replace(ours, here))
        loader_server, *arguments = shlex.split(run)
        assert loader_server == "loader-server"
        log = tmp_path / "prometheus.log"
        with (
            _started([sys.executable, "-m", "loader_server", *arguments], tmp_path, tmp_path / "run.log"),
            _started(shlex.split(watch), tmp_path, log),
        ):
            prometheus = Prometheus(log)
            wait_until(prometheus.is_ready, "Prometheus is ready", 60)
            wait_until(
                lambda: prometheus.values('up{job="tones", role="coordinator"}') == [1], "the coordinator is seen", 60
            )
            wait_until(lambda: prometheus.values('up{job="tones", role="worker"} == 1'), "workers are seen", 60)
            wait_until(lambda: prometheus.ask("rules")["groups"], "rules and alerts were found", 60)
            assert (tmp_path / "metrics" / "wal").is_dir(), "not where Debian's own service keeps its data"
