"""Processes of ours for tests, forked from one that has imported our code, as those of `loader-server run` are.

A new interpreter takes a third of a second of processor time to import it, and three seconds where it needs TensorFlow;
tests start hundreds of them. A forked one has its own folder, environment and path, and is used like a
`subprocess.Popen`. Where something is needed that an interpreter reads when it starts, or TensorFlow when it is
imported, a new one is started after all.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import setproctitle

from loader_server.index import pool
from loader_server.machine import asking, nursery
from shared.quick_import import quick_import
from tests.support.lean_graphs import forget_origins
from tests.support.lean_keras import lean_keras
from tests.support.stack_room import call_with_room

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

__all__ = [
    "ROOT",
    "ModuleProcess",
    "Nurseries",
    "TalkingProcess",
    "TrialNursery",
    "run_module",
    "start_code",
    "start_module",
    "start_talking",
]

ROOT = Path(__file__).resolve().parents[2]

#: Where a nursery's child has the descriptor that it was told to keep.
_KEPT = 3

#: What these name is read when an interpreter starts, or when numpy or TensorFlow is imported.
_READ_AT_START = ("GLIBC_", "LD_", "MALLOC_", "NPY_", "OMP_", "OPENBLAS_", "PYTHON", "CUDA_", "KERAS_", "TF_")

_READ_LATER = {"PYTHONPATH", "TF_CONFIG"}

_LOADERS = (
    *("loader_server.coordinator.service", "loader_server.worker.service", "numpy.ma"),
    *("loader_server.metrics.coordinator_metrics", "loader_server.metrics.worker_metrics"),
    *("loader_server.cli", "loader_server.commands.index", "loader_server.machine.supervisor"),
    # What each process of a job would import again that reads recordings, as most jobs of tests do.
    *(
        "loader_server.sources.manifest.source",
        "loader_server.commands.statistics",
        "loader_server.commands.serve_worker",
    ),
    *("loader_server.transforms.audio.logmel", "loader_server.transforms.characters", "tests.support.transforms"),
    *("loader_server.commands.machine_jobs", "loader_server.fleet.job_joining", "loader_server.machine.machine_probes"),
    *("loader_server.commands.plan_command", "loader_server.commands.status", "rich.progress", "rich.table"),
    # A trainer without TensorFlow imports as much again, when it connects.
    *("trainer_client.feed", "trainer_client.connecting", "trainer_client.cli", "trainer_client.verifying.command"),
    *("soundfile", "soxr", "numpy.fft", "stringprep", "zmq.utils.garbage", "shared.malloc_tuning"),
    *("encodings.idna", "encodings.ascii", "encodings.cp437", "encodings.utf_32_le", "encodings.utf_8_sig"),
    *("zmq.auth", "cryptography.hazmat.primitives.ciphers.aead"),
)
_TRAINERS = (
    *("keras", "trainer_client.tf.dataset", "trainer_client.training.train"),
    "trainer_client.training.checkpoints.feed_checkpoint",
    "trainer_client.training.loop.training_loop",
    "trainer_client.training.evaluating.validation",
    *("trainer_client.training.predicting.predict", "trainer_client.training.predicting.predictor"),
    "trainer_client.training.servers.served_loop",
    *(f"trainer_client.training.strategies.{name}" for name in ("asynchronous", "central", "mirrored", "multi_worker")),
    # What TensorFlow imports when a feed is made a dataset.
    *(f"tensorflow.python.data.ops.{name}_op" for name in ("flat_map", "from_generator", "from_tensors", "range")),
)


class _Nursery(asking.Asker):
    """In an interpreter of its own, because this one has threads; by a socket that it listens to."""

    def __init__(self, opened: socket.socket) -> None:
        super().__init__(opened, 0)
        opened.settimeout(None)  # importing TensorFlow, which the first request waits for, takes its time
        self._lock = threading.Lock()
        atexit.register(opened.close)

    def start(self, arguments: Sequence[str], *, keep: int) -> asking.Nursling:
        with self._lock:
            return super().start(arguments, keep=keep)


_CLOSE_S = 10.0


class Nurseries:
    """An interpreter without TensorFlow and one with it; both fork themselves for each process that runs tests."""

    def __init__(self, count: int) -> None:
        self._opened = {tensorflow: _open(count, tensorflow=tensorflow) for tensorflow in (False, True)}

    def adopt(self, number: int) -> None:
        """In a forked process: use those with this number, which nobody else does."""
        for tensorflow, (_, sockets) in self._opened.items():
            for other, opened in enumerate(sockets):
                if other == number:
                    _NURSERIES[tensorflow] = _Nursery(opened)
                else:
                    opened.close()

    def close(self) -> None:
        """End them."""
        for process, sockets in self._opened.values():
            for opened in sockets:
                opened.close()
            try:
                process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:  # what a test left behind holds a socket open
                process.kill()
                process.wait()


#: By whether TensorFlow is imported in them.
_NURSERIES: dict[bool, _Nursery] = {}


def _open(count: int, *, tensorflow: bool) -> tuple[subprocess.Popen[bytes], list[socket.socket]]:
    """Start the interpreter; it and the sockets that are listened to."""
    imported = ("tensorflow", *_LOADERS, *_TRAINERS) if tensorflow else _LOADERS
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
    theirs = [pair[1].fileno() for pair in pairs]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forked", ",".join(map(str, theirs)), *imported],
        cwd=ROOT,
        env={**_environment(tensorflow=tensorflow), "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        pass_fds=theirs,
    )
    for _, listened in pairs:
        listened.close()
    return process, [ours for ours, _ in pairs]


def _nursery(*, tensorflow: bool) -> _Nursery:
    if tensorflow not in _NURSERIES:
        process, [opened] = _open(1, tensorflow=tensorflow)
        _NURSERIES[tensorflow] = _Nursery(opened)
        atexit.register(process.wait)
        atexit.register(opened.close)  # the last one registered is called first
    return _NURSERIES[tensorflow]


def _environment(*, tensorflow: bool) -> dict[str, str]:
    """What processes are forked with that say nothing else."""
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"} if tensorflow else dict(os.environ)


class _ForkedProcess:
    """As much of a `subprocess.Popen` as tests use."""

    def __init__(self, command: Sequence[str], process: asking.Nursling) -> None:
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
    if not fork or not _may_be_forked(environment, _environment(tensorflow=tensorflow)):
        return _start_interpreter(command, folder, (log, errors), environment, ready)
    how = {"command": command, "folder": str(folder), "outputs": [str(log), str(errors)]}
    arguments = [json.dumps({**how, "environment": dict(environment), "ready": ready is not None})]
    process = _nursery(tensorflow=tensorflow).start(arguments, keep=0 if ready is None else ready)
    return _ForkedProcess(command, process)


class TalkingProcess(_ForkedProcess):
    """Has as much more of a `subprocess.Popen` with text in pipes as tests use."""

    def __init__(self, command: Sequence[str], *, folder: Path, tensorflow: bool) -> None:
        self._errors = tempfile.NamedTemporaryFile("r")  # noqa: SIM115 - closed at the end
        how = {"command": command, "folder": str(folder), "talks": True, "ready": False}
        how |= {"outputs": [os.devnull, self._errors.name], "environment": _environment(tensorflow=tensorflow)}
        self._socket, theirs = socket.socketpair()
        with theirs:
            process = _nursery(tensorflow=tensorflow).start([json.dumps(how)], keep=theirs.fileno())
        super().__init__(command, process)
        self.stdout, self.stdin = io.TextIOWrapper(io.BufferedReader(_Stdout(self._socket, "r"))), _Stdin(self._socket)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it says from now on, and on stderr from its beginning, once it has ended."""
        self.stdin.close()
        self._socket.settimeout(timeout)
        output = self.stdout.read()
        self.wait(timeout)
        errors = self._errors.read()
        self.__exit__()
        return output, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for stream in (self.stdin, self.stdout, self._socket, self._errors):
            stream.close()
        self.wait()


