"""A nursery from the outside: how to ask it for children, and the children's handles.

Rules: one request at a time, and its answer is waited for, but not for ever. An answer that comes too late is about a
child that nobody wants any more, which is killed. The nursery's own side is in `nursery`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from typing import TYPE_CHECKING

from loader_server.machine.processes import NurseryEndedError
from shared.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MOST_BYTES", "READY", "Asker", "Nursling", "OwnedNursery", "is_readable", "no_room"]

#: Limit of a request or answer.
MOST_BYTES = 2**16

#: First message of a nursery that was started as a program, once it can fork.
READY = b"ready"

#: Timeout of an answer: a fork takes milliseconds, more on a busy machine.
_PATIENCE_S = 30.0

#: How long a nursery may take to end once its owner has hung up; a stopped one never would.
_END_S = 1.0


def no_room(got: OSError | str, where: str = "this machine") -> MachineError:
    """Return the error that the system has no room for another process of ours."""
    return MachineError(
        expected="room for one more process",
        got=str(got),
        where=where,
        remedy="Look at memory and at the limits of processes and open files on this machine.",
    )


class Nursling:
    """Handle of a child of the nursery; select it like a file to learn of its end.

    The nursery reports how its children end. Once it has died, nobody would report that, nor end a child that does not
    heed the kernel's signal. So the owner kills the children that are left and waits until they are gone: only then are
    their ports and locks free.
    """

    def __init__(self, pid: int, pidfd: int, end: int) -> None:
        self.pid = pid
        #: Whether the nursery died before it reported how this child ended.
        self.is_orphan = False
        #: Readable once it has ended, even if the nursery is dead.
        self._pidfd = pidfd
        #: A pipe on which its exit code comes at the end.
        self._end = end

    def fileno(self) -> int:
        """Return a descriptor that is readable once its end is reported, or the nursery is dead.

        For an orphan it is readable only once the child itself has ended.
        """
        # The pipe of an orphan stays readable, and would keep the owner's loop busy until the kernel has ended it.
        return self._pidfd if self.is_orphan else self._end

    def send_signal(self, number: int) -> None:
        """Send this signal to the process by its pidfd; do nothing if it has ended."""
        # Through its pidfd, because the nursery reaps it, so its process id may belong to another process by now.
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Kill it, without waiting for its end; do nothing if it has ended."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return its exit code, negative for a signal; None if it has not ended in time.

        The handle must not be used after it has returned a code. If the nursery died without reporting its end, the
        child is killed, and the code is that of SIGKILL.
        """
        if not self.is_orphan:
            if not is_readable(self._end, timeout_s):
                return None
            code = os.read(self._end, 16)
            if code:
                self._forget()
                return int(code)
            # The pipe ended without a code, so the nursery is dead. A child that ignores SIGTERM, or is stopped, would
            # live on for ever and keep its port.
            self.is_orphan = True
            self.kill()
        return -signal.SIGKILL if self.wait_gone(timeout_s) else None

    def wait_gone(self, timeout_s: float | None) -> bool:
        """Return whether it has ended in time, even if the nursery does not report how; not to be used again then."""
        # A nursery that is stopped reports nothing, and an owner that has to end cannot wait for it.
        if not is_readable(self._pidfd, timeout_s):
            return False
        self._forget()
        return True

    def _forget(self) -> None:
        os.close(self._end)
        os.close(self._pidfd)


def is_readable(fd: int, timeout_s: float | None) -> bool:
    """Wait until a descriptor is readable, at most for this long (None: for ever); return whether it is.

    It is readable too once its other end has hung up.
    """
    poller = select.poll()  # `select` knows no descriptors above 1023
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else 1000 * timeout_s))


