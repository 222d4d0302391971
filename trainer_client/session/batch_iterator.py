"""One pass over a feed, from where it was opened to the end of that epoch.

Rules: taking batches does not move the cursor. Each batch is counted and timed: how long the consumer waited for it,
and how long it took to make arrays of it. Where rows carry state, a pass that begins in mid-epoch begins with a reset.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from shared.wire.batch_layout import RESET
from trainer_client.network.outbox import Reader
from trainer_client.session.epoch_account import ReadTimes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from trainer_client.batch import Batch
    from trainer_client.core.upcoming import Position
    from trainer_client.network.outbox import Item
    from trainer_client.network.receiver import Receiver
    from trainer_client.session.batch_maker import BatchMaker
    from trainer_client.session.epoch_account import Accounts
    from trainer_client.session.lease_account import LeaseAccount

__all__ = ["BatchIterator"]


class BatchIterator:
    """Iterator over the batches from `start` to the end of its epoch."""

    def __init__(
        self,
        receiver: Receiver,
        maker: BatchMaker,
        accounts: Accounts,
        start: Position,
        leases: LeaseAccount | None = None,
    ) -> None:
        self.start = start
        self._leases = leases
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
        item = self._take()
        taken_s = time.perf_counter()
        batch = self._maker.make(item, self._leases)
        self._forget_state(batch.get(RESET.key), 1)
        self._account([item], batch, began_s, taken_s)
        return batch

    def take_stacked(self, keys: Collection[str], most: int) -> dict[str, NDArray[np.generic]]:
        """Wait for the next batch; return its arrays of these keys, stacked with those of batches of the same shape.

        Up to `most` batches are stacked along a new first axis, those that have arrived and follow directly. Handing an
        array to a framework has a fixed cost, so a few large ones are cheaper than many small ones. The keys that the
        accounts need are included. Raise StopIteration at the end.
        """
        began_s = time.perf_counter()
        first = self._take()
        taken_s = time.perf_counter()
        alike = self._receiver.outbox.take_alike(self._reader, first, most - 1)
        items = [first, *(item for item in alike if self._leases is None or self._leases.take(item))]
        arrays = self._maker.stack(items, {*keys, *self._accounts.keys})
        self._forget_state(arrays.get(RESET.key), len(items))
        self._account(items, arrays, began_s, taken_s)
        return arrays

    def _take(self) -> Item:
        while (item := self._receiver.outbox.take(self._reader)) is not None:
            if self._leases is None or self._leases.take(item):  # a batch whose lease was lost is skipped
                return item
        # In queue mode an ended job ends readers like an epoch; only this error tells the two apart.
        if self._leases is not None and self._receiver.outbox.ended is not None:
            raise self._receiver.outbox.ended
        raise StopIteration

    def _forget_state(self, resets: Any, taken: int) -> None:
        """Set `reset` in the first batches of a pass that starts in mid-epoch, one for each rank, if state is carried.

        The model has no state from the batches before, which only the reader knows: a batch has the same bytes for all.
        """
        new = self._ranks.replicas - (self._reader.taken - taken)
        if self._carries and self.start.number and new > 0 and resets is not None:
            resets.reshape(taken, -1)[:new] = True

    def _account(self, items: Sequence[Item], arrays: Mapping[str, Any], began_s: float, taken_s: float) -> None:
        conversion_s = time.perf_counter() - taken_s
        times = ReadTimes(at_s=taken_s, wait_s=taken_s - began_s, conversion_s=conversion_s)
        self._accounts.count_read([item.header for item in items], arrays, times)
        if self._accounts.counts.step_wait_s is None:  # waits that a training loop reports take precedence
            self._receiver.standing.waited_s = self._accounts.counts.wait_s

    @property
    def taken(self) -> int:
        """Return how many batches were taken so far."""
        return self._reader.taken

    def close(self) -> None:
        """Stop early; the cursor stays where it is."""
        self._receiver.outbox.leave(self._reader)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
