"""A process that others are forked from: it has imported what they need, and has run no code but ours.

A new interpreter takes a third of a second to import what a worker needs, a fork some milliseconds, so a worker that
was killed has its place back almost at once. Rules: open it before this process starts threads or imports what a job
file names, because a process with threads may hang when it forks. It forks one child for each request, reports the
child's end, and does nothing else. It ends with its owner, and its children end with it (see processes). A child may
ask for children of its own, which are killed once it has ended; malformed requests from a child harm nobody. The asking
side is in `asking`.
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

from loader_server.machine.asking import MOST_BYTES, READY, OwnedNursery
from loader_server.machine.processes import end_with_parent
from shared.extras import library

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["ASKING_FD", "FOR_THE_OWNER", "Nursery", "execute_child", "live_as_child", "serve_owner"]

_setproctitle = library("setproctitle", extra="loader", use="which names processes").setproctitle

#: Descriptors of a child: the one that it was told to keep, and the socket by which it asks for children of its own.
_KEPT_FD = 3
ASKING_FD = 4

#: Signals that a terminal or a service manager sends to all our processes: the owner alone acts on them, as it decides
#: the order in which we end.
FOR_THE_OWNER = (signal.SIGINT, signal.SIGTERM)

#: The program of a child that needs another environment than the nursery's. It sets our path before it imports
#: anything, as a nursery that is started as a program does.
_PROGRAM = """
import json, sys
arguments, sys.path[:] = json.loads(sys.argv[1]), sys.argv[2:]
from loader_server.cli import be_child
be_child(arguments)
"""


class Nursery(OwnedNursery):
    """A nursery that is forked from this process; a child calls `run` with the arguments given to `start`.

    Making it forks, so this process must have one thread (AssertionError); raise OSError if there is no room.
    """

    def __init__(self, run: Callable[[Sequence[str]], object]) -> None:
        # A fork copies locks that other threads hold, but not the threads: the child would wait for them for ever.
        assert threading.active_count() == 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gc.freeze()  # so that garbage collection does not write to pages that all share
        owner = os.getpid()
        # From before the fork, so that a signal to the whole process group never ends the nursery, not even at once.
        signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_OWNER)
        pid = os.fork()
        if not pid:
            ours.close()
            _become(lambda: _serve(theirs, run, owner))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_OWNER)
        theirs.close()
        super().__init__(ours, pid)


# --- the nursery's side ---


@dataclass(slots=True)
class _Forked:
    """A child; `end` is the pipe on which to report how it ended."""

    pid: int
    end: int
    #: The socket by which it asks for children of its own, and the one by which it was asked for.
    asks: socket.socket
    asker: socket.socket


def _serve(owner: socket.socket, run: Callable[[Sequence[str]], object], owner_pid: int) -> None:
    """Fork children on request until the owner hangs up; raise SystemExit if the owner has ended already.

    OSError of `serve` passes through.
    """
    # Blocked, not ignored: a signal for a child that is just being forked stays pending until the child unblocks it.
    # While they were ignored, one SIGTERM in a hundred was lost, and the machine took 10 s to end.
    signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_OWNER)
    end_with_parent(owner_pid, signal.SIGKILL)
    _setproctitle(_title(["nursery"]))
    _Forker(owner, run).serve()


def serve_owner(owner: socket.socket, run: Callable[[Sequence[str]], object], owner_pid: int) -> None:
    """Report ready and be a nursery in this process, which was started for it; end the process afterwards.

    Raise OSError if the owner has hung up already; a later error is printed, and the process ends with code 1.
    """
    gc.freeze()
    owner.send(READY)
    _become(lambda: _serve(owner, run, owner_pid))


class _Forker:
    """The nursery's loop: forks children for its owner, and for those children."""

    def __init__(self, owner: socket.socket, run: Callable[[Sequence[str]], object]) -> None:
        self._owner, self._run = owner, run
        #: By descriptor: the sockets of those who may ask, and the children by pidfd.
        self._askers = {owner.fileno(): owner}
        self._children: dict[int, _Forked] = {}
        # epoll has no limit on descriptors: `select` takes none above 1023, and `poll` no more than we may open.
        self._epoll = select.epoll()
        self._epoll.register(owner, select.EPOLLIN)

    def serve(self) -> None:
        """Handle requests and ends of children until the owner hangs up.

        Raise OSError if no descriptor is left for the handle of a child that was forked.
        """
        while self._owner.fileno() in self._askers:
            # One event at a time, because handling it may close other descriptors; ends of children first, because a
            # child that floods us must not outlive its parent.
            ready = [fd for fd, _ in self._epoll.poll()]
            fd = next((fd for fd in ready if fd in self._children), ready[0])
            if fd in self._children:
                self._report_end(fd, self._children.pop(fd))
            else:
                self._hear(self._askers[fd])

    def _hear(self, asker: socket.socket) -> None:
        """Carry out a request; refuse a malformed one, as it may come from a user's own code in a child.

        Stop listening to a sender that has hung up. OSError of `_fork` passes through.
        """
        request, fds, no_room = _read(asker)
        if not request:
            self._forget(asker)
            return
        words = _words(request)
        if words is not None and len(fds) == 2:
            self._fork(asker, words, *fds)
            return
        for fd in fds:
            os.close(fd)
        self._answer(asker, os.strerror(errno.EMFILE).encode() if no_room else b"no request: words, two descriptors")

    def _forget(self, asker: socket.socket) -> None:
        """Stop listening to an asker that has hung up or does not read its answers."""
        # A child may hang up and live on: its socket stays readable, and would keep this loop busy.
        if self._askers.pop(asker.fileno(), None) is not None:
            self._epoll.unregister(asker)

    def _answer(self, asker: socket.socket, answer: bytes, *fds: int) -> None:
        """Send an answer with descriptors, without waiting; drop it if the asker has ended.

        An asker that reads no answers is hung up on, so that it cannot block the others.
        """
        try:
            # `send_fds` passes no flags on.
            asker.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))], socket.MSG_DONTWAIT)
        except ConnectionError:  # it has ended
            pass
        except BlockingIOError:  # it keeps asking, and reads no answers
            self._forget(asker)
            asker.shutdown(socket.SHUT_RDWR)

    def _fork(self, asker: socket.socket, arguments: Sequence[str], keep: int, end: int) -> None:
        """Fork a child with these arguments, and answer with its process id and pidfd.

        Answer with the error instead if there is no room for it. Raise OSError if no descriptor is left for the handle
        of a child that was forked.
        """
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
        # Only this process reaps the child, so its process id cannot have been reused yet.
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = _Forked(pid, end, asks, asker)
        self._askers[asks.fileno()] = asks
        self._epoll.register(pidfd, select.EPOLLIN)
        self._epoll.register(asks, select.EPOLLIN)
        self._answer(asker, str(pid).encode(), pidfd)

    def _report_end(self, pidfd: int, child: _Forked) -> None:
        """Report how a child ended, and kill its own children: nobody else would end those that try samples for it.

        A parent that does not read the report is not waited for.
        """
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        for sibling_pidfd, sibling in self._children.items():
            if sibling.asker is child.asks:
                signal.pidfd_send_signal(sibling_pidfd, signal.SIGKILL)
        self._forget(child.asks)
        child.asks.close()
        _write_if_possible(child.end, str(code).encode())
        os.close(child.end)
        self._epoll.unregister(pidfd)
        os.close(pidfd)


