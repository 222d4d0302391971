"""In queue mode: what this trainer reports of done batches, with their metric states, and the sums that come back.

Rules: pure. The contents of the open message are kept until its answer, because the coordinator may lack the beginning
of states that come in pieces. States that exceed one message go in pieces, one batch at a time, and the batch is
reported done with the last piece. Sums come in pieces as well, each in the answer to a message; they are complete only
if all pieces have the same generation, because a new generation means that the evaluation began anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.wire.message_parts import PIECE_BYTES, MetricStates
from shared.wire.topics.work_messages import MOST_LEASES
from trainer_client.core import instructions as i

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.wire.message_parts import Lease, MetricSums

__all__ = ["DoneLeases", "NamedEvaluation"]


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
        """Open the next message; return its done batches, the byte at which their states begin, and these states.

        Whole states, of MOST_LEASES batches at most, go into one message if they fit. Otherwise it is a piece of the
        first batch's states, and the batch is among the done ones only with the last piece. Without a batch all are
        empty, and the byte is 0.
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
        # A coordinator that was restarted between two pieces has only the later one: without the beginning the sums
        # would lack a part of the batch.
        if lost:  # back to the front, in the former order
            self._waiting = self._open | self._waiting
        is_whole = bool(self._open)
        self._sent = 0 if lost or is_whole else self._sent + self._sending
        self._open, self._sending = {}, 0


@dataclass(slots=True)
class NamedEvaluation:
    """A named evaluation; `nbytes` is the size of one batch's metric states, and so of their sums."""

    name: str
    nbytes: int
    out: list[i.Instruction]
    #: Serial of the caller that asks for the sums; None if none does.
    asked: int | None = None
    _sums: bytearray = field(default_factory=bytearray)
    #: Whether the open message asks for the sums.
    _is_open: bool = False

    def ask(self, serial: int) -> None:
        """Ask for the sums with the next messages; the answer may also be that batches are still missing."""
        self.asked, self._is_open = serial, False
        self._sums.clear()

    def states(self, start: int, content: bytes, *, asks: bool) -> MetricStates:
        """Return the evaluation's part of the next message: states of done batches, and the byte to send sums from.

        The latter is None unless a caller waits for sums and `asks` is set, once all done batches are reported.
        """
        self._is_open = asks and self.asked is not None
        return MetricStates(self.name, self.nbytes, start, content, len(self._sums) if self._is_open else None)

    def receive(self, sums: MetricSums, *, is_new: bool) -> None:
        """Add a piece of sums, and answer the caller when they are complete.

        The caller gets None if batches are not settled yet, or if the evaluation began anew (`is_new`). Ignore the sums
        if no caller asks or, unless `is_new`, if the message that they answer did not ask.
        """
        # The message may have been sent before the caller asked, and its answer arrive after.
        if self.asked is None or not (self._is_open or is_new):
            return
        if is_new or not sums.settled:
            self._answer(self.asked, None, 0)
            return
        self._sums += sums.content
        if len(self._sums) >= self.nbytes:
            self._answer(self.asked, bytes(self._sums), sums.given_up)

    def _answer(self, serial: int, sums: bytes | None, given_up: int) -> None:
        self.out.append(i.AnswerSums(serial, sums, given_up))
        self.asked = None
