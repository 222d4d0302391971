"""In queue mode: the batches that are done and not told yet, with their metric states, as messages have room for them.

Rules: pure. What is in the open message is kept until the answer, because the coordinator may lack the beginning of
states that come in pieces. States that take more than a message go in pieces, one batch at a time, and the batch is
told done with the last of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire.lease_work import MOST_LEASES
from shared.wire.parts import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.wire.parts import Lease

__all__ = ["DoneLeases"]


class DoneLeases:
    """Batches that are done, oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[Lease, bytes] = {}
        #: What the open message says.
        self._open: dict[Lease, bytes] = {}
        #: How much of the first one's states the coordinator has, and how much more is in the open message.
        self._sent = self._sending = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._waiting)

    def __contains__(self, lease: Lease) -> bool:
        return lease in self._waiting

    def add(self, lease: Lease, states: bytes) -> None:
        """Note that a batch is done, with these states."""
        self._waiting[lease] = states

    def clear(self) -> None:
        """Forget all: a later generation does not count them."""
        self._waiting.clear()
        self._open.clear()
        self._sent = self._sending = 0

    def take(self) -> tuple[tuple[Lease, ...], int, bytes]:
        """Return what the next message says: which batches are done, and their states from this byte on."""
        first = next(iter(self._waiting.values()), b"")
        if len(first) > PIECE_BYTES:
            return self._take_piece(first)
        room = PIECE_BYTES // len(first) if first else MOST_LEASES
        for lease in list(self._waiting)[: min(room, MOST_LEASES)]:
            self._open[lease] = self._waiting.pop(lease)
        return tuple(self._open), 0, b"".join(self._open.values())

    def _take_piece(self, states: bytes) -> tuple[tuple[Lease, ...], int, bytes]:
        piece = states[self._sent : self._sent + PIECE_BYTES]
        self._sending = len(piece)
        if self._sent + len(piece) < len(states):
            return (), self._sent, piece
        lease = next(iter(self._waiting))
        self._open[lease] = self._waiting.pop(lease)
        return (lease,), self._sent, piece

    def acknowledge(self, *, lost: bool) -> None:
        """Take in the answer to the open message; if the beginning of its states is `lost`, it is all told again."""
        if lost:
            self._waiting = self._open | self._waiting
        is_whole = bool(self._open)
        self._sent = 0 if lost or is_whole else self._sent + self._sending
        self._open, self._sending = {}, 0