class _Stdout(socket.SocketIO):
    """What a process says."""

    def readinto(self, buffer: Any) -> int | None:
        try:
            return super().readinto(buffer)
        except ConnectionResetError:  # it was killed before it had read everything; what it said came before this
            return 0


class _Stdin:
    """What a process reads; closing it leaves open what it says."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened

    def write(self, text: str) -> None:
        self._socket.sendall(text.encode())

    def flush(self) -> None:
        """It is on its way already."""

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the process has ended
            self._socket.shutdown(socket.SHUT_WR)


def start_talking(module: str, *arguments: str, folder: Path = ROOT, tensorflow: bool = False) -> TalkingProcess:
    """Run a module as `python -m` would in this folder."""
    return TalkingProcess([module, *arguments], folder=folder, tensorflow=tensorflow)


def start_code(code: str, *arguments: str, folder: Path = ROOT, tensorflow: bool = False) -> TalkingProcess:
    """Run code as `python -c` would in this folder."""
    return TalkingProcess(["-c", code, *arguments], folder=folder, tensorflow=tensorflow)


def run_module(module: str, *arguments: str, timeout_s: float = 200.0) -> tuple[int, str, str]:
    """Run a module as `python -m` would in the project's folder: exit code, output and errors."""
    with start_talking(module, *arguments) as process:
        try:
            output, errors = process.communicate(timeout_s)
        finally:
            process.kill()
    assert process.returncode is not None
    return process.returncode, output, errors


