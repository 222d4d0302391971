"""Minibatches as a consumer gets them: arrays, with epoch and number.

The arrays are views into a slot, which is returned when the last view is gone: so memory stays bounded without copying.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shared.errors import SettingsError
from shared.hashing import digest64

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from shared.wire.messages import Pushed

__all__ = ["Batch", "owned"]


class Batch(dict[str, Any]):
    """The arrays of one minibatch by key: views into the feed's buffers, which are lent again once no view is left.

    Besides the stream's own keys it has `weight` (0 in masked rows), `tag` (the sample's number; -1 in rows without a
    sample), and `<key>_length` for each padded key.

    Attributes:
        epoch: The epoch that the batch belongs to.
        number: Its number within the epoch.
        rows: How many rows hold a sample; the others are masked.
        masked: How many rows are masked because their sample could not be used.
        built_by: The name of the worker that built it, as `loader-server status` shows it.
        empty: Whether the batch only fills up a round that went past the end of its group: all of its rows are masked.

    Example:
        >>> batch = next(feed.open())
        >>> batch.epoch, batch.number, batch.rows == int((batch["tag"] >= 0).sum())
        (0, 0, True)
    """

    __slots__ = ("_digest", "_feed", "_payload", "_settle", "built_by", "empty", "epoch", "masked", "number", "rows")

    def __init__(  # noqa: PLR0913, PLR0917 - what a batch consists of
        self,
        arrays: dict[str, Any],
        payload: NDArray[np.uint8],
        header: Pushed,
        settle: Callable[..., None] | None = None,
        feed: object = None,
        built_by: str = "",
    ) -> None:
        super().__init__(arrays)
        self.built_by = built_by
        self.epoch = header.epoch
        self.number = header.number
        self.empty = header.empty
        #: Rows that hold a sample; the others are masked.
        self.rows = header.rows
        #: Rows masked because their sample could not be used.
        self.masked = header.masked
        self._digest = header.digest
        self._payload = payload
        self._settle = settle
        #: Keeps the feed alive as long as this batch: a feed closes itself once it and all its batches are gone.
        self._feed = feed

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Return None and the attributes, as a copy gets them: without the feed, so its `done` raises SettingsError."""
        state = {name: getattr(self, name) for name in self.__slots__}
        return None, state | {"_settle": None, "_feed": None}

    def done(self) -> None:
        """Report the batch as trained on, in queue mode; asking for the next one does the same.

        Only the first report of a batch counts.

        Raises:
            SettingsError: The stream is in lockstep, where `Feed.trained` does this, or the batch was pickled.

        Example:
            >>> with trainer_client.connect(endpoint, stream="leased") as leased:
            ...     batch = next(leased.open())
            ...     batch.done()
        """
        self._say(done=True)

    def failed(self, reason: str | None = None) -> None:
        """Report that training on the batch failed, in queue mode: it is leased again, unless that was its last try.

        Only the first report of a batch counts.

        Args:
            reason: Why, for people; its first 200 characters are reported. The loaders' log, `loader-server status` and
                the list of batches that were given up show it, and count failures by it.

        Raises:
            SettingsError: The stream is in lockstep, where each batch comes once, or the batch was pickled.

        Example:
            >>> with trainer_client.connect(endpoint, stream="leased") as leased:
            ...     batch = next(leased.open())
            ...     batch.failed("the loss is not finite")
        """
        self._say(done=False, reason=reason or "")

    def give_back(self) -> None:
        """Return the batch untrained, through no fault of its own, in queue mode: it is leased again.

        Only the first report of a batch counts.

        Raises:
            SettingsError: The stream is in lockstep, where `Feed.trained` is simply not called, or it was pickled.

        Example:
            >>> with trainer_client.connect(endpoint, stream="leased") as leased:
            ...     batch = next(leased.open())
            ...     batch.give_back()
        """
        self._say(done=False, costs_try=False)

    def _say(self, **outcome: bool | str) -> None:
        if self._settle is None:
            raise SettingsError(
                expected="a batch of a stream in queue mode",
                got="one of a stream in lockstep",
                where=f"batch {self.number} of epoch {self.epoch}",
                remedy='Call feed.trained() instead, or write mode = "queue" in the stream\'s table of the job file.',
            )
        self._settle(**outcome)

    @property
    def digest(self) -> int:
        """The xxh3-64 hash of all its bytes: the worker's, or computed now if the worker was not asked for it.

        Returns:
            The same number for the same batch, from any worker.

        Example:
            >>> first, again = next(feed.open()), next(feed.open())
            >>> first.digest == again.digest
            True
        """
        return self._digest or digest64(self._payload.data)


class _Owner:
    """Keeps a batch alive while there are views of its bytes; after the last one it dies, and its slot is returned."""

    __slots__ = ("__array_interface__", "_keeps")

    def __init__(self, data: NDArray[np.uint8], item: object) -> None:
        # numpy makes an array of any object with this interface, and keeps the object as the base of all its views.
        self.__array_interface__ = data.__array_interface__
        self._keeps = (data, item)  # the data keep the memory map alive


def owned(data: NDArray[np.uint8], item: object) -> NDArray[np.uint8]:
    """Return an array of the same bytes that keeps `item` alive as long as any view of it.

    `item` dies in the thread that drops the last view.
    """
    return np.asarray(_Owner(data, item))