def _read(asker: socket.socket) -> tuple[bytes, list[int], bool]:
    """Return a request, its descriptors, and whether we had no room for these; nothing once the sender has hung up."""
    # A sender that has ended is as one that has hung up.
    with contextlib.suppress(ConnectionError):
        request, fds, flags, _sender = socket.recv_fds(asker, MOST_BYTES, 2)
        return request, fds, len(fds) < 2 and bool(flags & socket.MSG_CTRUNC)
    return b"", [], False


def _words(request: bytes) -> list[str] | None:
    """Return the arguments for a child; None if the request is no list in JSON."""
    try:
        words = json.loads(request)
    except (ValueError, RecursionError):
        return None
    return words if isinstance(words, list) else None


def _write_if_possible(fd: int, content: bytes) -> None:
    """Write to a descriptor; drop the content if that would block or fails."""
    # It should be a pipe with a reader, but a child's own code may have sent any other: a full pipe would block us.
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    with contextlib.suppress(OSError):
        if poller.poll(0):
            os.write(fd, content)


# --- a child's side ---


def _live(run: Callable[[Sequence[str]], object], arguments: Sequence[str], keep: int, asking: int) -> None:
    """Be a child: detach, set up signals and descriptors, and run with these arguments as a new process would.

    Errors of `run` pass through.
    """
    # In a session of its own, so that Ctrl-C from the terminal does not reach it: our owner passes that on, in good
    # order.
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Only now: a signal that came while we were being forked takes effect here, by the default action.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_OWNER)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # Moved out of the way first: it may have the very number that the kept descriptor is to get.
    asking = fcntl.fcntl(asking, fcntl.F_DUPFD, ASKING_FD + 1)
    os.dup2(keep, _KEPT_FD)
    os.dup2(asking, ASKING_FD, inheritable=False)
    # No socket of the owner, no pipe of a sibling: the child of a worker would keep another worker's port or pipe open.
    os.closerange(ASKING_FD + 1, os.sysconf("SC_OPEN_MAX"))
    _setproctitle(_title(arguments))
    np.random.seed()  # numpy's own generator was seeded at import, and would draw the same in all children
    run([*arguments, "--ready-fd", str(_KEPT_FD)])


def execute_child(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Execute this child again with another environment; it keeps its process id and its descriptors.

    Its program begins with `live_as_child`. Raise OSError if the interpreter cannot be executed.
    """
    # What libraries read when they are loaded, or the interpreter when it is executed, no fork can change.
    os.set_inheritable(ASKING_FD, True)  # noqa: FBT003 - a builtin's, which takes no names
    command = [sys.executable, "-c", _PROGRAM, json.dumps(list(arguments)), *sys.path]
    os.execve(sys.executable, command, environment)  # noqa: S606 - our own interpreter, without a shell


def live_as_child(run: Callable[[Sequence[str]], object], arguments: Sequence[str]) -> None:
    """Be a child that has executed itself again: run with these arguments, and end the process; errors are printed."""
    os.set_inheritable(ASKING_FD, False)  # noqa: FBT003 - a builtin's, which takes no names
    _setproctitle(_title(arguments[:-2]))  # without --ready-fd, as in a child that is only forked
    _become(lambda: run(arguments))


def _title(arguments: Sequence[str]) -> str:
    """Return the title that `ps` shows: the command that would start the same process."""
    return " ".join(["loader-server", *arguments])


def _become(live: Callable[[], object]) -> None:
    """Run `live` and end the process, so that nothing of the process that it was forked from goes on running.

    The exit code is 0, or that of a SystemExit; any other exception is printed, and the code is 1.
    """
    code = 1
    try:
        live()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # it must not go on in the code of the process that it was forked from
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):  # the process ends, whatever flushing raises
            threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as the interpreter does, and multiprocessing
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
