"""In queue mode: batches that are done and not reported yet, with their metric states, split into messages.

Rules: pure. The contents of the open message are kept until its answer, because the coordinator may lack the beginning
of states that come in pieces. States that exceed one message go in pieces, one batch at a time, and the batch is
reported done with the last piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire.message_parts import PIECE_BYTES
from shared.wire.topics.work_messages import MOST_LEASES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.wire.message_parts import Lease

__all__ = ["DoneLeases"]


class DoneLeases:
    """Done batches that wait to be reported, oldest first; those in the open message are not counted."""

    def __init__(self) -> None:
        self._waiting: dict[Lease, bytes] = {}
        #: The batches in the open message.
        self._open: dict[Lease, bytes] = {}
        #: How many bytes of the first batch's states the coordinator has, and how many more the open message brings.
        self._sent = self._sending = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._waiting)

    def __contains__(self, lease: Lease) -> bool:
        return lease in self._waiting

    def add(self, lease: Lease, states: bytes) -> None:
        """Add a batch that is done, with its metric states."""
        self._waiting[lease] = states

    def clear(self) -> None:
        """Forget all batches, because a later generation does not count them."""
        self._waiting.clear()
        self._open.clear()
        self._sent = self._sending = 0

    def take(self) -> tuple[tuple[Lease, ...], int, bytes]:
        """Open the next message; return its done batches, and their states with the byte at which these begin.

        Several whole states go into one message if they fit. Otherwise it is a piece of the first batch's states, and
        the batch is among the done ones only with the last piece.
        """
        first = next(iter(self._waiting.values()), b"")
        if len(first) > PIECE_BYTES:
            return self._take_piece(first)
        # All batches of an evaluation have states of the same size.
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
        """Close the open message; if the coordinator `lost` the beginning of its states, report everything again."""
        if lost:  # back to the front, in the former order
            self._waiting = self._open | self._waiting
        is_whole = bool(self._open)
        self._sent = 0 if lost or is_whole else self._sent + self._sending
        self._open, self._sending = {}, 0
