"""One pass over a feed, from where it was opened to the end of that epoch; users hold it as a `Reading`.

Rules: taking batches does not move the cursor. Each batch is counted and timed: how long the consumer waited for it,
and how long it took to make arrays of it. Where rows carry state, a pass that begins in mid-epoch begins with a reset.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn

from typing_extensions import Self

from shared.wire.batch_layout import RESET
from trainer_client.network.outbox import Reader
from trainer_client.session.call_checks import only_here

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from trainer_client.batch import Batch
    from trainer_client.core.upcoming import Position
    from trainer_client.network.outbox import OfferedBatch
    from trainer_client.network.receiver import Receiver
    from trainer_client.session.batch_maker import BatchMaker
    from trainer_client.session.epoch_account import Accounts
    from trainer_client.session.trained_cursor import FeedCursor

__all__ = ["BatchIterator", "Reading"]


class Reading:
    """One pass over a feed, from where it was opened to the end of that epoch; `Feed.open` makes one.

    An iterator over batches that works in `with`. Asking for the next batch raises `LostError` if servers are lost,
    `EndedError` if the job was ended, `WorldChangedError` in an elastic run whose trainers changed, and `ClosedError`
    if the feed was closed.

    Example:
        >>> with feed.open() as reading:
        ...     numbers = [batch.number for batch in reading]
        >>> numbers == list(range(reading.rounds))
        True
    """

    def __init__(
        self,
        receiver: Receiver,
        maker: BatchMaker,
        accounts: Accounts,
        start: Position,
        cursor: FeedCursor,
    ) -> None:
        self._cursor = cursor
        self._receiver = receiver
        self._maker = maker
        self._accounts = accounts
        self._reader = Reader(start)
        self._ranks = receiver.settings.core.ranks
        self._carries = RESET in receiver.spec.fields

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        began_s = time.perf_counter()
        offered = self._take()
        taken_s = time.perf_counter()
        batch = self._maker.make(offered, self._cursor.reporter(offered.batch))
        self._forget_state(batch.get(RESET.key), 1)
        self._account([offered], batch, began_s, taken_s)
        return batch

    @property
    def rounds(self) -> int:
        """Return how many whole rounds were taken so far.

        Returns:
            A number from 0 on. In queue mode batches that were skipped, because their leases were lost, count as well.

        Example:
            >>> reading = feed.open()
            >>> batch = next(reading)
            >>> reading.rounds
            1
        """
        return self._reader.taken // self._ranks.replicas

    def close(self) -> None:
        """Stop early; the cursor stays where it is, and asking for another batch raises `ClosedError`.

        Example:
            >>> reading = feed.open()
            >>> batch = next(reading)
            >>> reading.close()
            >>> feed.number
            0
        """
        self._receiver.outbox.leave(self._reader)

    def __reduce__(self) -> NoReturn:
        """Raise SettingsError: a reading stays in the process that connected it, and cannot be pickled."""
        raise only_here("a reading")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> OfferedBatch:
        while (offered := self._receiver.outbox.take(self._reader)) is not None:
            if self._cursor.take(offered):  # a batch whose lease was lost is skipped
                return offered
        # In queue mode an ended job ends readers like an epoch; only this error tells the two apart.
        self._cursor.refuse_ended()
        raise StopIteration

    def _forget_state(self, resets: Any, taken: int) -> None:
        """Set `reset` in the first batch for each rank, of a pass that starts in mid-epoch, if state is carried.

        `taken` counts the batches of which `resets` are the rows. Later batches, and passes from an epoch's beginning,
        are left as they are.
        """
        # The model has no state from the batches before, which only the reader knows: a batch has the same bytes for
        # all.
        stateless = self._ranks.replicas - (self._reader.taken - taken)
        if self._carries and self._reader.start.number and stateless > 0 and resets is not None:
            resets.reshape(taken, -1)[:stateless] = True

    def _account(
        self, offered_batches: Sequence[OfferedBatch], arrays: Mapping[str, Any], began_s: float, taken_s: float
    ) -> None:
        conversion_s = time.perf_counter() - taken_s
        for place, offered in enumerate(offered_batches):
            self._receiver.outbox.note_taken(offered, taken_s, 0.0 if place else taken_s - began_s)
        headers = [offered.header for offered in offered_batches]
        self._accounts.count_read(headers, arrays, at_s=taken_s, wait_s=taken_s - began_s, conversion_s=conversion_s)
        if self._accounts.counts.step_wait_s is None:  # waits that a training loop reports take precedence
            self._receiver.standing.waited_s = self._accounts.counts.wait_s
            self._receiver.standing.begin_step()


class BatchIterator(Reading):
    """A reading with what frameworks need of it; `start` is where it began."""

    @property
    def start(self) -> Position:
        """Return the position (epoch, number and group) where the reading began."""
        return self._reader.start

    @property
    def taken(self) -> int:
        """Return how many batches were taken so far, of all our ranks together, skipped ones included."""
        return self._reader.taken

    def take_stacked(self, keys: Collection[str], most: int) -> dict[str, NDArray[np.generic]]:
        """Wait for the next batch; return its arrays of these keys, stacked with those of batches of the same shape.

        Up to `most` batches are stacked along a new first axis, those that have arrived and follow directly. Handing an
        array to a framework has a fixed cost, so a few large ones are cheaper than many small ones. The keys that the
        accounts need are included; keys that batches lack are left out. In queue mode, batches whose leases were lost
        are skipped.

        Raise StopIteration at the end, EndedError if the job was ended, ClosedError if feed or reading is closed, the
        error that stopped the feed, and errors of `BatchMaker.stack`.
        """
        began_s = time.perf_counter()
        first = self._take()
        taken_s = time.perf_counter()
        alike = self._receiver.outbox.take_alike(self._reader, first, most - 1)
        offered_batches = [first, *filter(self._cursor.take, alike)]
        arrays = self._maker.stack(offered_batches, {*keys, *self._accounts.keys})
        self._forget_state(arrays.get(RESET.key), len(offered_batches))
        self._account(offered_batches, arrays, began_s, taken_s)
        return arrays
