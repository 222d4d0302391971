"""A batch that killed a worker is first tried in a child process, sample by sample, to find the one that kills.

The child opens the job, says that it is ready, and from then on has one sample at a time in hand: it decodes and
transforms it, throws away the result and answers. The bytes come from the worker, so the child reads nothing.

Rules: a sample is convicted only if two children that had said that they were ready ended with it in hand, and if it
can be the cause: a crash, an exit that nobody asked for, or our own kill at the deadline. Anything else (no child
starts, the index on disk has been replaced, somebody killed the child) is a failure of the machine: it convicts
nothing, and ends the trial with a MachineError. Used in the building thread only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader_server.building.builder import values_of
from loader_server.job_file import JobFile
from loader_server.machine.processes import end_with_parent, how_it_ended
from loader_server.stream import Stream
from loader_server.transforms.blame import told
from shared.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["Conviction", "CrashTrial", "judged"]

#: Signals that a process causes by its own fault.
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE))

#: A start takes a second; this is for a machine that is busy.
_READY_TIMEOUT_S = 60.0

#: After the whole process was stopped everything looks late, though an answer may be there at once.
_LAST_MOMENT_S = 0.5

_PASSED = b"passed\n"


@dataclass(frozen=True, slots=True)
class Conviction:
    """A sample that kills, and how the children that had it in hand ended."""

    sample: int
    identity: str
    ends: str


def judged(returncode: int) -> tuple[str, bool]:
    """How a child that we did not kill ended, in a few words, and whether the sample in hand can be the cause."""
    return how_it_ended(returncode), returncode >= 0 or -returncode in _CRASHES


class _TrialProcess:
    """One child process, trying samples of one stream."""

    def __init__(self, job_path: Path, stream: str) -> None:
        self.stream = stream
        self._bytes = os.memfd_create("stoker-sample")
        try:
            command = [sys.executable, "-m", "loader_server.building.crash_trial", str(job_path), stream]
            self._process = subprocess.Popen(
                [*command, str(os.getpid()), str(self._bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=[self._bytes],
            )
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            os.close(self._bytes)
            raise

    def hand(self, epoch: int, sample: int, raw: bytes) -> None:
        """Give it a sample; if the child is gone, waiting for its answer will show that."""
        os.ftruncate(self._bytes, len(raw))
        os.pwrite(self._bytes, raw, 0)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{epoch} {sample}\n".encode())
            self._process.stdin.flush()

    def wait_for_answer(self, timeout_s: float) -> bytes | None:
        """What it says; b"" if it ended, None if it did neither in time."""
        assert self._process.stdout is not None
        answers = self._process.stdout.fileno()
        poller = select.poll()
        # Watch for its end too, because a process that a transform left behind may hold the pipe open.
        poller.register(answers, select.POLLIN)
        poller.register(self._pidfd, select.POLLIN)
        ready = dict(poller.poll(1000 * timeout_s) or poller.poll(1000 * _LAST_MOMENT_S))
        if not ready:
            return None
        return os.read(answers, 2**16) if ready.get(answers, 0) & select.POLLIN else b""

    def end(self, patience_s: float = 0.0) -> int:
        """End it, by force if it does not end by itself in time; returns its return code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        code = self._process.wait()
        os.close(self._pidfd)
        os.close(self._bytes)
        return code


class CrashTrial:
    """The worker's side; a child starts with the first sample, and lives until a sample kills it or until `close`."""

    def __init__(self, job_path: Path, timeout_s: float) -> None:
        self._job_path = job_path
        self._timeout_s = timeout_s
        self._child: _TrialProcess | None = None

    def try_samples(self, stream: Stream, epoch: int, samples: Iterable[tuple[int, bytes]]) -> Iterator[Conviction]:
        """Try samples one by one; yields each that twice ended the process decoding it, as soon as it is found."""
        for sample, raw in samples:
            ends: list[str] = []
            while len(ends) < 2 and (end := self._try(stream, epoch, sample, raw, ends)):
                ends.append(end)
            if len(ends) == 2:
                yield Conviction(sample, stream.identity(sample), ", ".join(ends))

    def _try(self, stream: Stream, epoch: int, sample: int, raw: bytes, before: list[str]) -> str:
        """How a child with this sample in hand ended; empty if it survived."""
        child = self._get_ready_child(stream, sample)
        child.hand(epoch, sample, raw)
        answer = child.wait_for_answer(self._timeout_s)
        if answer == _PASSED:
            return ""
        self._child = None
        if answer is None:
            child.end()
            return f"no end in {self._timeout_s:g} s"
        end, convicts = judged(child.end(self._timeout_s))  # it may have closed its answers long before it ends
        if not convicts:
            raise _failed(stream, sample, f"{', '.join([*before, end])}, which came from outside")
        return end

    def _get_ready_child(self, stream: Stream, sample: int) -> _TrialProcess:
        """A child that has opened the same job, index and transforms as this worker."""
        if self._child is not None and self._child.stream != stream.name:
            self.close()
        if self._child is None:
            try:
                child = _TrialProcess(self._job_path, stream.name)
            except OSError as error:
                raise _failed(stream, sample, f"no child that starts: {told(error)}") from error
            said = child.wait_for_answer(_READY_TIMEOUT_S)
            problem = _unready(said, stream)
            if problem:
                end = child.end(_LAST_MOMENT_S)
                raise _failed(stream, sample, problem if said else f"{problem}: {how_it_ended(end)}")
            self._child = child
        return self._child

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            child, self._child = self._child, None
            child.end()


def _unready(said: bytes | None, stream: Stream) -> str:
    """Why a child cannot try anything; empty if it can."""
    if not said:
        return "a child that was not ready in time" if said is None else "a child that ended before it was ready"
    words: dict[str, str] = json.loads(said)
    if "error" in words:
        return f"a child that could not open the job: {words['error']}"
    return "" if words["opened"] == stream.opened else "an index or transforms that have changed on disk since"


def _failed(stream: Stream, sample: int, got: str) -> MachineError:
    return MachineError(
        expected="child processes to try the samples of a batch that killed a worker",
        got=f"{stream.source.name(sample)} in hand: {got}",
        where=f"stream {stream.name} on {os.uname().nodename}",
        remedy="Look at memory, data and index on that machine: no sample was judged.",
    )


# --- the child ---


def _serve_trials(job_path: str, name: str, parent: str, handed: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(int(parent), signal.SIGKILL)
    answers = os.dup(1)
    os.dup2(2, 1)  # so that nothing a transform prints is taken for an answer
    try:
        stream = _open(job_path, name)
    except BaseException as error:
        os.write(answers, json.dumps({"error": told(error)}).encode())
        return
    os.write(answers, json.dumps({"opened": stream.opened}).encode())
    for line in sys.stdin:
        epoch, sample = map(int, line.split())
        # An exception is no reason to die: the worker will meet it again, and mask or report the sample.
        with contextlib.suppress(BaseException):
            values_of(stream, epoch, sample, os.pread(int(handed), os.fstat(int(handed)).st_size, 0))
        os.write(answers, _PASSED)


def _open(job_path: str, name: str) -> Stream:
    job = JobFile(job_path)
    job.make_importable()
    return Stream(job, name)


if __name__ == "__main__":
    _serve_trials(*sys.argv[1:])