class Asker:
    """Client of a nursery, which forks children on request; used in one thread."""

    def __init__(self, opened: socket.socket, pid: int) -> None:
        self._socket = opened
        opened.settimeout(_PATIENCE_S)
        #: The nursery's process id.
        self.pid = pid
        #: A descriptor that becomes readable once no answer is worth waiting for; -1 if there is none.
        self.interrupt_fd = -1
        #: Whether an answer is overdue: it is about a child that nobody wants any more.
        self.is_late = False

    def start(self, arguments: Sequence[str], *, keep: int) -> Nursling:
        """Fork a child, which keeps this descriptor of ours, and return its handle.

        Raise MachineError if there is no room for it, the request is refused, no answer comes in time, or waiting is
        interrupted because this process has to end; raise NurseryEndedError, a kind of MachineError, if the nursery is
        gone.
        """
        try:
            reading, writing = os.pipe()
        except OSError as error:
            raise no_room(error) from error
        try:
            try:
                self.forget_late()
                socket.send_fds(self._socket, [json.dumps(list(arguments)).encode()], [keep, writing])
            finally:
                os.close(writing)  # which leaves room for the descriptor that comes
            answer, fds = self._hear()
        except OSError as error:
            os.close(reading)
            raise self._failed(error) from error
        if fds:
            return Nursling(int(answer), fds[0], reading)
        os.close(reading)
        raise no_room(answer.decode(), f"process {self.pid}")

    def _hear(self) -> tuple[bytes, list[int]]:
        """Wait for the answer, and return it with its descriptors; a refusal has none.

        Raise TimeoutError if it is late, InterruptedError if this process has to end, and ConnectionResetError, or
        another OSError, if the nursery is gone.
        """
        # Set before waiting: if that is given up or interrupted, the answer is still to come, and must not be taken for
        # the answer to the next request.
        self.is_late = True
        self._wait_for_answer()
        answer, fds, _flags, _sender = socket.recv_fds(self._socket, MOST_BYTES, 1)
        self.is_late = False
        if not answer:
            raise ConnectionResetError
        return answer, fds

    def _wait_for_answer(self) -> None:
        """Wait for an answer; raise TimeoutError if it is late, or InterruptedError if this process has to end."""
        poller = select.poll()
        for fd in (self._socket.fileno(), *([self.interrupt_fd] if self.interrupt_fd >= 0 else ())):
            poller.register(fd, select.POLLIN)
        patience_s = self._socket.gettimeout()
        ready = dict(poller.poll(None if patience_s is None else 1000 * patience_s))
        if not ready:
            raise TimeoutError
        if self._socket.fileno() not in ready:
            raise InterruptedError("this process has to end")

    def forget_late(self) -> None:
        """Receive an overdue answer, waiting for it, and kill its child; do nothing if none is overdue.

        Raise OSError if it does not come: it is late again, the nursery is gone, or this process has to end.
        """
        if self.is_late:
            for fd in self._hear()[1]:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                os.close(fd)

    def _failed(self, error: OSError) -> MachineError:
        """Return the error for a failed request: NurseryEndedError if the nursery is gone, otherwise MachineError."""
        where = f"process {self.pid}"
        if isinstance(error, ConnectionError):
            return NurseryEndedError(**no_room("the end of the process that forks", where).words())
        return no_room(f"no answer in {_PATIENCE_S:g} s" if isinstance(error, TimeoutError) else str(error), where)


class OwnedNursery(Asker):
    """A nursery that is a child of this process; select it like a file to learn of its end.

    Making it raises OSError if no descriptor is left for its handle.
    """

    def __init__(self, opened: socket.socket, pid: int) -> None:
        super().__init__(opened, pid)
        self._pidfd = os.pidfd_open(pid)
        self._code: int | None = None

    def fileno(self) -> int:
        """Return a descriptor that is readable once it has ended."""
        return self._pidfd

    def socket_fileno(self) -> int:
        """Return a descriptor that is readable once it has sent something or hung up."""
        return self._socket.fileno()

    def has_answered(self, within_s: float = 0.0) -> bool:
        """Return whether it has sent something that was not received yet, or has hung up; wait for it `within_s`."""
        return is_readable(self._socket.fileno(), within_s)

    def hear_ready(self) -> bool:
        """Receive its first message; return whether that says that it is ready.

        Return False if it sent something else, or has hung up. Raise TimeoutError if nothing comes within half a
        minute.
        """
        with contextlib.suppress(ConnectionError):
            return self._socket.recv(len(READY)) == READY
        return False

    def look(self) -> int | None:
        """Return its exit code, negative for a signal; None while it lives.

        Once it has ended, its socket and descriptor are closed.
        """
        if self._code is None and is_readable(self._pidfd, 0):
            self._reap()
        return self._code

    def close(self) -> None:
        """End it, and kill it if it does not end within a second; do nothing if its end is known."""
        if self._code is not None:
            return
        # A child that a transform left behind may hold a copy of the socket, so closing ours would not tell the
        # nursery; a shutdown does.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if not is_readable(self._pidfd, _END_S):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._reap()

    def kill(self) -> None:
        """Kill it, without waiting for its end; not to be called once its end is known."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _reap(self) -> None:
        self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._socket.close()
        os.close(self._pidfd)
