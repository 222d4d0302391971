"""The socket by which commands reach the process that serves a job: in its state folder, one request a connection.

Rules: only the user who runs the loaders can connect, because adding a job runs its code. The socket exists from the
time that the job is served; the lock of the job's journal ensures that nobody else serves it. Nothing here waits for a
caller. The answer comes when the request was carried out; a connection that ends without one means that the loaders
have ended.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from shared.commands import LONGEST_WAIT_S
from shared.errors import LostError, SettingsError, StokerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Caller", "JobSocket", "ask_machine"]

_NAME = "machine.sock"

#: Limit of a request or answer: the path of a job file, or a line for each job.
_MOST_BYTES = 2**17


class Caller:
    """A command's connection, with a request about one of this machine's jobs."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def fileno(self) -> int:
        """Return a descriptor that is readable once the request is here."""
        return self._connection.fileno()

    def read(self) -> dict[str, Any] | None:
        """Return the request; None if it is not here yet, empty if the caller hung up or sent something malformed."""
        try:
            request = json.loads(self._connection.recv(_MOST_BYTES))
        except BlockingIOError:
            return None
        except (OSError, ValueError, RecursionError):  # RecursionError: JSON that is nested too deep
            return {}
        return request if isinstance(request, dict) else {}

    def answer(self, **facts: Any) -> None:
        """Send the answer as JSON, unless the caller has hung up or cannot take it, and hang up."""
        with contextlib.suppress(OSError):
            self._connection.send(json.dumps(facts).encode())
        self.close()

    def refuse(self, error: StokerError) -> None:
        """Send an error as the answer, and hang up."""
        self.answer(error=error.words())

    def close(self) -> None:
        """Close the connection without an answer, which the caller takes for a failure."""
        self._connection.close()


class JobSocket:
    """The listening socket of one job.

    Making it replaces what an earlier process left, and raises OSError if the state folder cannot be opened or written
    to, or its file system has no sockets.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / _NAME
        # A process that was killed leaves its file behind. No living one has it: the lock of the journal is ours.
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with _short(state) as address:
            self._listener.bind(address)
        # Before `listen`, so that nobody else can connect in between: who adds a job runs code as us.
        self._path.chmod(0o600)
        self._listener.listen()
        self._listener.settimeout(0.0)

    def fileno(self) -> int:
        """Return a descriptor that is readable when somebody connects."""
        return self._listener.fileno()

    def take_in(self) -> Iterator[Caller]:
        """Yield the connections that are waiting; stop early if no descriptor is left to accept them."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # no more are waiting, or no descriptor is left
                return
            connection.settimeout(0.0)
            yield Caller(connection)

    def close(self) -> None:
        """Close the socket and remove its file, if it is still there; raise OSError if it cannot be removed."""
        self._listener.close()
        self._path.unlink(missing_ok=True)


def ask_machine(state: Path, *, timeout_s: float = math.inf, **request: Any) -> dict[str, Any]:
    """Send a request to the process that serves the job with this state folder, and return its answer.

    Without a timeout it waits as long as it takes. Raise LostError if nobody serves the job, or no answer comes, or not
    in time; SettingsError if the socket cannot be used; or the StokerError with which the process refuses.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(timeout_s if timeout_s < math.inf else None)
        try:
            with _short(state) as address:
                connection.connect(address)
            connection.send(json.dumps(request).encode())
            content = _receive(connection, timeout_s)
        except (FileNotFoundError, ConnectionError):
            content = b""
        except (TimeoutError, BlockingIOError):
            raise LostError(
                expected=f"the `loader-server run` that serves this job to answer within {timeout_s:g} s",
                got="no answer",
                where=str(state),
                remedy="Look whether its process runs: it may be stopped, or this machine overloaded.",
            ) from None
        except OSError as error:
            raise SettingsError(
                expected="to reach the `loader-server run` that serves this job",
                got=str(error),
                where=str(state),
                remedy="Run this command as the user who started it; no other user may.",
            ) from None
        if not content:
            raise LostError(
                expected="a `loader-server run` on this machine that serves this job, and answers",
                got="nobody",
                where=str(state),
                remedy="Name the job file of a job that is served here; if it was served just now, see its log.",
            )
        answer: dict[str, Any] = json.loads(content)
    if "error" in answer:
        raise StokerError(**answer["error"])
    return answer


def _receive(connection: socket.socket, timeout_s: float) -> bytes:
    """Return the answer, empty if the other side hung up; raise TimeoutError if none comes in time.

    Other errors of the socket pass through.
    """
    # In waits of half a second, because Python misses a signal that arrives just as it begins to wait (see
    # shared.commands), and the answer may take as long as trainers take to leave.
    until_s = time.monotonic() + timeout_s
    while True:
        connection.settimeout(min(max(until_s - time.monotonic(), 0.001), LONGEST_WAIT_S))
        try:
            return connection.recv(_MOST_BYTES)
        except TimeoutError:
            if time.monotonic() >= until_s:
                raise


@contextlib.contextmanager
def _short(state: Path) -> Iterator[str]:
    """Yield the socket's address by way of a descriptor, because a Unix address has room for only 107 characters.

    Raise OSError if the state folder cannot be opened: FileNotFoundError if there is none.
    """
    folder = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{_NAME}"
    finally:
        os.close(folder)
