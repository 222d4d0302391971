"""Stamps of what happens to batches, in a ring of memory that is allocated ahead.

Rules: pure, as the clock comes in as an argument. A stamp is one row of bytes, written in one step into memory that
was allocated before. The ring holds the last minute or the last mebibyte of rows, whichever is more, up to
`MOST_BYTES`; beyond that the oldest rows are overwritten, and a reader can tell how many. Several threads may stamp
without a lock: if two of them reach the end of the ring in the same instant one stamp may be lost, and nothing else.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shared.wire.message_parts import Ticket

__all__ = ["MOST_BYTES", "ROW", "BatchKey", "RingPage", "StampKind", "StampRing", "bare_key", "lending_of", "stamp_key"]

#: One stamp. `peer` is the incarnation of the process on the other side, 0 if none is known; `lending` names a slot's
#: lending (see `lending_of`); `extra` depends on the kind.
ROW = np.dtype(
    [
        ("time_ns", "<i8"),
        ("extra", "<i8"),
        ("number", "<i8"),
        ("peer", "<u8"),
        ("lending", "<u8"),
        ("epoch", "<u4"),
        ("attempt", "<u2"),
        ("stream", "u1"),
        ("kind", "u1"),
    ]
)
_FORM = struct.Struct("<qq31sB")
_NBYTES = _FORM.size
_pack_into = _FORM.pack_into
_pack_key = struct.Struct("<qQQIHB").pack

#: Rows are kept at least this long, and those of `_LEAST_CHUNKS` chunks however old they are.
_KEEP_NS = 60 * 10**9
_CHUNK_ROWS = 2**18 // _NBYTES
_LEAST_CHUNKS = 4
#: Limit of a ring's memory, beyond which rows are overwritten that are younger.
MOST_BYTES = 32 * 2**20

#: Streams that a ring tells apart; stamps of further ones name the last.
MOST_STREAMS = 64

_GENERATION_BITS = 40


class StampKind:
    """The moments that are stamped, in the order in which a batch goes through them.

    Plain numbers, because looking up a member of an enum takes as long as writing a stamp.
    """

    #: By a trainer: the want was sent; `peer` is the worker.
    ASKED = 1
    #: By a worker: the want came in; `peer` is the trainer, in all stamps of workers.
    RECEIVED = 2
    #: By a worker: its samples are read.
    READ = 3
    #: By a worker: the building thread took it in hand.
    BEGUN = 4
    #: By a worker: decoded, transformed and laid out.
    BUILT = 5
    #: By a worker: encoded, and sealed if need be. A batch that is built into its slot is written as it is built.
    WRITTEN = 6
    #: By a worker: the answer was handed to the socket.
    PUSHED = 7
    #: By a trainer: the header was read from the socket.
    ARRIVED = 8
    #: By a trainer: it lies ready for the consumer.
    OFFERED = 9
    #: By a trainer: the consumer has it; `extra` is how many ns it had waited.
    TAKEN = 10
    #: By a trainer: the batches `number` to `extra` (excluded) count as trained on.
    TRAINED = 11
    #: By a worker: it answered without a batch (refused, failed or cancelled).
    GIVEN_UP = 12
    #: By a trainer: a Ping of this number was sent, and its Pong came. By a worker: that Ping came.
    PINGED = 20
    PONGED = 21
    PING_CAME = 22


#: The kinds by which clocks are compared.
CLOCK_KINDS = (StampKind.PINGED, StampKind.PONGED, StampKind.PING_CAME)


_GENERATIONS = (1 << _GENERATION_BITS) - 1


def lending_of(ticket: Ticket) -> int:
    """Return a number for a ticket's lending; the last 2^40 generations of each slot have different ones."""
    return ticket.slot << _GENERATION_BITS | ticket.generation & _GENERATIONS


def stamp_key(  # noqa: PLR0913, PLR0917 - the fields of a key; keywords would double the cost
    number: int, epoch: int, ticket: Ticket, attempt: int = 0, peer: int = 0, stream: int = 0
) -> bytes:
    """Return what all stamps of one lending have in common; raise struct.error if a field does not fit."""
    lending = ticket.slot << _GENERATION_BITS | ticket.generation & _GENERATIONS
    return _pack_key(number, peer, lending, epoch, attempt, stream)


def bare_key(number: int, epoch: int = 0, peer: int = 0) -> bytes:
    """Return the key of a stamp that is about no lending; raise struct.error if a field does not fit."""
    return _pack_key(number, peer, 0, epoch, 0, 0)


@dataclass(frozen=True, slots=True)
class BatchKey:
    """A batch to look for: by stream and number, in every epoch if `epoch` is None."""

    stream: str
    number: int
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class RingPage:
    """Rows of a ring, oldest first; the next page begins at row `next_row`, or is the last if that is None.

    `overwritten` counts the rows that were asked for and are gone.
    """

    rows: NDArray[np.void]
    next_row: int | None
    overwritten: int


