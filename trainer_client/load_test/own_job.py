"""Loaders of the load test itself: `loader-server run` on a synthetic job in a temporary folder.

Rules: the loaders are another program, started by its command and known by what it prints; none of their code is
imported here. Folder and processes are gone when this is closed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import StokerError
from shared.extras import how_to_get

if TYPE_CHECKING:
    from trainer_client.load_test.interrupts import Interrupts

__all__ = ["JobError", "OwnJob"]

#: Batches of about 64 rows of 50 tokens, 19 400 an epoch.
_JOB = """
[job]
name = "load-test"
seed = {seed}
listen = "tcp://127.0.0.1:*"

[streams.train]
source = "synthetic"
samples = 1_000_000
length = "tokens"
budget = "3200 tokens"
shapes = 8
"""

_SERVED = re.compile(rb"is served at (\S+)")
_READY_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 15.0


class JobError(StokerError):
    """The loaders of the test did not start."""


class OwnJob:
    """Running job, until `close`; trainers connect to `endpoint`."""

    def __init__(self, *, seed: int, workers: int, interrupts: Interrupts) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stoker-load-test-"))
        self._process: subprocess.Popen[bytes] | None = None
        try:
            path = self.folder / "job.toml"
            path.write_text(_JOB.format(seed=seed), "utf-8")
            command = [sys.executable, "-m", "loader_server", "run", str(path), "--workers", str(workers)]
            with (self.folder / "loaders.log").open("wb") as log:
                # In a session of its own: a terminal's Ctrl-C would otherwise end the loaders before `close` does.
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
                )
            self.endpoint = self._wait_until_served(interrupts)
        except BaseException:  # re-raised, an interrupt too: nobody else knows the folder and the process yet
            self.close()
            raise

    def _wait_until_served(self, interrupts: Interrupts) -> str:
        """Return the endpoint that the loaders print; raise JobError if they end first, or take too long."""
        assert self._process is not None
        assert self._process.stdout is not None
        pipe, output, until_s = self._process.stdout.fileno(), b"", time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < until_s:
            ready = interrupts.wait([pipe], until_s - time.monotonic())
            received = os.read(pipe, 4096) if ready else b""
            output += received
            served = _SERVED.search(output)
            if served:
                return served[1].decode()
            if ready and not received:  # the end of their output: they have ended
                break
        raise JobError(
            expected="loaders that serve a synthetic job",
            got=self._last_words() or f"silence for {_READY_TIMEOUT_S:g} s",
            where="loader-server run, started by the load test",
            remedy=how_to_get("loader", "or name running loaders with --feed"),
        )

    def _last_words(self) -> str:
        lines = (self.folder / "loaders.log").read_text("utf-8", "replace").strip().splitlines()
        return " / ".join(lines[-3:])

    def cpu_s(self) -> float:
        """Return the processor time of all its processes so far."""
        assert self._process is not None
        return sum(_cpu_s(pid) for pid in (self._process.pid, *_children(self._process.pid)))

    def close(self) -> None:
        """End the loaders and remove the folder."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # its children end with it
                self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    """Return the ids of a process's children and their children; none if it has ended."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]
    except OSError:
        return []
    return [descendant for child in children for descendant in (child, *_children(child))]


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process; 0 if it has ended."""
    try:
        # From the last bracket on, because a program's name may have spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
