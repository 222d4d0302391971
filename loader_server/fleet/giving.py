"""Who is given a piece of the bundle next, so that fetching hosts never keep a coordinator from its work.

Rules: pure. One request a host: a later one takes the earlier one's place. Hosts are served in the order in which they
asked. Pieces that libzmq has not got rid of yet are bounded, for each host and for all together; `unread` says how many
bytes of them there are. Nothing is given but what `take_due` returns, which the coordinator asks last in its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire.parts import BUNDLE_PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.wire import messages as m

__all__ = ["MOST_UNREAD_BYTES", "Giving"]

#: Bytes of pieces that may wait for hosts to read them.
MOST_UNREAD_BYTES = 16 * 2**20

#: A host asks for the next piece once it has read the last one, of which libzmq may tell us a moment later.
_MOST_OF_A_HOST = 2 * BUNDLE_PIECE_BYTES

#: Pieces a turn: encoding one takes some 0.2 ms, so control messages wait for two milliseconds at most.
_PIECES_A_TURN = 8

#: Hosts that may wait; others ask again.
_MOST_HOSTS = 4096


class Giving:
    """The requests that wait for their turn."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, m.BundleWanted] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def ask(self, peer: bytes, wanted: m.BundleWanted) -> bool:
        """Note a request; return whether it brings anything nearer, which a repeated one does not."""
        is_new = peer not in self._waiting
        if is_new and len(self._waiting) >= _MOST_HOSTS:
            return False
        self._waiting[peer] = wanted
        return is_new

    def take_due(self, unread: Callable[[bytes], int], total: int) -> list[tuple[bytes, m.BundleWanted]]:
        """Take the requests to be answered now, oldest first; `total` is what all hosts have not read."""
        due: list[tuple[bytes, m.BundleWanted]] = []
        for peer in list(self._waiting):
            if len(due) == _PIECES_A_TURN or total + BUNDLE_PIECE_BYTES > MOST_UNREAD_BYTES:
                break
            if unread(peer) + BUNDLE_PIECE_BYTES <= _MOST_OF_A_HOST:
                due.append((peer, self._waiting.pop(peer)))
                total += BUNDLE_PIECE_BYTES
        return due
