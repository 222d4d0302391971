"""The supervisor's nursery, and a successor for each one that dies.

Without a nursery nothing can be restarted, so its death would take down all loaders of the machine for good. A
successor is a new interpreter, started by fork and exec: the supervisor has sockets, descriptors and perhaps threads,
none of which a nursery may have. Importing our code takes it a third of a second, for which the supervisor does not
wait: it goes on with its turns, and starts children once the successor is ready.

Rules: the children of a dead nursery are ended by their owners (see `Nursling`). A nursery that dies again and again
points to something that a restart cannot mend, so the fifth death in a minute is an error. A nursery that is stopped is
not dead: its children live, so it is left alone, and nothing is asked of it until it has answered.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import sys
from collections import deque
from typing import TYPE_CHECKING

from loader_server.machine.asking import OwnedNursery
from loader_server.machine.nursery import FOR_THE_OWNER
from loader_server.machine.processes import how_it_ended
from shared.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.logs import Log

__all__ = ["Deaths", "NurseryKeeper", "execute_nursery", "start_nursery"]

#: So many deaths within this time are an error.
_MOST_DEATHS, _MINUTE_S = 5, 60.0

#: A successor that is not ready by then hangs; importing takes some seconds on a busy machine.
_READY_S = 30.0

#: Pause before another try if the system has no room for a process.
_PAUSE_S = 0.5

#: Errors that pass by themselves, unlike a missing interpreter.
_NO_ROOM_NOW = frozenset((errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM))

#: Descriptor of the successor's end of the socket.
_SOCKET_FD = 3

#: The successor's program. It sets our path before it imports anything: with `-m`, modules in the working directory
#: would be imported instead of ours.
_PROGRAM = """
import sys
sys.path[:] = sys.argv[3:]
from loader_server.cli import be_nursery
be_nursery(int(sys.argv[1]), int(sys.argv[2]))
"""


class Deaths:
    """Times of the last deaths of nurseries."""

    def __init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=_MOST_DEATHS)

    def add(self, now_s: float) -> None:
        """Record a death at this time, so that it counts among the recent ones."""
        self._times_s.append(now_s)

    def are_too_many(self, now_s: float) -> bool:
        """Return whether the last five deaths all fell within the last minute, so that another is likely."""
        return len(self._times_s) == _MOST_DEATHS and now_s - self._times_s[0] <= _MINUTE_S


def execute_nursery() -> OwnedNursery:
    """Start a nursery as a program, which inherits only our output, environment and path.

    Raise OSError if there is no room for a process or socket, or if the interpreter cannot be started.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-c", _PROGRAM, str(_SOCKET_FD), str(os.getpid()), *sys.path],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), _SOCKET_FD)],
                # Blocked from its first instant, as a forked nursery's are (see `nursery`).
                setsigmask=FOR_THE_OWNER,
            )
            return OwnedNursery(ours, pid)
        except BaseException:  # our end has no other owner
            ours.close()
            raise


def start_nursery() -> OwnedNursery:
    """Start a nursery as a program, and return it once it can fork.

    Raise MachineError if it cannot be started, ends before it is ready, or is not ready within half a minute.
    """
    try:
        nursery = execute_nursery()
    except OSError as error:
        raise _never_started(str(error)) from error
    if nursery.has_answered(_READY_S) and nursery.hear_ready():
        return nursery
    nursery.kill()
    nursery.close()
    raise _never_started(f"no answer of it in {_READY_S:g} s, or its end")


def _never_started(got: str) -> MachineError:
    return MachineError(
        expected=f"{sys.executable} to be started, to fork loaders from",
        got=got,
        where="this machine",
        remedy="Repair the Python environment that the loaders run in, and start them again.",
    )


