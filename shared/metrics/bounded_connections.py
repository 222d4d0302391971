"""Connections of a small HTTP server: bounded in number and in time.

Rules: a client sends its request within `ASKING_S` of connecting, and reads its answer within `ANSWERING_S`. If there
is no room for a new connection, the oldest without a request is ended, or the oldest of all if each has sent one: so
strangers who hold connections delay nobody who asks at once. Ending a connection wakes the thread that reads or writes
it, which then leaves. Nobody else closes it, because its descriptor could be another connection's by then.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass

__all__ = ["BoundedConnections"]

#: How long a client may take to send its request, and then until it has read the answer, which may be slow to make.
ASKING_S, ANSWERING_S = 2.0, 10.0

#: How long the thread of an ended connection may take to leave.
_LEAVING_S = 0.5


@dataclass(slots=True)
class _HeldConnection:
    """State of one connection."""

    #: When it will be ended.
    due_s: float
    has_asked: bool = False
    is_ended: bool = False


class BoundedConnections:
    """At most `most` connections; used by the accepting thread and by those that answer."""

    def __init__(self, most: int) -> None:
        self._room = threading.Semaphore(most)
        self._lock = threading.Lock()
        #: In order of arrival.
        self._held: dict[socket.socket, _HeldConnection] = {}

    def admit(self, connection: socket.socket, now_s: float) -> bool:
        """Hold a new connection, ending an older one if there is no room; return False if none leaves in time."""
        if not self._room.acquire(blocking=False):
            # Only its own thread may close the ended connection, so wait until it has left, but not for long: we are in
            # the thread that accepts.
            self._end_oldest()
            if not self._room.acquire(timeout=_LEAVING_S):
                return False
        with self._lock:
            self._held[connection] = _HeldConnection(now_s + ASKING_S)
        return True

    def note_asked(self, connection: socket.socket, now_s: float) -> bool:
        """Note that a connection's request came; return False if the connection was ended before."""
        with self._lock:
            held = self._held[connection]
            held.has_asked, held.due_s = True, now_s + ANSWERING_S
            return not held.is_ended

    def leave(self, connection: socket.socket) -> None:
        """Release the place of a connection that is about to be closed; do nothing if it was not held."""
        with self._lock:
            held = self._held.pop(connection, None)
        if held is not None:
            self._room.release()

    def end_overdue(self, now_s: float) -> float | None:
        """End overdue connections; return the seconds until the next one is due, or None if there is none."""
        with self._lock:
            for connection, held in self._held.items():
                if now_s >= held.due_s:
                    _end(connection, held)
            due_s = [held.due_s for held in self._held.values() if not held.is_ended]
        return min(due_s) - now_s if due_s else None

    def _end_oldest(self) -> None:
        """End the oldest connection without a request, or the oldest of all if each has sent one."""
        with self._lock:
            living = [(connection, held) for connection, held in self._held.items() if not held.is_ended]
            silent = [(connection, held) for connection, held in living if not held.has_asked]
            for connection, held in (silent or living)[:1]:
                _end(connection, held)


def _end(connection: socket.socket, held: _HeldConnection) -> None:
    # shutdown, not close: it wakes the connection's thread, which alone may free the descriptor.
    held.is_ended = True
    with contextlib.suppress(OSError):  # the other side has hung up
        connection.shutdown(socket.SHUT_RDWR)
