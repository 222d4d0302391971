"""Answers that a ROUTER sends, and how much of them each peer has not read.

libzmq queues without limit for a peer that does not read, and does not say how much. So after every few kilobytes one
frame serves as a mark: when libzmq has finished with it, it has finished with everything before it. What it has not
finished with is counted; who has left too much unread is to be told only what it is owed.

Rules: used in the thread that owns the socket; nothing here blocks. libzmq says only when asked that it has finished
with something, so ask again soon while `is_behind`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import zmq

from shared.fairness.budget import Budget
from shared.sockets import send_now

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MARK_BYTES", "UnreadAnswers", "UnreadMessages"]

#: Bytes of answers between two marks. A mark takes some 20 µs; bytes behind the last do not count.
MARK_BYTES = 64 * 1024

#: How many bytes all peers together may leave unread.
_UNREAD_BYTES = 8 * 2**20


#: How many answers a peer may leave unread that asks for one at a time.
_MOST_UNREAD = 16


class UnreadAnswers:
    """Sends answers on a ROUTER, and counts bytes that were not read."""

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        self._marks = _Marks(router)
        self._unread: Budget[bytes] = Budget(_UNREAD_BYTES)
        #: Whether each answer has a mark, as before a process ends. Lingering does not help: of answers after which the
        #: socket was closed at once, 11 of 40 never came.
        self.marks_all = False
        #: Bytes that were sent since the last mark, by connection.
        self._unmarked: dict[bytes, int] = {}

    def reads(self, identity: bytes) -> bool:
        """Return whether this connection reads what it is sent; one that has left nothing unread always does.

        Others may have left unread all that they may together, and the last of them a little more.
        """
        return not self._unread.held(identity) or self._unread.has_room(identity)

    def held(self, identity: bytes) -> int:
        """Return how many bytes this connection has not read, but for those behind the last mark."""
        return self._unread.held(identity)

    @property
    def total(self) -> int:
        """How many bytes all connections together have not read, but for those behind their last marks."""
        return self._unread.total

    def send(self, identity: bytes, frames: Sequence[bytes]) -> bool:
        """Send one message of these frames; return whether the peer is still there."""
        unmarked = self._unmarked.get(identity, 0) + sum(map(len, frames))
        is_marked = self.marks_all or unmarked >= MARK_BYTES
        if not self._marks.send(identity, frames, unmarked if is_marked else 0):
            self._unmarked.pop(identity, None)
            return False
        if is_marked:
            self._unread.take(identity, unmarked)
        self._unmarked[identity] = 0 if is_marked else unmarked
        return True

    def take_back(self) -> None:
        """Uncount what libzmq has finished with."""
        for identity, nbytes in self._marks.take_finished():
            self._unread.give_back(identity, nbytes)

    def is_behind(self) -> bool:
        """Return whether libzmq still sends something that is counted."""
        return bool(self._marks)

    def forget(self, identity: bytes) -> None:
        """Forget a connection on which nothing is said any more, but for what it has not read."""
        self._unmarked.pop(identity, None)

    def forget_all(self) -> None:
        """Forget the bytes behind the last mark of each connection: they are few, and connections come and go."""
        self._unmarked.clear()


class UnreadMessages:
    """Sends answers on a ROUTER, each of which may be large, to peers that wait for one before they ask again."""

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        self._marks = _Marks(router)
        self._unread: Counter[bytes] = Counter()

    def reads(self, identity: bytes) -> bool:
        """Return whether this connection reads what it is sent."""
        return self._unread[identity] < _MOST_UNREAD

    def send(self, identity: bytes, frames: Sequence[bytes]) -> bool:
        """Send one message of these frames, none of which is copied; return whether the peer is still there."""
        is_there = self._marks.send(identity, frames, 1)
        self._unread[identity] += is_there
        return is_there

    def take_back(self) -> None:
        """Uncount what libzmq has finished with."""
        for identity, count in self._marks.take_finished():
            self._unread[identity] -= count
        self._unread = +self._unread  # which leaves zeros out

    def is_behind(self) -> bool:
        """Return whether libzmq still sends something."""
        return bool(self._marks)


class _Marks:
    """Frames that libzmq may still be sending, each with an amount that it stands for."""

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        self._router = router
        self._open: list[tuple[zmq.MessageTracker, bytes, int]] = []

    def __bool__(self) -> bool:
        return bool(self._open)

    def send(self, identity: bytes, frames: Sequence[bytes], amount: int) -> bool:
        """Send a message, whose last frame is a mark if it stands for anything; return whether the peer is there."""
        try:
            send_now(self._router, [identity, *(frames[:-1] if amount else frames)], more=bool(amount))
        except zmq.ZMQError:  # EHOSTUNREACH: it hung up, or is not connected yet
            return False
        if amount:
            mark = zmq.Frame(frames[-1], track=True, copy=False, copy_threshold=0)
            tracker = self._router.send(mark, zmq.DONTWAIT, copy=False, track=True)
            assert tracker is not None
            self._open.append((tracker, identity, amount))
        return True

    def take_finished(self) -> list[tuple[bytes, int]]:
        """Return, and forget, whose marks libzmq has finished with, and what they stood for."""
        marks, self._open = self._open, []
        finished = []
        for mark in marks:  # each is asked once: it may be finished a moment later
            tracker, identity, amount = mark
            if tracker.done:
                finished.append((identity, amount))
            else:
                self._open.append(mark)
        return finished