class NurseryKeeper:
    """Owner of the living nursery.

    `interrupt_fd` becomes readable once nobody waits for the nursery's answers any more.
    """

    def __init__(
        self,
        nursery: OwnedNursery,
        interrupt_fd: int,
        log: Log,
        execute: Callable[[], OwnedNursery] = execute_nursery,
    ) -> None:
        #: The nursery that forks children; the dead one while there is no successor.
        self.nursery = nursery
        self._interrupt_fd = nursery.interrupt_fd = interrupt_fd
        self._log = log
        self._execute = execute
        self._deaths = Deaths()
        #: Whether the nursery has not reported ready yet.
        self._is_starting = False
        #: When to start a successor, or to give up one that is starting.
        self._due_s = math.inf
        self._is_dead = False
        #: Whether the want of room for a successor was logged already.
        self._is_no_room_logged = False

    @property
    def is_ready(self) -> bool:
        """Return whether a child can be started now.

        Return False while the nursery is dead, a successor is starting, or an answer of the nursery is overdue.
        """
        return not (self._is_dead or self._is_starting or self.nursery.is_late)

    def descriptors(self) -> Iterator[int]:
        """Yield the descriptors to poll: one is readable once there is something to do.

        Yield none while the nursery is dead and has no successor yet.
        """
        if not self._is_dead:
            yield self.nursery.fileno()
        if not self._is_dead and not self.is_ready:
            yield self.nursery.socket_fileno()

    def due_s(self) -> float:
        """Return when there is something to do even if nothing is readable; infinity if nothing is due."""
        return self._due_s

    def look(self, now_s: float) -> None:
        """Check on the nursery and replace a dead one.

        Raises MachineError if nurseries die again and again, or none can ever be started; for want of room it is tried
        again every half second. TimeoutError of `_hear` passes through.
        """
        code = None if self._is_dead else self.nursery.look()
        if code is not None:
            self._note_death(code, now_s)
        elif not self._is_dead and not self.is_ready:
            self._hear(now_s)
        if self._is_dead and now_s >= self._due_s:
            self._start_successor(now_s)

    def close(self) -> None:
        """End the nursery; kill it if it is still starting or does not end in time."""
        # One that still imports would notice only afterwards that we have hung up, so it is not waited for.
        if self._is_starting:
            self.nursery.kill()
        self.nursery.close()
        self._is_starting = False

    def _note_death(self, code: int, now_s: float) -> None:
        """Log a death and have a successor started at once; raise MachineError after the fifth death in a minute."""
        self._is_dead, self._is_starting, self._due_s = True, False, now_s
        self._deaths.add(now_s)
        if self._deaths.are_too_many(now_s):
            raise MachineError(
                expected="the process that forks all loaders to live",
                got=f"its end {_MOST_DEATHS} times in a minute, at last by {how_it_ended(code)}",
                where="the nursery of this machine",
                remedy="Look at this machine's memory, and in its system log for what kills processes; then start the "
                "loaders again.",
            )
        self._log.warning("the nursery died: its children are killed and started again", cause=how_it_ended(code))

    def _hear(self, now_s: float) -> None:
        """Take in a successor's readiness or a late answer; kill a successor that takes too long to start.

        TimeoutError of `hear_ready` passes through.
        """
        if not self.nursery.has_answered():
            if self._is_starting and now_s >= self._due_s:
                self.nursery.kill()  # the next turn takes its end for a death, and starts another
                self._due_s = math.inf
        elif self._is_starting and self.nursery.hear_ready():
            self._is_starting, self._due_s = False, math.inf
            self._log.info("the new nursery is ready", pid=self.nursery.pid)
        elif self.nursery.is_late:
            # A nursery that was stopped and goes on: what it was asked for is not wanted any more.
            with contextlib.suppress(OSError):  # it has just died, which the next turn sees
                self.nursery.forget_late()

    def _start_successor(self, now_s: float) -> None:
        """Start a successor, or try again later if there is no room; raise MachineError if it can never be started.

        Log the lack of room once as a warning. A started one has to report that it is ready within half a minute.
        """
        try:
            self.nursery = self._execute()
        except OSError as error:
            if error.errno not in _NO_ROOM_NOW:
                raise _never_started(str(error)) from error
            self._due_s = now_s + _PAUSE_S
            warn = self._log.debug if self._is_no_room_logged else self._log.warning
            self._is_no_room_logged = True
            warn("no nursery can be started: the next try is in half a second", error=str(error))
            return
        self.nursery.interrupt_fd = self._interrupt_fd
        self._is_dead, self._is_starting, self._is_no_room_logged = False, True, False
        self._due_s = now_s + _READY_S
