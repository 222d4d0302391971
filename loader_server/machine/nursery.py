"""A process that others are forked from: it has imported what they need, and has run no code but ours.

A new interpreter takes a third of a second to import what a worker needs, a fork some milliseconds, so a worker that
was killed has its place back almost at once. Rules: open it before this process starts threads or imports what a job
file names, because a process with threads may hang when it forks. It forks one child for each request, tells its end,
and does nothing else; it ends with its owner, and its children end with it (see processes).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from typing import TYPE_CHECKING

import numpy as np

from loader_server.machine.processes import end_with_parent
from shared.errors import MachineError
from shared.extras import library

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Nursery", "Nursling", "no_room"]

_setproctitle = library("setproctitle", extra="loader", use="which names processes").setproctitle

_MOST_BYTES = 2**16

#: Signals that reach all of us, from a terminal or a service manager: the owner decides in which order we end.
_FOR_THE_OWNER = (signal.SIGINT, signal.SIGTERM)


def no_room(got: OSError | str, where: str = "this machine") -> MachineError:
    """The system has no room for one more process of ours."""
    return MachineError(
        expected="a process to be forked",
        got=str(got),
        where=where,
        remedy="Look at memory and at the limits of processes and open files on this machine.",
    )


class Nursling:
    """A child of the nursery, as its owner sees it; select it like a file to learn of its end."""

    def __init__(self, pid: int, pidfd: int, end: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        #: A pipe on which its exit code comes at the end.
        self._end = end

    def fileno(self) -> int:
        """Readable once it has ended."""
        return self._end

    def send_signal(self, number: int) -> None:
        """Signal it through its pidfd, because its process id may belong to another process by now."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """End it by force."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit code, negative for a signal; None if it has not ended in time. Once returned, it is forgotten."""
        if not select.select([self], [], [], timeout_s)[0]:
            return None
        code = os.read(self._end, 16)
        os.close(self._end)
        os.close(self._pidfd)
        return int(code) if code else -signal.SIGKILL  # the nursery was killed, and took all with it


class Nursery:
    """The owner's side. `run` is what a child does with the arguments that `start` gives it."""

    def __init__(self, run: Callable[[Sequence[str]], object]) -> None:
        assert threading.active_count() == 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gc.freeze()  # so that garbage collection does not write to pages that all share
        self._socket = ours
        owner = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_OWNER)
        self.pid = os.fork()
        if not self.pid:
            ours.close()
            _become(lambda: _serve(theirs, run, owner))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_OWNER)
        theirs.close()

    def start(self, arguments: Sequence[str], *, keep: int) -> Nursling:
        """Fork a child, which keeps this descriptor of ours."""
        try:
            reading, writing = os.pipe()
        except OSError as error:
            raise no_room(error) from error
        try:
            try:
                socket.send_fds(self._socket, [json.dumps(list(arguments)).encode()], [keep, writing])
            finally:
                os.close(writing)  # which leaves room for the descriptor that comes
            told, fds, _flags, _sender = socket.recv_fds(self._socket, _MOST_BYTES, 1)
        except OSError as error:
            told, fds = b"" if isinstance(error, ConnectionError) else str(error).encode(), []
        if fds:
            return Nursling(int(told), fds[0], reading)
        os.close(reading)
        raise no_room(told.decode() or "the end of the one that forks", f"process {self.pid}")

    def close(self) -> None:
        """End it."""
        self._socket.close()
        os.waitpid(self.pid, 0)


# --- the nursery's side ---


def _serve(owner: socket.socket, run: Callable[[Sequence[str]], object], owner_pid: int) -> None:
    """Fork what is asked for until the owner hangs up."""
    for number in _FOR_THE_OWNER:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_OWNER)
    end_with_parent(owner_pid, signal.SIGKILL)
    _setproctitle(_title(["nursery"]))
    #: By pidfd: each child's process id, and where to report how it ended.
    children: dict[int, tuple[int, int]] = {}
    while True:
        ready, _, _ = select.select([owner.fileno(), *children], [], [])
        for fd in ready:
            if fd in children:
                _tell_end(fd, *children.pop(fd))
            elif not _fork(owner, run, children):
                return


def _fork(owner: socket.socket, run: Callable[[Sequence[str]], object], children: dict[int, tuple[int, int]]) -> bool:
    """Do what the owner asks for; False once it has hung up."""
    asked, fds, _flags, _sender = socket.recv_fds(owner, _MOST_BYTES, 2)
    if not asked:
        return False
    if len(fds) != 2:
        for fd in fds:
            os.close(fd)
        owner.send(b"no descriptor for its pipes")
        return True
    keep, end = fds
    arguments = json.loads(asked)
    try:
        pid = os.fork()
    except OSError as error:
        owner.send(str(error).encode())
        os.close(end)
        os.close(keep)
        return True
    if not pid:
        _become(lambda: _live(run, arguments, keep))
    os.close(keep)  # which leaves room for the next one
    pidfd = os.pidfd_open(pid)
    children[pidfd] = pid, end
    socket.send_fds(owner, [str(pid).encode()], [pidfd])
    return True


def _tell_end(pidfd: int, pid: int, end: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(end, str(code).encode())
    os.close(end)
    os.close(pidfd)


# --- a child's side ---


def _live(run: Callable[[Sequence[str]], object], arguments: Sequence[str], keep: int) -> None:
    """Run with these arguments, as a new process would."""
    # In a session of its own, because our owner passes on Ctrl-C from the terminal, in good order.
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    kept = os.dup2(keep, 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    _setproctitle(_title(arguments))
    np.random.seed()  # numpy's own generator was seeded at import, and would draw the same in all children
    run([*arguments, "--ready-fd", str(kept)])


def _title(arguments: Sequence[str]) -> str:
    """What `ps` shows: the command that would start the same process."""
    return " ".join(["loader-server", *arguments])


def _become(live: Callable[[], object]) -> None:
    """Become a process of our own: nothing of the one that we were forked from goes on running."""
    code = 1
    try:
        live()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as the interpreter does, and multiprocessing
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
