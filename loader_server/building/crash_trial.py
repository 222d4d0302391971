"""Trial of a batch that killed a worker: each sample in a child process, to find the one that kills.

The child is forked from the nursery. It opens the job, reports that it is ready, and from then on has one sample at a
time in hand: it decodes and transforms it, throws away the result and answers. The bytes come from the worker, so the
child reads nothing.

Rules: `trial_rule` decides whose fault it is that a child ended, or ran out of memory or descriptors, with a sample in
hand; a child that ran out is ended, so that the next try has a fresh one. A child that does not start, or that has
opened another index, is a failure of the machine: it convicts nothing, and ends the trial with a MachineError. Used in
the building thread only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader_server.building.trial_rule import (
    ChildEnded,
    Passed,
    RanOut,
    TrialVerdict,
    convicting_ends,
    judge,
    why_unjudged,
)
from loader_server.job_file import JobFile
from loader_server.machine.free_room import free_room
from loader_server.machine.processes import TRIAL_OFFER, end_with_parent, how_it_ended, offer_to_oom_killer
from loader_server.machine.room import Room
from loader_server.sources.blame import error_text, find_exhaustion
from loader_server.stream import Stream
from shared.commands import allow_many_files
from shared.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from loader_server.building.trial_rule import Try
    from loader_server.machine.asking import Asker

__all__ = ["TRIAL", "Conviction", "CrashTrial", "judged", "serve_trials"]

#: Signals that a process causes by its own fault. SIGKILL is not among them: the kernel sends it when the machine is
#: out of memory, and any process may have used that up.
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE))

#: A start takes a second, and a kill less; the rest is a margin for a busy machine.
_READY_TIMEOUT_S = 60.0
_KILLED_S = 30.0

#: Extra time for an answer after the timeout: if this process itself was stopped, the timeout has passed although the
#: child answered long ago.
_LAST_MOMENT_S = 0.5

_PASSED = b"passed"

#: Characters kept of an error's text, which enters a conviction twice.
_MOST_WORDS = 90

#: First argument of a trial's child process.
TRIAL = "crash-trial"


@dataclass(frozen=True, slots=True)
class Conviction:
    """A sample that kills, and how the children that had it in hand ended."""

    sample: int
    #: By this the sample is known from now on: its number may be another with the next index.
    identity: str
    ends: str


def judged(returncode: int) -> tuple[str, bool]:
    """Return how a child that we did not kill ended, and whether the sample can be the cause: an exit or a crash."""
    return how_it_ended(returncode), returncode >= 0 or -returncode in _CRASHES


class _TrialProcess:
    """Child process that tries samples of one stream; orders and answers are messages on one socket.

    Making it raises OSError or MachineError if the child cannot be started.
    """

    def __init__(self, nursery: Asker, job_path: Path, stream: str) -> None:
        self.stream = stream
        #: Whether it has not had a sample in hand yet: a shortage in a used child may be an earlier sample's doing.
        self.is_fresh = True
        # Closed here if the child cannot be started, because nobody else would; otherwise by `end`.
        with contextlib.ExitStack() as opened:
            # Shared memory, because a sample may be larger than a message on the socket can be.
            self._bytes = os.memfd_create("stoker-sample")
            opened.callback(os.close, self._bytes)
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.enter_context(self._socket)
            # Our copy of the child's end has to be closed, or the child's death would not end the connection.
            with theirs:
                socket.send_fds(self._socket, [b"bytes"], [self._bytes])
                arguments = [TRIAL, str(job_path), stream, str(nursery.pid)]
                self._process = nursery.start(arguments, keep=theirs.fileno())
            self._opened = opened.pop_all()

    def hand(self, epoch: int, sample: int, raw: bytes) -> None:
        """Give the child a sample; if the child is gone, waiting for its answer will show that.

        Raise OSError if there is no memory for the bytes.
        """
        self.is_fresh = False
        os.ftruncate(self._bytes, len(raw))
        os.pwrite(self._bytes, raw, 0)
        with contextlib.suppress(ConnectionError):
            self._socket.send(f"{epoch} {sample}".encode())

    def wait_for_answer(self, timeout_s: float) -> bytes | None:
        """Return the child's answer, b"" if the child ended, or None if neither happened in time."""
        poller = select.poll()
        # Watch the process too: if a transform forked, its orphan keeps the socket open, and no end of file would come.
        poller.register(self._socket, select.POLLIN)
        poller.register(self._process, select.POLLIN)
        ready = dict(poller.poll(1000 * timeout_s) or poller.poll(1000 * _LAST_MOMENT_S))
        if not ready:
            return None
        with contextlib.suppress(ConnectionError):
            return self._socket.recv(2**16) if ready.get(self._socket.fileno(), 0) & select.POLLIN else b""
        return b""

    def end(self, patience_s: float = 0.0) -> int:
        """End the child, by force if it does not exit within `patience_s`; return its return code.

        Raise MachineError if even a killed child does not go away.
        """
        code = self._process.wait(patience_s)
        if code is None:
            self._process.kill()
            code = self._process.wait(_KILLED_S)
        self._opened.close()
        if code is None:
            raise MachineError(
                expected="a killed process to end",
                got=f"none that has in {_KILLED_S:g} s",
                where=f"process {self._process.pid}",
                remedy="Look at memory and disks on this machine.",
            )
        return code


