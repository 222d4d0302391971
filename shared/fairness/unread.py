"""Answers sent on a ROUTER, with an account of the bytes that each peer has not read.

libzmq queues without limit for a peer that does not read, and does not say how much. So after every few kilobytes one
frame is tracked as a mark: when libzmq has finished with it, it has finished with everything before it. What it has not
finished with counts as unread; a peer with too much unread should be sent only what it is owed.

Rules: used in the thread that owns the socket; nothing here blocks. libzmq tells that it has finished only when asked,
so ask again soon while `is_behind`.
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

#: Bytes of answers between two marks. A mark takes some 20 µs; bytes after the last mark are not counted yet.
MARK_BYTES = 64 * 1024

#: Bytes that all peers together may leave unread.
_UNREAD_BYTES = 8 * 2**20


#: Answers that a peer may leave unread; a well-behaved one asks for one at a time.
_MOST_UNREAD = 16


class _MarkedAnswers:
    """Sender on a ROUTER with marks: frames that libzmq may still be sending, each with the amount it stands for."""

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        self._router = router
        self._open: list[tuple[zmq.MessageTracker, bytes, int]] = []

    def is_behind(self) -> bool:
        """Return whether libzmq still holds something that is counted."""
        return bool(self._open)

    def _send_marked(self, identity: bytes, frames: Sequence[bytes], amount: int) -> bool:
        """Send a message; return False if the peer is not connected, or libzmq refuses the message.

        Unless `amount` is 0 the last frame is tracked as a mark of this amount.
        """
        try:
            send_now(self._router, [identity, *(frames[:-1] if amount else frames)], more=bool(amount))
        except zmq.ZMQError:  # EHOSTUNREACH: it hung up, or is not connected yet
            return False
        # A ROUTER finds the peer by the first frame, so the frames after it cannot fail because the peer is gone.
        if amount:
            # Only frames that are not copied can be tracked, and pyzmq copies small ones by default.
            mark = zmq.Frame(frames[-1], track=True, copy=False, copy_threshold=0)
            tracker = self._router.send(mark, zmq.DONTWAIT, copy=False, track=True)
            assert tracker is not None
            self._open.append((tracker, identity, amount))
        return True

    def _take_finished(self) -> list[tuple[bytes, int]]:
        """Return and forget the identities and amounts of the marks that libzmq has finished with."""
        marks, self._open = self._open, []
        finished = []
        for mark in marks:  # ask each only once: a mark that is finished between two questions would be lost
            tracker, identity, amount = mark
            if tracker.done:
                finished.append((identity, amount))
            else:
                self._open.append(mark)
        return finished


class UnreadAnswers(_MarkedAnswers):
    """Sender of answers on a ROUTER that counts unread bytes."""

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        super().__init__(router)
        self._unread: Budget[bytes] = Budget(_UNREAD_BYTES)
        #: Whether every answer gets a mark, so that a process that ends can wait until all are sent. Lingering does
        #: not help: of answers after which the socket was closed at once, 11 of 40 never came.
        self.marks_all = False
        #: Bytes sent since the last mark, by connection.
        self._unmarked: dict[bytes, int] = {}

    def reads(self, identity: bytes) -> bool:
        """Return whether this connection reads what it is sent; always true if it has left nothing unread.

        Other connections share a limit on unread bytes, which the last answer may exceed.
        """
        return not self._unread.held(identity) or self._unread.has_room(identity)

    def held(self, identity: bytes) -> int:
        """Return the bytes that this connection has not read, without those after its last mark."""
        return self._unread.held(identity)

    @property
    def total(self) -> int:
        """Return the bytes that all connections have not read, without those after their last marks."""
        return self._unread.total

    def send(self, identity: bytes, frames: Sequence[bytes]) -> bool:
        """Send one message of these frames; return False if the peer is not connected, or libzmq refuses it.

        Its bytes are counted as unread with the next mark, every 64 KiB of a connection or, with `marks_all`, at once.
        """
        unmarked = self._unmarked.get(identity, 0) + sum(map(len, frames))
        is_marked = self.marks_all or unmarked >= MARK_BYTES
        if not self._send_marked(identity, frames, unmarked if is_marked else 0):
            self._unmarked.pop(identity, None)
            return False
        if is_marked:
            self._unread.take(identity, unmarked)
        self._unmarked[identity] = 0 if is_marked else unmarked
        return True

    def take_back(self) -> None:
        """Subtract the bytes that libzmq has finished sending."""
        for identity, nbytes in self._take_finished():
            self._unread.give_back(identity, nbytes)

    def forget(self, identity: bytes) -> None:
        """Forget the unmarked bytes of a connection that is over; its counted bytes stay until libzmq frees them."""
        self._unmarked.pop(identity, None)

    def forget_all(self) -> None:
        """Forget the bytes after each connection's last mark.

        They are few, and without this the table would grow as connections come and go.
        """
        self._unmarked.clear()


class UnreadMessages(_MarkedAnswers):
    """Sender of possibly large answers on a ROUTER, to peers that wait for one before they ask for the next."""

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        super().__init__(router)
        self._unread: Counter[bytes] = Counter()

    def reads(self, identity: bytes) -> bool:
        """Return whether this connection reads what it is sent: it has left fewer than 16 messages unread."""
        return self._unread[identity] < _MOST_UNREAD

    def send(self, identity: bytes, frames: Sequence[bytes]) -> bool:
        """Send a message of these frames, always with a mark; return False if libzmq refuses it, as without a peer."""
        is_connected = self._send_marked(identity, frames, 1)
        self._unread[identity] += is_connected
        return is_connected

    def take_back(self) -> None:
        """Subtract the messages that libzmq has finished sending."""
        for identity, count in self._take_finished():
            self._unread[identity] -= count
        self._unread = +self._unread  # which leaves zeros out: connections come and go
