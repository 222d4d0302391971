"""A slowed job in real processes: loaders, trainers, and the trouble that begins and ends while they run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from loader_server.commands.status import with_limit
from tests.support.corpora import make_corpus
from tests.support.loaders import ask, running
from tests.support.slowed.delays import FILE, Delays, write_delays
from tests.support.slowed.parts import BANDS, STEPS
from tests.support.slowed.situations import WIRE_BITS_S
from tests.support.slowed.trainers import TrainerSettings, slowed_trainers
from tests.support.stores import StoreProxy, plain_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.loaders import Loaders
    from tests.support.slowed.situations import Setup
    from tests.support.slowed.trainers import SlowedTrainers

__all__ = ["SlowedJob", "job_text", "slowed_job"]

_JOB = """
[job]
name = "slowed"
seed = 7
listen = "tcp://127.0.0.1:*"
remote_cache_bytes = "1 MiB"

[streams.train]
transforms = {transforms}
length = "{length}"
budget = "{budget}"
max_rows = {rows}
{source}
"""

_SOURCES = {
    "SlowlyRead": f"""
source = "tests.support.slowed.parts:SlowlyRead"
samples = 20000
kind = "features"
median_length = {STEPS}
spread = 0.0
bands = {BANDS}
""",
    "Features": """
source = "tests.support.slowed.parts:Features"
[streams.train.arguments]
samples = 20000
""",
    "store": """
source = "manifest"
paths = ["{manifest}"]
[streams.train.logmel]
rate = 8000
bands = 40
""",
}

_TRANSFORM = "tests.support.slowed.parts:takes_time"
_CLIPS = 600

#: Of each cycle a stopped worker runs for the rest.
_CYCLE_S, _STOPPED = 0.5, 0.8


class SlowedJob:
    """A running job whose trouble can begin and end."""

    def __init__(self, setup: Setup, delays: Path, loaders: Loaders, trainers: SlowedTrainers) -> None:
        self.setup = setup
        self.trainers = trainers
        self.loaders = loaders
        self._delays = delays
        self._end = contextlib.ExitStack()

    def look(self) -> dict[str, Any]:
        """Return what limits the job, as its status reports it."""
        return dict(with_limit(ask(self.loaders.endpoint))["limit"])

    def has_right_limit(self, limit: dict[str, Any]) -> bool:
        """Return whether this is what limits the job during the trouble, and the right process is named."""
        return limit["limit"] in self.setup.right and (not self.setup.names or self._slow_name() in limit["who"])

    def _slow_name(self) -> str:
        if self.setup.names == "rank":
            return f"{os.uname().nodename}:{self.trainers.processes[-1].pid}"
        command = " ".join(self._slow_worker().cmdline()).split()
        return command[command.index("--name") + 1]

    def _slow_worker(self) -> Any:
        return self.loaders.workers()[-1]

    def begin(self) -> None:
        """Begin the trouble."""
        write_delays(self._delays, _delays(self.setup, during=True))
        match self.setup.trouble:
            case "wire":
                _tc("add", "tbf", "rate", f"{WIRE_BITS_S:.0f}bit", "burst", "64kb", "latency", "100ms")
                self._end.callback(_tc, "del")
            case "host":
                for _ in range(2 * (os.cpu_count() or 1)):
                    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                    self._end.callback(burner.wait, 20)
                    self._end.callback(burner.kill)
            case "worker":
                build_s = _delays(self.setup, during=True)["transform_s"]
                slow = {f"transform_s:{self._slow_worker().pid}": 4 * build_s}
                write_delays(self._delays, _delays(self.setup, during=True) | slow)
            case "stopped":
                self._end.enter_context(_stopped(self._slow_worker().pid))

    def end(self) -> None:
        """End the trouble."""
        write_delays(self._delays, _delays(self.setup, during=False))
        self._end.close()


def _delays(setup: Setup, *, during: bool) -> dict[str, float]:
    """Return the delays as the file has them: those of workers are for a sample each."""
    steps = {f"rank-{rank}-step_s": setup.step_s for rank in range(setup.ranks)}
    of_batches = {**setup.before, **(setup.during if during else {})}
    whole = ("rank-", "pause")
    return steps | {name: delay if name.startswith(whole) else delay / setup.rows for name, delay in of_batches.items()}


def _tc(action: str, *how: str) -> None:
    """Change what the loopback of this namespace carries."""
    command = ["tc", "qdisc", action, "dev", "lo", "root", *how]
    subprocess.run(command, check=True, capture_output=True, timeout=20)


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """A process that is stopped most of the time."""
    over = threading.Event()

    def stop_and_go() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(_STOPPED * _CYCLE_S)
            os.kill(pid, signal.SIGCONT)
            over.wait((1 - _STOPPED) * _CYCLE_S)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(20)


@contextmanager
def slowed_job(folder: Path, setup: Setup) -> Iterator[SlowedJob]:
    """The job for the length of a block, without its trouble yet."""
    delays = folder / "delays.json"
    write_delays(delays, {})
    with contextlib.ExitStack() as stack:
        job = folder / "job.toml"
        job.write_text(job_text(folder, setup, delays, stack))
        os.environ[FILE] = str(delays)
        loaders = stack.enter_context(running(job, workers=setup.workers))
        write_delays(delays, _delays(setup, during=False))
        settings = TrainerSettings(
            endpoint=loaders.endpoint,
            delays=delays,
            ranks=setup.ranks,
            prefetch=setup.prefetch,
            prefetch_bytes=setup.prefetch_bytes,
            in_slots=setup.in_slots,
            tells=setup.tells,
        )
        trainers = stack.enter_context(slowed_trainers(settings, collective=setup.collective))
        slowed = SlowedJob(setup, delays, loaders, trainers)
        stack.callback(slowed.end)
        yield slowed


def job_text(folder: Path, setup: Setup, delays: Path, stack: contextlib.ExitStack) -> str:
    """Return the job file; a store that it needs is there until the stack is closed."""
    if setup.source != "store":
        source, budget = _SOURCES[setup.source], f"{STEPS * setup.rows} steps"
        return _JOB.format(transforms=[_TRANSFORM], length="features", budget=budget, rows=setup.rows, source=source)
    manifest = make_corpus(folder, samples=_CLIPS)
    store = stack.enter_context(StoreProxy(stack.enter_context(plain_server(folder, ranges=True))))
    delayed = Delays(delays)

    def delay(method: str, _path: str) -> None:
        if method == "GET":
            time.sleep(delayed.get_s("store_s"))

    store.fault = delay
    source = _SOURCES["store"].format(manifest=f"{store.url}/{manifest.name}")
    transforms, budget = [_TRANSFORM, "logmel"], f"{setup.rows} s"
    return _JOB.format(transforms=transforms, length="audio", budget=budget, rows=setup.rows, source=source)