class StampRing:
    """The stamps of one process, or of one feed in a process.

    Its memory is chunks of `chunk_rows` rows, of which at least four are kept, and at most as many as `MOST_BYTES`
    hold.
    """

    def __init__(self, *, chunk_rows: int = _CHUNK_ROWS, most_bytes: int = MOST_BYTES) -> None:
        self._chunk_nbytes = chunk_rows * _NBYTES
        self._most_chunks = max(_LEAST_CHUNKS, most_bytes // self._chunk_nbytes)
        #: Full chunks, oldest first; how many rows came before them; the chunk in use, and where its next row begins.
        self._full: deque[bytearray] = deque()
        self._before = 0
        self._chunk = bytearray(self._chunk_nbytes)
        self._at = 0
        self._streams: dict[str, int] = {}

    @property
    def streams(self) -> tuple[str, ...]:
        """Return the streams' names in the order of their numbers."""
        return tuple(self._streams)

    def stream_number(self, name: str) -> int:
        """Return the number of a stream, given out at its first use; streams beyond the 64th share the last one."""
        number = self._streams.get(name)
        if number is None:
            number = len(self._streams)
            if number >= MOST_STREAMS:
                return MOST_STREAMS - 1
            self._streams[name] = number
        return number

    def stamp(self, kind: int, time_ns: int, key: bytes, extra: int = 0) -> None:
        """Write one row; raise struct.error if a field does not fit."""
        # No call stands between these lines and the writing, so CPython switches no thread there.
        at = self._at
        self._at = at + _NBYTES
        if at >= self._chunk_nbytes:
            at = self._turn(time_ns)
        _pack_into(self._chunk, at, time_ns, extra, key, kind)

    def _turn(self, time_ns: int) -> int:
        """Begin another chunk and return a row's place in it: new memory if the oldest rows are young, else theirs.

        If another thread has begun one just now, the row is in that one.
        """
        if self._at <= self._chunk_nbytes:  # another thread was here first
            at = self._at
            self._at = at + _NBYTES
            return at if at < self._chunk_nbytes else 0
        self._full.append(self._chunk)
        may_reuse = len(self._full) > _LEAST_CHUNKS
        last_ns = int.from_bytes(self._full[0][-_NBYTES:][:8], "little")
        if may_reuse and (time_ns - last_ns > _KEEP_NS or len(self._full) >= self._most_chunks):
            self._chunk = self._full.popleft()
            self._before += self._chunk_nbytes // _NBYTES
        else:
            self._chunk = bytearray(self._chunk_nbytes)
        self._at = _NBYTES
        return 0

    @property
    def rows(self) -> int:
        """Return how many rows the ring holds."""
        return (len(self._full) * self._chunk_nbytes + min(self._at, self._chunk_nbytes)) // _NBYTES

    @property
    def nbytes(self) -> int:
        """Return how much memory the ring has, in bytes."""
        return (len(self._full) + 1) * self._chunk_nbytes

    @property
    def written(self) -> int:
        """Return how many rows were ever written."""
        return self._before + self.rows

    def oldest_ns(self) -> int:
        """Return the time of the oldest row; 0 if the ring is empty."""
        oldest = self._full[0] if self._full else self._chunk
        return int.from_bytes(oldest[:8], "little") if self.rows else 0

    def page(self, first_row: int, most_rows: int, *, since_ns: int = 0, key: BatchKey | None = None) -> RingPage:
        """Return up to `most_rows` rows from the row of this number on that are not older than `since_ns`.

        With a `key`, only rows about that batch, and the last 64 by which clocks are compared; none if the ring does
        not know its stream. A copy, in the order in which they were written; empty if there is none.
        """
        oldest = self._before
        found, numbers = [], []
        for place, rows in enumerate(self._views()):
            begin = max(0, first_row - oldest - place * (self._chunk_nbytes // _NBYTES))
            # A chunk of older rows is passed over as a whole: whole rings are read page by page, in a process at work.
            if begin >= len(rows) or rows["time_ns"][-1] < since_ns:
                continue
            places = np.flatnonzero(self._are_wanted(rows[begin:], since_ns, key)) + begin
            found.append(rows[places])
            numbers.append(places + oldest + place * (self._chunk_nbytes // _NBYTES))
            if key is None and sum(map(len, found)) > most_rows:
                break
        return _page(found, numbers, most_rows, max(0, oldest - first_row), has_key=key is not None)

    def _views(self) -> Iterator[NDArray[np.void]]:
        """Yield the rows of each chunk, oldest first, as views of the ring's own memory."""
        at = self._at
        for chunk in [*self._full, self._chunk]:
            nbytes = min(at, self._chunk_nbytes) if chunk is self._chunk else self._chunk_nbytes
            yield np.frombuffer(chunk, ROW, nbytes // _NBYTES)

    def _are_wanted(self, rows: NDArray[np.void], since_ns: int, key: BatchKey | None) -> NDArray[np.bool_]:
        """Return which rows are not too old and, with a key, of its batch or clocks; none if its stream is unknown."""
        wanted: NDArray[np.bool_] = rows["time_ns"] >= since_ns
        if key is None:
            return wanted
        stream = self._streams.get(key.stream)
        if stream is None:
            return np.zeros(len(rows), np.bool_)
        is_it = rows["number"] == key.number
        is_it |= (rows["kind"] == StampKind.TRAINED) & (rows["number"] <= key.number) & (key.number < rows["extra"])
        is_it &= rows["stream"] == stream
        if key.epoch is not None:
            is_it &= rows["epoch"] == key.epoch
        chosen: NDArray[np.bool_] = wanted & (is_it | np.isin(rows["kind"], CLOCK_KINDS))
        return chosen


def _page(
    found: list[NDArray[np.void]], numbers: list[NDArray[np.int64]], most_rows: int, overwritten: int, *, has_key: bool
) -> RingPage:
    """Return the page of these rows, with their numbers; of many about clocks only the last, if they are beside."""
    rows = np.concatenate(found) if found else np.zeros(0, ROW)
    places = np.concatenate(numbers) if numbers else np.zeros(0, np.int64)
    if has_key:
        clocks = np.isin(rows["kind"], CLOCK_KINDS)
        kept = ~clocks | (np.cumsum(clocks[::-1])[::-1] <= _CLOCKS_KEPT)
        rows, places = rows[kept], places[kept]
    return RingPage(rows[:most_rows], int(places[most_rows]) if len(rows) > most_rows else None, overwritten)


#: Rows about clocks that go with those of one batch.
_CLOCKS_KEPT = 64
