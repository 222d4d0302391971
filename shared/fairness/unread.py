"""Answers that a ROUTER sends, and how much of them each peer has not read.

libzmq queues without limit for a peer that does not read, and does not say how much. So after every few kilobytes one
frame serves as a mark: when libzmq has finished with it, it has finished with everything before it. What it has not
finished with is counted; who has left too much unread is to be told only what it is owed.

Rules: used in the thread that owns the socket; nothing here blocks. libzmq says only when asked that it has finished
with something, so ask again soon while `is_behind`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

from shared.fairness.budget import Budget
from shared.sockets import send_now

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MARK_BYTES", "UnreadAnswers"]

#: Bytes of answers between two marks. A mark takes some 20 µs; bytes behind the last do not count.
MARK_BYTES = 64 * 1024

#: How many bytes all peers together may leave unread.
_UNREAD_BYTES = 8 * 2**20


class UnreadAnswers:
    """Sends answers on a ROUTER, and counts what was not read."""

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        self._router = router
        self._unread: Budget[bytes] = Budget(_UNREAD_BYTES)
        #: Bytes that were sent since the last mark, by connection.
        self._unmarked: dict[bytes, int] = {}
        self._marks: list[tuple[zmq.MessageTracker, bytes, int]] = []

    def reads(self, identity: bytes) -> bool:
        """Return whether this connection reads what it is sent."""
        return self._unread.has_room(identity)

    def held(self, identity: bytes) -> int:
        """Return how many bytes this connection has not read, but for those behind the last mark."""
        return self._unread.held(identity)

    def send(self, identity: bytes, frames: Sequence[bytes]) -> bool:
        """Send one message of these frames; return whether the peer is still there."""
        unmarked = self._unmarked.get(identity, 0) + sum(map(len, frames))
        is_marked = unmarked >= MARK_BYTES
        try:
            send_now(self._router, [identity, *(frames[:-1] if is_marked else frames)], more=is_marked)
        except zmq.ZMQError:  # EHOSTUNREACH: it hung up, or is not connected yet
            self._unmarked.pop(identity, None)
            return False
        if is_marked:
            self._mark(identity, frames[-1], unmarked)
            unmarked = 0
        self._unmarked[identity] = unmarked
        return True

    def _mark(self, identity: bytes, frame: bytes, nbytes: int) -> None:
        whole = zmq.Frame(frame, track=True, copy=False, copy_threshold=0)
        tracker = self._router.send(whole, zmq.DONTWAIT, copy=False, track=True)
        assert tracker is not None
        self._unread.take(identity, nbytes)
        self._marks.append((tracker, identity, nbytes))

    def take_back(self) -> None:
        """Uncount what libzmq has finished with."""
        marks, self._marks = self._marks, []
        for tracker, identity, nbytes in marks:
            if tracker.done:
                self._unread.give_back(identity, nbytes)
            else:
                self._marks.append((tracker, identity, nbytes))

    def is_behind(self) -> bool:
        """Return whether libzmq still sends something that is counted."""
        return bool(self._marks)

    def forget(self, identity: bytes) -> None:
        """Forget a connection on which nothing is said any more, but for what it has not read."""
        self._unmarked.pop(identity, None)

    def forget_all(self) -> None:
        """Forget the bytes behind the last mark of each connection: they are few, and connections come and go."""
        self._unmarked.clear()