class CrashTrial:
    """The worker's side of a trial.

    A child starts with the first sample, and lives until a sample ends it or until `close`. `needed` is what has to be
    free for a sample that runs out of memory or descriptors to be at fault.
    """

    def __init__(self, nursery: Asker, job_path: Path, timeout_s: float, needed: Room) -> None:
        self._nursery = nursery
        self._job_path = job_path
        self._timeout_s = timeout_s
        self._needed = needed
        #: The child that waits for the next sample; None before the first, and after one that ended a child.
        self._child: _TrialProcess | None = None

    def try_samples(self, stream: Stream, epoch: int, samples: Iterable[tuple[int, bytes]]) -> Iterator[Conviction]:
        """Try samples one by one; yield each that is at fault as soon as it is found.

        Raise MachineError for the first sample that cannot be judged, or if a killed child does not go away, and
        OSError if there is no memory for a sample's bytes. Errors of the source's names and identities pass through.
        """
        for sample, raw in samples:
            tries: list[Try] = []
            while (verdict := judge(tries, self._needed)) is TrialVerdict.AGAIN:
                tries.append(self._try(stream, epoch, sample, raw))
            if verdict is TrialVerdict.UNJUDGED:
                raise _failed(stream, sample, why_unjudged(tries, self._needed))
            if verdict is TrialVerdict.OWN_FAULT:
                yield Conviction(sample, stream.identity(sample), ", ".join(convicting_ends(tries, self._needed)))

    def _try(self, stream: Stream, epoch: int, sample: int, raw: bytes) -> Try:
        """Try one sample in a child and return the result: it passed, the child ended or hung, or something ran out.

        Raise MachineError if no child gets ready, or if a killed one does not go away, and OSError if there is no
        memory for the bytes.
        """
        child = self._get_ready_child(stream, sample)
        is_fresh = child.is_fresh  # until it has a sample in hand
        child.hand(epoch, sample, raw)
        answer = child.wait_for_answer(self._timeout_s)
        # The child of a sample that passed is kept for the next; any other is ended and replaced.
        if answer == _PASSED:
            return Passed()
        self._child = None
        if answer is None:
            child.end()
            return ChildEnded(f"no end in {self._timeout_s:g} s", by_itself=True)
        if answer:
            # Ended although it lives: what ran out may stay missing in it, and the next try needs a fresh child.
            child.end()
            facts = json.loads(answer)
            return RanOut(facts.pop("end"), Room(**facts), is_fresh)
        return ChildEnded(*judged(child.end(self._timeout_s)))  # it may have closed its answers long before it ends

    def _get_ready_child(self, stream: Stream, sample: int) -> _TrialProcess:
        """Return a child that has opened the same job, index and transforms as this worker, starting one if needed.

        A child of another stream is ended first. Raise MachineError if a child does not start, is not ready in time,
        cannot open the job, has opened something else, or does not go away.
        """
        if self._child is not None and self._child.stream != stream.name:
            self.close()
        if self._child is None:
            try:
                child = _TrialProcess(self._nursery, self._job_path, stream.name)
            except (OSError, MachineError) as error:
                raise _failed(stream, sample, f"no child that starts: {error_text(error)}") from error
            message = child.wait_for_answer(_READY_TIMEOUT_S)
            problem = _unready(message, stream)
            if problem:
                end = child.end(_LAST_MOMENT_S)
                raise _failed(stream, sample, problem if message else f"{problem}: {how_it_ended(end)}")
            self._child = child
        return self._child

    def close(self) -> None:
        """End the child, if there is one; raise MachineError if even a killed child does not go away."""
        if self._child is not None:
            child, self._child = self._child, None
            child.end()


