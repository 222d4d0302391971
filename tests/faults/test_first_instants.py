"""SIGTERM in the first instants of a command that is PID 1, as a container's program is."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import trainer_client
from tests.support.loaders import ROOT, wait_until, write_job
from tests.support.namespaces import why_no_namespaces

if TYPE_CHECKING:
    from collections.abc import Iterator

#: After the handler is there, how long a signal waits: while modules are imported, processes forked, the job served.
_INSTANTS_S = [round(0.08 * count, 2) for count in range(30)]

#: The same after tini has started its child, the longest first: so a trainer is there when the others come.
_INSTANTS_BELOW_TINI_S = (2.4, 1.6, 1.0, 0.6, 0.4, 0.25, 0.15, 0.08, 0.03, 0.0)

#: What `loader-server run` may take to end: its workers' drain and one and a half seconds.
_MOST_S = 5.0 + 1.5


def _start_as_pid_1(
    *words: str, log: Path, init: tuple[str, ...] = ()
) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """Start a module of ours as the first process of a PID namespace, or below `init` as the first.

    Return what started it, and the first process.
    """
    namespace = ("--pid", "--fork", "--kill-child", "--mount-proc")
    reason = why_no_namespaces(*namespace) or next((f"no {one}" for one in init[:1] if shutil.which(one) is None), "")
    if reason:
        pytest.skip(reason)
    with log.open("ab") as said:
        outside = subprocess.Popen(
            ["unshare", *namespace, *init, sys.executable, "-m", *words], cwd=ROOT, stdout=said, stderr=said
        )
    wait_until(lambda: psutil.Process(outside.pid).children() or outside.poll() is not None, "it is started")
    assert outside.poll() is None, log.read_text()
    (inside,) = psutil.Process(outside.pid).children()
    return outside, inside


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def _indexed_job(folder: Path, endpoint: str) -> Path:
    """Write a job that is served at an endpoint that a worker can be given before; return its file."""
    job = write_job(folder, budget="1 s")
    job.write_text(job.read_text().replace("tcp://127.0.0.1:*", endpoint))
    subprocess.run([sys.executable, "-m", "loader_server", "index", str(job)], cwd=ROOT, check=True, timeout=100)
    return job


def _heeds_sigterm(process: psutil.Process) -> bool:
    """Return whether the process has a handler for SIGTERM."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def _end(outside: subprocess.Popen[bytes], inside: psutil.Process, wait_s: float, log: Path) -> float:
    """Send SIGTERM after a while; return how long it took to end, which has to be in good order."""
    time.sleep(wait_s)  # an instant is what these tests are about
    began_s = time.monotonic()
    inside.send_signal(signal.SIGTERM)
    assert outside.wait(60) in (0, 143), log.read_text()
    assert "Traceback" not in log.read_text()
    return time.monotonic() - began_s


@pytest.mark.slow
@pytest.mark.fault(65)
@pytest.mark.parametrize(
    ("role", "wait_s"),
    [*(("run", wait_s) for wait_s in _INSTANTS_S), *product(("coordinator", "worker"), (0.0, 0.1, 0.3, 0.8, 2.0))],
)
def test_as_pid_1_loaders_end_in_time_whenever_they_are_told_to(tmp_path: Path, role: str, wait_s: float) -> None:
    log = tmp_path / "log"
    job = write_job(tmp_path) if role == "run" else _indexed_job(tmp_path, f"tcp://127.0.0.1:{_free_port()}")
    outside, inside = _start_as_pid_1("loader_server", role, str(job), log=log)
    wait_until(lambda: _heeds_sigterm(inside), "it heeds SIGTERM")
    assert _end(outside, inside, wait_s, log) < _MOST_S


class _Trainer:
    """A trainer that reads epoch after epoch until it is told to stop; `read` has each batch's epoch and number."""

    def __init__(self, endpoint: str) -> None:
        self.read = list[tuple[int, int]]()
        self._endpoint = endpoint
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._done = self._pool.submit(self._train)

    def _train(self) -> None:
        with trainer_client.connect(self._endpoint) as feed:
            while not self._stop.is_set():
                for batch in feed:
                    self.read.append((batch.epoch, batch.number))
                    time.sleep(0.02)  # its step

    def wait_for_more(self, batches: int) -> None:
        enough = len(self.read) + batches
        wait_until(lambda: len(self.read) >= enough or self._done.done(), "it trains on")

    def stop(self) -> None:
        """Let it end its epoch; all epochs are whole, or an error says what became of it."""
        self._stop.set()
        self._done.result(100)
        self._pool.shutdown()
        epochs, length = self.read[-1][0] + 1, self.read[-1][1] + 1
        assert self.read == [(epoch, number) for epoch in range(epochs) for number in range(length)]


@contextlib.contextmanager
def _started(log: Path, *words: str, init: tuple[str, ...] = ()) -> Iterator[None]:
    outside, inside = _start_as_pid_1("loader_server", *words, log=log, init=init)
    try:
        yield
    finally:
        inside.send_signal(signal.SIGTERM)
        outside.wait(60)


@pytest.mark.slow
@pytest.mark.fault(65)
@pytest.mark.parametrize(
    ("role", "others"), [("coordinator", ("worker",)), ("worker", ("coordinator", "worker")), ("run", ())]
)
def test_below_tini_they_end_in_time_at_any_instant_and_nothing_is_lost(
    tmp_path: Path, role: str, others: tuple[str, ...]
) -> None:
    endpoint = f"tcp://127.0.0.1:{_free_port()}"
    job = _indexed_job(tmp_path, endpoint)
    log, init = tmp_path / "log", ("tini", "--")
    trainer = _Trainer(endpoint)
    with contextlib.ExitStack() as stack:
        for other in others:
            stack.enter_context(_started(tmp_path / "others", other, str(job)))
        took_s = []
        for wait_s in _INSTANTS_BELOW_TINI_S:
            outside, inside = _start_as_pid_1("loader_server", role, str(job), log=log, init=init)
            wait_until(inside.children, "tini has started it")  # and has signals in its hands by then
            took_s.append(_end(outside, inside, wait_s, log))
        print(role, "took", " ".join(f"{one:.2f}" for one in took_s), "s to end")
        stack.enter_context(_started(log, role, str(job), init=init))
        trainer.wait_for_more(20)
        trainer.stop()
    assert max(took_s) < _MOST_S


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
