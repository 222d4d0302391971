"""A process that others are forked from: it has imported what they need, and has run no code but ours.

A new interpreter takes a third of a second to import what a worker needs, a fork some milliseconds, so a worker that
was killed has its place back almost at once. Rules: open it before this process starts threads or imports what a job
file names, because a process with threads may hang when it forks. It forks one child for each request, tells its end,
and does nothing else; it ends with its owner, and its children end with it (see processes). A child may ask for
children of its own, which are killed once it has ended; what it sends instead of a request harms nobody.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loader_server.machine.processes import NurseryEndedError, end_with_parent
from shared.errors import MachineError
from shared.extras import library

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ASKING_FD", "Asker", "Nursery", "Nursling", "no_room"]

_setproctitle = library("setproctitle", extra="loader", use="which names processes").setproctitle

#: Where a child has the descriptor that it was told to keep, and the socket by which it asks for children of its own.
_KEPT_FD = 3
ASKING_FD = 4

_MOST_BYTES = 2**16

#: A fork takes milliseconds; this is for a machine that is busy.
_PATIENCE_S = 30.0

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
        poller = select.poll()  # `select` knows no descriptors above 1023
        poller.register(self, select.POLLIN)
        if not poller.poll(None if timeout_s is None else 1000 * timeout_s):
            return None
        code = os.read(self._end, 16)
        os.close(self._end)
        os.close(self._pidfd)
        return int(code) if code else -signal.SIGKILL  # the nursery was killed, and took all with it


class Asker:
    """Has a nursery fork children; used in one thread."""

    def __init__(self, opened: socket.socket, pid: int) -> None:
        self._socket = opened
        opened.settimeout(_PATIENCE_S)
        #: The nursery's process id.
        self.pid = pid
        #: Whether an answer has not come in time: it is about a child that nobody wants any more.
        self._is_late = False

    def start(self, arguments: Sequence[str], *, keep: int) -> Nursling:
        """Fork a child, which keeps this descriptor of ours."""
        try:
            reading, writing = os.pipe()
        except OSError as error:
            raise no_room(error) from error
        try:
            try:
                self._forget_late()
                socket.send_fds(self._socket, [json.dumps(list(arguments)).encode()], [keep, writing])
            finally:
                os.close(writing)  # which leaves room for the descriptor that comes
            told, fds = self._hear()
        except OSError as error:
            os.close(reading)
            raise self._failed(error) from error
        if fds:
            return Nursling(int(told), fds[0], reading)
        os.close(reading)
        raise no_room(told.decode(), f"process {self.pid}")

    def _hear(self) -> tuple[bytes, list[int]]:
        self._is_late = True
        told, fds, _flags, _sender = socket.recv_fds(self._socket, _MOST_BYTES, 1)
        self._is_late = False
        if not told:
            raise ConnectionResetError
        return told, fds

    def _forget_late(self) -> None:
        if self._is_late:
            for fd in self._hear()[1]:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                os.close(fd)

    def _failed(self, error: OSError) -> MachineError:
        where = f"process {self.pid}"
        if isinstance(error, ConnectionError):
            return NurseryEndedError(**no_room("the end of the one that forks", where).words())
        return no_room(f"no answer in {_PATIENCE_S:g} s" if isinstance(error, TimeoutError) else str(error), where)


class Nursery(Asker):
    """The owner's side. `run` is what a child does with the arguments that `start` gives it."""

    def __init__(self, run: Callable[[Sequence[str]], object]) -> None:
        assert threading.active_count() == 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gc.freeze()  # so that garbage collection does not write to pages that all share
        owner = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_OWNER)
        pid = os.fork()
        if not pid:
            ours.close()
            _become(lambda: _serve(theirs, run, owner))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_OWNER)
        theirs.close()
        super().__init__(ours, pid)

    def close(self) -> None:
        """End it."""
        # Before closing, because a child that a transform left behind holds a copy: the nursery would never be told.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        os.waitpid(self.pid, 0)


# --- the nursery's side ---


@dataclass(slots=True)
class _Forked:
    """A child; `end` is the pipe on which to report how it ended."""

    pid: int
    end: int
    #: By which it asks for children of its own, and by which it was asked for itself.
    asks: socket.socket
    asker: socket.socket


def _serve(owner: socket.socket, run: Callable[[Sequence[str]], object], owner_pid: int) -> None:
    """Fork what is asked for until the owner hangs up."""
    for number in _FOR_THE_OWNER:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_OWNER)
    end_with_parent(owner_pid, signal.SIGKILL)
    _setproctitle(_title(["nursery"]))
    _Forker(owner, run).serve()