def _unready(message: bytes | None, stream: Stream) -> str:
    """Return why a child cannot try samples, given its first message; empty if it can."""
    if not message:
        return "a child that was not ready in time" if message is None else "a child that ended before it was ready"
    facts: dict[str, str] = json.loads(message)
    if "error" in facts:
        return f"a child that could not open the job: {facts['error']}"
    # With another index the number would be another sample's, and with other transforms its verdict another code's.
    return "" if facts["opened"] == stream.opened else "an index or transforms that have changed on disk since"


def _failed(stream: Stream, sample: int, got: str) -> MachineError:
    return MachineError(
        expected="child processes to try the samples of a batch that killed a worker",
        got=f"{stream.source.name(sample)} in hand: {got}",
        where=f"stream {stream.name} on {os.uname().nodename}",
        remedy="Look at memory, data and index on that machine: no sample was judged.",
    )


# --- the child ---


def serve_trials(arguments: Sequence[str]) -> None:
    """Run as a trial's child process: open the job, then try samples until the worker closes the socket.

    If the job cannot be opened, send the error to the worker and return. Raise SystemExit if the parent has ended.
    ValueError of `free_room` passes through.
    """
    _, job_path, name, parent, _, answers = arguments
    # Ctrl-C reaches the whole process group; it is the worker that ends its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(int(parent), signal.SIGKILL)
    offer_to_oom_killer(TRIAL_OFFER)  # a failure is in our worker's log already
    allow_many_files()
    _print_nothing()
    worker = socket.socket(fileno=int(answers))
    _, (handed,), _, _ = socket.recv_fds(worker, 16, 1)
    try:
        job = JobFile(job_path)
        job.make_importable()
        stream = Stream(job, name)
    except BaseException as error:  # the worker hears of it and asks no more
        worker.send(json.dumps({"error": error_text(error)}).encode())
        return
    worker.send(json.dumps({"opened": stream.opened}).encode())
    # Taken before the first sample: whether a shortage convicts depends on what was free for it.
    room = free_room()
    while order := worker.recv(64):
        epoch, sample = map(int, order.split())
        shortage = _find_shortage(stream, epoch, sample, handed)
        worker.send(_PASSED if shortage is None else _shortage_message(shortage, room))


def _find_shortage(stream: Stream, epoch: int, sample: int, handed: int) -> BaseException | None:
    """Return the error if memory or descriptors ran out over this sample, else None.

    Any other exception is swallowed here: the worker will meet it again, and mask or report the sample.
    """
    try:
        stream.values(epoch, sample, os.pread(handed, os.fstat(handed).st_size, 0))
    except BaseException as error:  # a panic in Rust is no Exception
        return find_exhaustion(error)
    return None


def _shortage_message(shortage: BaseException, room: Room) -> bytes:
    facts = {"end": error_text(shortage)[:_MOST_WORDS], "memory": room.memory, "descriptors": room.descriptors}
    return json.dumps(facts).encode()


def _print_nothing() -> None:
    # By descriptor, because what a crashing library prints does not go through Python.
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123 - it is no file of ours
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