_TRIALS = """
import os, sys
from loader_server.building.crash_trial import serve_trials
serve_trials([*sys.argv[1:4], str(os.getppid()), *sys.argv[5:]])
"""


class TrialNursery(asking.Asker):
    """Where a worker in this process, which has threads, has its trials forked; children run this code."""

    def __init__(self, code: str = _TRIALS) -> None:
        self.pid, self._code = 0, code

    def start(self, arguments: Sequence[str], *, keep: int) -> asking.Nursling:
        how = {"command": ["-c", self._code, *arguments], "folder": str(ROOT), "outputs": [os.devnull] * 2}
        how |= {"environment": dict(os.environ), "ready": True}
        return _nursery(tensorflow=False).start([json.dumps(how)], keep=keep)


def _may_be_forked(environment: Mapping[str, str], forked_with: Mapping[str, str]) -> bool:
    names = {name for name in {*environment, *forked_with} if name.startswith(_READ_AT_START)} - _READ_LATER
    return all(environment.get(name) == forked_with.get(name) for name in names)


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
    if how.get("talks"):
        for fd in (0, 1):
            os.dup2(_KEPT, fd)
        os.close(_KEPT)
    os.chdir(how["folder"])
    os.environ.clear()
    os.environ.update(how["environment"])
    sys.path.insert(0, how["folder"])
    if Path("sitecustomize.py").exists():  # which an interpreter imports as it starts
        sys.modules.pop("sitecustomize", None)
        import_module("sitecustomize")
    if "tensorflow" in sys.modules:  # where what reads a user's pipeline would be an interpreter that imports it anew
        pool.get_context = lambda _: get_context("fork")
    module, *words = how["command"]
    code = words.pop(0) if module == "-c" else None
    sys.argv = [module, *words, *(arguments[1:] if how["ready"] else ())]
    setproctitle.setproctitle(" ".join([sys.executable, "-m", *sys.argv]))
    try:
        if code is not None:
            call_with_room(lambda: exec(code, {"__name__": "__main__"}))
        else:
            call_with_room(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))
    finally:  # as the interpreter does, which a fork leaves otherwise
        threading._shutdown()
        atexit._run_exitfuncs()


def _main(listened: Sequence[int], imported: Sequence[str]) -> None:
    """Import these once somebody asks; then listen to each of these sockets, in a process of its own."""
    if not _is_asked(listened):
        return
    with quick_import(), lean_keras():
        for name in imported:
            import_module(name)
    if "tensorflow" in imported:
        forget_origins()
    gc.freeze()  # so that collecting garbage does not write to pages that all share
    siblings = [_fork_sibling(fd, listened) for fd in listened[1:]]
    for fd in listened[1:]:
        os.close(fd)
    nursery._serve(socket.socket(fileno=listened[0]), _run, os.getppid())
    for pid in siblings:
        os.waitpid(pid, 0)


def _is_asked(listened: Sequence[int]) -> bool:
    """Wait until something comes by a socket; False if all hang up."""
    ready = select.select(listened, [], [])[0]
    return any(socket.socket(fileno=os.dup(fd)).recv(1, socket.MSG_PEEK) for fd in ready)


def _fork_sibling(listened: int, all_listened: Sequence[int]) -> int:
    owner = os.getpid()
    pid = os.fork()
    if not pid:
        for fd in all_listened:
            if fd != listened:
                os.close(fd)
        nursery._become(lambda: nursery._serve(socket.socket(fileno=listened), _run, owner))
    return pid


if __name__ == "__main__":
    _main([int(fd) for fd in sys.argv[1].split(",")], sys.argv[2:])