class _Forker:
    """Forks children for its owner, and for these."""

    def __init__(self, owner: socket.socket, run: Callable[[Sequence[str]], object]) -> None:
        self._owner, self._run = owner, run
        #: By descriptor: those who may ask, and the children by pidfd.
        self._askers = {owner.fileno(): owner}
        self._children: dict[int, _Forked] = {}
        # Which has no limit of descriptors: `select` knows none above 1023, `poll` no more than we may have open.
        self._epoll = select.epoll()
        self._epoll.register(owner, select.EPOLLIN)

    def serve(self) -> None:
        """Until the owner hangs up."""
        while self._owner.fileno() in self._askers:
            # One at a time, because doing it may close others; ends first, because who floods us must not live on.
            ready = [fd for fd, _ in self._epoll.poll()]
            fd = next((fd for fd in ready if fd in self._children), ready[0])
            if fd in self._children:
                self._tell_end(fd, self._children.pop(fd))
            else:
                self._hear(self._askers[fd])

    def _hear(self, asker: socket.socket) -> None:
        asked, fds, lost = _read(asker)
        if not asked:
            self._forget(asker)
            return
        words = _words(asked)
        if words is not None and len(fds) == 2:
            self._fork(asker, words, *fds)
            return
        for fd in fds:
            os.close(fd)
        self._answer(asker, os.strerror(errno.EMFILE).encode() if lost else b"no request: words, and two descriptors")

    def _forget(self, asker: socket.socket) -> None:
        """Hear no more of one that has hung up, or does not listen."""
        if self._askers.pop(asker.fileno(), None) is not None:
            self._epoll.unregister(asker)

    def _answer(self, asker: socket.socket, said: bytes, *fds: int) -> None:
        try:
            # `send_fds` passes no flags on.
            asker.sendmsg([said], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))], socket.MSG_DONTWAIT)
        except ConnectionError:  # it has ended
            pass
        except BlockingIOError:  # it asks without end, and reads no answers
            self._forget(asker)
            asker.shutdown(socket.SHUT_RDWR)

    def _fork(self, asker: socket.socket, arguments: Sequence[str], keep: int, end: int) -> None:
        try:
            asks, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                pid = os.fork()
                if not pid:
                    _become(lambda: _live(self._run, arguments, keep, theirs.fileno()))
        except OSError as error:
            os.close(end)
            os.close(keep)
            self._answer(asker, str(error).encode())
            return
        os.close(keep)  # which leaves room for the next one
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = _Forked(pid, end, asks, asker)
        self._askers[asks.fileno()] = asks
        self._epoll.register(pidfd, select.EPOLLIN)
        self._epoll.register(asks, select.EPOLLIN)
        self._answer(asker, str(pid).encode(), pidfd)

    def _tell_end(self, pidfd: int, child: _Forked) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        for other, one in self._children.items():
            if one.asker is child.asks:
                signal.pidfd_send_signal(other, signal.SIGKILL)
        self._forget(child.asks)
        child.asks.close()
        _write_if_possible(child.end, str(code).encode())
        os.close(child.end)
        self._epoll.unregister(pidfd)
        os.close(pidfd)


def _read(asker: socket.socket) -> tuple[bytes, list[int], bool]:
    """What somebody sends, and whether we had no room for its descriptors; nothing once it has hung up."""
    with contextlib.suppress(ConnectionError):
        asked, fds, flags, _sender = socket.recv_fds(asker, _MOST_BYTES, 2)
        return asked, fds, len(fds) < 2 and bool(flags & socket.MSG_CTRUNC)
    return b"", [], False


def _words(asked: bytes) -> list[str] | None:
    """The arguments for a child; None if these are none."""
    try:
        words = json.loads(asked)
    except (ValueError, RecursionError):
        return None
    return words if isinstance(words, list) else None


def _write_if_possible(fd: int, said: bytes) -> None:
    """It should be a pipe that somebody reads, but may be anything."""
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    with contextlib.suppress(OSError):
        if poller.poll(0):
            os.write(fd, said)


# --- a child's side ---


def _live(run: Callable[[Sequence[str]], object], arguments: Sequence[str], keep: int, asking: int) -> None:
    """Run with these arguments, as a new process would."""
    # In a session of its own, because our owner passes on Ctrl-C from the terminal, in good order.
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    asking = fcntl.fcntl(asking, fcntl.F_DUPFD, ASKING_FD + 1)  # out of the way
    os.dup2(keep, _KEPT_FD)
    os.dup2(asking, ASKING_FD, inheritable=False)
    os.closerange(ASKING_FD + 1, os.sysconf("SC_OPEN_MAX"))
    _setproctitle(_title(arguments))
    np.random.seed()  # numpy's own generator was seeded at import, and would draw the same in all children
    run([*arguments, "--ready-fd", str(_KEPT_FD)])


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
