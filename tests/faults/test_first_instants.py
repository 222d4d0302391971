"""SIGTERM in the first instants of a command that is PID 1, as a container's program is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.loaders import ROOT, wait_until, write_job

#: After the handler is there, how long a signal waits: while modules are imported, processes forked, the job served.
_INSTANTS_S = [round(0.08 * count, 2) for count in range(30)]

#: What `loader-server run` may take to end: its workers' drain and one and a half seconds.
_MOST_S = 5.0 + 1.5


def _start_as_pid_1(*words: str, log: Path) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """Start a module of ours as the first process of a PID namespace; what started it, and the process."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a PID namespace needs root and util-linux")
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m", *words]
    with log.open("wb") as said:
        outside = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
    wait_until(lambda: psutil.Process(outside.pid).children() or outside.poll() is not None, "it is started")
    assert outside.poll() is None, log.read_text()
    (inside,) = psutil.Process(outside.pid).children()
    return outside, inside


def _heeds_sigterm(process: psutil.Process) -> bool:
    """Return whether the process has a handler for SIGTERM."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


@pytest.mark.slow
@pytest.mark.fault(65)
@pytest.mark.parametrize("wait_s", _INSTANTS_S)
def test_as_pid_1_loaders_end_in_time_whenever_they_are_told_to(tmp_path: Path, wait_s: float) -> None:
    job = write_job(tmp_path)
    log = tmp_path / "log"
    outside, inside = _start_as_pid_1("loader_server", "run", str(job), log=log)
    wait_until(lambda: _heeds_sigterm(inside), "it heeds SIGTERM")
    time.sleep(wait_s)  # an instant is what this test is about
    began_s = time.monotonic()
    inside.send_signal(signal.SIGTERM)
    assert outside.wait(60) in (0, 143), log.read_text()
    assert time.monotonic() - began_s < _MOST_S
    assert "Traceback" not in log.read_text()


@pytest.mark.fault(65)
@pytest.mark.parametrize("package", ["loader_server", "trainer_client"])
def test_every_command_heeds_sigterm_before_it_imports_numpy(package: str) -> None:
    code = (
        "import signal, sys\n"
        "sys.argv = ['command', '--help']\n"
        f"import {package}.__main__ as program\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        slow = name.partition('.')[0] in ('numpy', 'zmq', 'argparse', 'tensorflow')\n"
        "        if slow and not callable(signal.getsignal(signal.SIGTERM)):\n"
        "            raise SystemExit(f'{name} came before the handler')\n"
        "sys.meta_path.insert(0, Finder())\n"
        "program.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
