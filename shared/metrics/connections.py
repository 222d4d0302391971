"""The connections that a small HTTP server holds at the same time: only so many, and each only for so long.

Rules: a connection asks within `ASKING_S` of its arrival, and takes its answer within `ANSWERING_S`. If all places are
taken, the oldest connection that has not asked makes room for a new one, or the oldest of all if each has asked: so
strangers that hold connections keep nobody waiting who asks at once. Ending a connection wakes the thread that reads or
writes it, which then leaves its place; no connection is closed by anybody else, because its number may be another's by
then.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass

__all__ = ["Places"]

#: How long a client may take to ask, and then until it has read its answer, which may be long to make.
ASKING_S, ANSWERING_S = 2.0, 10.0

#: How long the thread of a connection that was ended may take to leave its place.
_LEAVING_S = 0.5


@dataclass(slots=True)
class _Place:
    #: When the connection is ended.
    due_s: float
    has_asked: bool = False
    is_ended: bool = False


class Places:
    """So many places at `most`; used by the thread that accepts and those that answer."""

    def __init__(self, most: int) -> None:
        self._free = threading.Semaphore(most)
        self._lock = threading.Lock()
        #: In the order in which they came.
        self._places: dict[socket.socket, _Place] = {}

    def take(self, connection: socket.socket, now_s: float) -> bool:
        """Give a new connection a place; return False if no other one leaves in time."""
        if not self._free.acquire(blocking=False):
            self._make_room()
            if not self._free.acquire(timeout=_LEAVING_S):
                return False
        with self._lock:
            self._places[connection] = _Place(now_s + ASKING_S)
        return True

    def note_asked(self, connection: socket.socket, now_s: float) -> bool:
        """Note that a connection's request has come; return whether it is to be answered, as it was not ended."""
        with self._lock:
            place = self._places[connection]
            place.has_asked, place.due_s = True, now_s + ANSWERING_S
            return not place.is_ended

    def leave(self, connection: socket.socket) -> None:
        """Give back the place of a connection that is about to be closed, if it has one."""
        with self._lock:
            place = self._places.pop(connection, None)
        if place is not None:
            self._free.release()

    def end_overdue(self, now_s: float) -> float | None:
        """End connections whose time is over; return in how many seconds the next one is due, None if there is none."""
        with self._lock:
            for connection, place in self._places.items():
                if now_s >= place.due_s:
                    _end(connection, place)
            due_s = [place.due_s for place in self._places.values() if not place.is_ended]
        return min(due_s) - now_s if due_s else None

    def _make_room(self) -> None:
        with self._lock:
            living = [(connection, place) for connection, place in self._places.items() if not place.is_ended]
            silent = [(connection, place) for connection, place in living if not place.has_asked]
            for connection, place in (silent or living)[:1]:
                _end(connection, place)


def _end(connection: socket.socket, place: _Place) -> None:
    place.is_ended = True
    with contextlib.suppress(OSError):  # the other side has hung up
        connection.shutdown(socket.SHUT_RDWR)
