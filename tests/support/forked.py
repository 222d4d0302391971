"""Processes of ours for tests, forked from one that has imported our code, as those of `loader-server run` are.

A new interpreter takes a third of a second of processor time to import it, and three seconds where it needs TensorFlow;
tests start hundreds of them. A forked one has its own folder, environment and path, and is used like a
`subprocess.Popen`. Where something is asked for that an interpreter reads when it starts, or TensorFlow when it is
imported, a new one is started after all.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import setproctitle

from loader_server.machine import nursery
from shared.quick_import import quick_import
from tests.support.lean_keras import lean_keras

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ROOT", "ModuleProcess", "start_module"]

ROOT = Path(__file__).resolve().parents[2]

#: What these name is read when an interpreter starts, or when numpy or TensorFlow is imported.
_READ_AT_START = ("GLIBC_", "LD_", "MALLOC_", "NPY_", "OMP_", "OPENBLAS_", "PYTHON", "CUDA_", "KERAS_", "TF_")

_LOADERS = (
    *("loader_server.coordinator.service", "loader_server.worker.service", "loader_server.metrics", "numpy.ma"),
    *("loader_server.cli", "loader_server.commands.index", "loader_server.machine.supervisor"),
)
_TRAINERS = ("keras", "trainer_client.cli", "trainer_client.callbacks", "trainer_client.tf.dataset")


class _Nursery(nursery.Nursery):
    """In an interpreter of its own, because this one has threads."""

    def __init__(self, imported: Sequence[str], environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forked", str(theirs.fileno()), *imported],
                cwd=ROOT,
                env={**environment, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self.pid = self._process.pid
        atexit.register(self.close)

    def start(self, arguments: Sequence[str], *, keep: int) -> nursery.Nursling:
        with self._lock:
            return super().start(arguments, keep=keep)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _nursery(*, tensorflow: bool) -> _Nursery:
    imported = ("tensorflow", *_LOADERS, *_TRAINERS) if tensorflow else _LOADERS
    return _Nursery(imported, _environment(tensorflow=tensorflow))


def _environment(*, tensorflow: bool) -> dict[str, str]:
    """What processes are forked with that say nothing else."""
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"} if tensorflow else dict(os.environ)


class _ForkedProcess:
    """As much of a `subprocess.Popen` as tests use."""

    def __init__(self, command: Sequence[str], process: nursery.Nursling) -> None:
        self.args = command
        self.returncode: int | None = None
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        """How it ended, if it has."""
        if self.returncode is None:
            self.returncode = self._process.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """How it ended, once it has."""
        if self.returncode is None:
            self.returncode = self._process.wait(timeout)
        if self.returncode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.poll() is None:
            self._process.send_signal(number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it by force."""
        self.send_signal(signal.SIGKILL)


ModuleProcess: TypeAlias = "_ForkedProcess | subprocess.Popen[bytes]"


def start_module(
    command: Sequence[str],
    *,
    folder: Path,
    log: Path,
    environment: Mapping[str, str],
    ready: int | None = None,
    errors: Path | None = None,
    tensorflow: bool = False,
    fork: bool = True,
) -> ModuleProcess:
    """Run a module with these arguments, as `python -m` would in this folder; `ready` is a pipe that it gets as
    `--ready-fd`. What it says on stderr goes to the log as well, or to `errors`.
    """
    errors = log if errors is None else errors
    if not fork or not _may_be_forked(folder, environment, _environment(tensorflow=tensorflow)):
        return _start_interpreter(command, folder, (log, errors), environment, ready)
    how = {"command": command, "folder": str(folder), "outputs": [str(log), str(errors)]}
    arguments = [json.dumps({**how, "environment": dict(environment), "ready": ready is not None})]
    process = _nursery(tensorflow=tensorflow).start(arguments, keep=0 if ready is None else ready)
    return _ForkedProcess(command, process)


def _may_be_forked(folder: Path, environment: Mapping[str, str], forked_with: Mapping[str, str]) -> bool:
    names = {name for name in {*environment, *forked_with} if name.startswith(_READ_AT_START)} - {"PYTHONPATH"}
    same = all(environment.get(name) == forked_with.get(name) for name in names)
    return same and not (folder / "sitecustomize.py").exists()


def _start_interpreter(
    command: Sequence[str], folder: Path, outputs: tuple[Path, Path], environment: Mapping[str, str], ready: int | None
) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", *command, *(() if ready is None else ("--ready-fd", str(ready)))]
    fds = () if ready is None else (ready,)
    with outputs[0].open("ab") as out, outputs[1].open("ab") as errors:
        return subprocess.Popen(words, stdout=out, stderr=errors, env=environment, cwd=folder, pass_fds=fds)


# --- the nursery's side ---


def _run(arguments: Sequence[str]) -> None:
    """Be what `python -m` starts."""
    how = json.loads(arguments[0])
    for fd, path in enumerate(how["outputs"], 1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(opened, fd)
        os.close(opened)
    os.chdir(how["folder"])
    os.environ.clear()
    os.environ.update(how["environment"])
    sys.path.insert(0, how["folder"])
    module, *words = how["command"]
    sys.argv = [module, *words, *(arguments[1:] if how["ready"] else ())]
    setproctitle.setproctitle(" ".join([sys.executable, "-m", *sys.argv]))
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:  # as the interpreter does, which a fork leaves otherwise
        threading._shutdown()
        atexit._run_exitfuncs()


if __name__ == "__main__":
    with quick_import(), lean_keras():
        for name in sys.argv[2:]:
            import_module(name)
    gc.freeze()  # so that collecting garbage does not write to pages that all share
    nursery._serve(socket.socket(fileno=int(sys.argv[1])), _run, os.getppid())
