"""What a scene is played on: a job's folder, its processes, and a real Prometheus that watches them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.support.forked import ROOT
from tests.support.loaders import Loaders, wait_until
from tests.support.monitoring import watching
from tests.support.slowed.delays import FILE, write_delays

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from typing_extensions import Self

__all__ = ["JOB", "Stage"]

#: The job of all scenes, whose samples take only time, no CPU.
JOB = """
[job]
name = "recorded"
seed = 7
listen = "tcp://127.0.0.1:*"

[streams.train]
transforms = ["tests.support.slowed.parts:takes_time"]
length = "features"
budget = "100 steps"
max_rows = 4
source = "tests.support.slowed.parts:SlowlyRead"
samples = {samples}
kind = "features"
median_length = 25
spread = 0.0
bands = 80
{stream}
"""

_PATIENCE_S = 900.0


class Stage:
    """Processes and what is known of them; ends all of them with its block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = folder / "job.toml"
        self.targets = folder / ".stoker" / "recorded" / "targets"
        #: When the trouble began, and when each alert was first seen firing, in seconds of this computer's clock.
        self.began_s: float | None = None
        self.fired_s: dict[str, float] = {}
        self._delays = folder / "delays.json"
        self._delayed: dict[str, float] = {}
        self._stack = contextlib.ExitStack()
        self.started_s = 0.0

    def __enter__(self) -> Self:
        self.targets.mkdir(parents=True)
        self.delay()
        os.environ[FILE] = str(self._delays)
        self.prometheus = self._stack.enter_context(watching(self.targets, self.folder, every="5s"))
        self.started_s = time.time()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    # --- processes ---

    def write_job(self, *, samples: int = 20000, stream: str = "") -> Path:
        """Write the job of slow samples, with this more of its stream."""
        self.job.write_text(JOB.format(samples=samples, stream=stream))
        return self.job

    def run(self, workers: int) -> Loaders:
        """Start `loader-server run`."""
        loaders = Loaders(self.job, workers=workers)
        self._stack.callback(loaders.close)
        return loaders

    def join(self, name: str, endpoint: str, *odd: str) -> subprocess.Popen[bytes]:
        """Start one more worker."""
        module = ("tests.support.odd_worker", *odd) if odd else ("loader_server",)
        return self.start(*module, "worker", str(self.job), "--name", name, "--coordinator", endpoint)

    def train(self, endpoint: str, how: str = "lockstep", **options: Any) -> subprocess.Popen[bytes]:
        """Start a trainer of tests.monitoring.recording.trainer."""
        return self.start("tests.monitoring.recording.trainer", endpoint, str(self.targets), json.dumps(options), how)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a module as a process that ends with the stage."""
        log = (self.folder / "processes.log").open("ab")
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{self.folder}", "TF_CPP_MIN_LOG_LEVEL": "3"}
        process = subprocess.Popen(
            [sys.executable, "-m", *command], stdout=log, stderr=log, cwd=self.folder, env=environment
        )
        log.close()
        self._stack.callback(_end, process)
        return process

    def on_end(self, ends: contextlib.AbstractContextManager[Any]) -> Any:
        """Enter a block that ends with the stage."""
        return self._stack.enter_context(ends)

    # --- what happens ---

    def delay(self, **delays: float) -> None:
        """Change these delays; the others stay."""
        self.delay_all(delays)

    def delay_all(self, delays: Mapping[str, float]) -> None:
        """Change delays whose names are no Python names, such as that of one process."""
        self._delayed |= delays
        write_delays(self._delays, self._delayed)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def begin(self) -> None:
        """Note that the trouble begins now."""
        self.began_s = time.time()

    def wait_for(self, alert: str, severity: str = "warning", *, within_s: float = _PATIENCE_S) -> None:
        """Wait until this alert fires."""
        wait_until(lambda: self._fires(alert, severity), f"{alert} ({severity}) fires", within_s)
        self.fired_s[f"{alert} {severity}"] = time.time()
        self.wait(20)

    def wait_for_end_of(self, alert: str, severity: str = "warning", *, within_s: float = _PATIENCE_S) -> None:
        """Wait until this alert is over."""
        wait_until(lambda: not self._fires(alert, severity), f"{alert} ({severity}) is over", within_s)
        self.wait(20)

    def _fires(self, alert: str, severity: str) -> bool:
        time.sleep(1.0)
        found = self.prometheus.ask(
            "query", query=f'ALERTS{{alertname="{alert}", severity="{severity}", alertstate="firing"}}'
        )
        return bool(found["result"])


def _end(process: subprocess.Popen[bytes]) -> None:
    for order in (signal.SIGCONT, signal.SIGTERM):
        process.send_signal(order)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
