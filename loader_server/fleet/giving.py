"""The order in which joining hosts get pieces of the bundle, so that they never keep a coordinator from its work.

Rules: pure. A host has one request; a later one replaces it. Hosts are served in the order of their requests. Pieces
that libzmq has not sent yet are bounded, for each host and for all together; `unread` returns how many bytes of them a
host has. Nothing is sent but what `take_due` returns, which the coordinator calls last in its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire.message_parts import BUNDLE_PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.wire import messages as m

__all__ = ["MOST_UNREAD_BYTES", "Giving"]

#: Limit of bytes of pieces that wait for hosts to read them.
MOST_UNREAD_BYTES = 16 * 2**20

#: Limit for one host: it asks for the next piece once it has read the last one, which libzmq may report a moment later.
_MOST_OF_A_HOST = 2 * BUNDLE_PIECE_BYTES

#: Limit of pieces in a turn: encoding one takes some 0.2 ms, so control messages wait for two milliseconds at most.
_PIECES_A_TURN = 8

#: Limit of hosts that wait; others ask again.
_MOST_HOSTS = 4096


class Giving:
    """Queue of requests for pieces of the bundle."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, m.BundleWanted] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def ask(self, peer: bytes, wanted: m.BundleWanted) -> bool:
        """Add or replace a host's request; return whether that is progress.

        It is none if the request replaces another, or if so many hosts wait that it is dropped.
        """
        is_new = peer not in self._waiting
        if is_new and len(self._waiting) >= _MOST_HOSTS:
            return False
        self._waiting[peer] = wanted
        return is_new

    def take_due(self, unread: Callable[[bytes], int], total: int) -> list[tuple[bytes, m.BundleWanted]]:
        """Remove and return the requests to be answered now, oldest first; `total` is what all hosts have not read.

        They are at most eight, maybe none, and as many as fit into the limit of unread bytes; hosts that have too much
        to read themselves are passed over.
        """
        # A host that reads slowly is passed over, and keeps its turn: it holds up nobody but itself.
        due: list[tuple[bytes, m.BundleWanted]] = []
        for peer in list(self._waiting):
            if len(due) == _PIECES_A_TURN or total + BUNDLE_PIECE_BYTES > MOST_UNREAD_BYTES:
                break
            if unread(peer) + BUNDLE_PIECE_BYTES <= _MOST_OF_A_HOST:
                due.append((peer, self._waiting.pop(peer)))
                total += BUNDLE_PIECE_BYTES
        return due
