"""One pass over a feed, as users hold it: `Feed.open` returns it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from typing_extensions import Self

from trainer_client.session.call_checks import only_here

if TYPE_CHECKING:
    from types import TracebackType

    from trainer_client.batch import Batch
    from trainer_client.session.batch_iterator import BatchIterator

__all__ = ["Reading"]


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

    def __init__(self, batches: BatchIterator, replicas: int) -> None:
        self._batches = batches
        self._replicas = replicas

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)

    @property
    def rounds(self) -> int:
        """Return how many rounds were taken so far.

        Returns:
            A number from 0 on.

        Example:
            >>> reading = feed.open()
            >>> batch = next(reading)
            >>> reading.rounds
            1
        """
        return self._batches.taken // self._replicas

    def close(self) -> None:
        """Stop early; the cursor stays where it is.

        Example:
            >>> reading = feed.open()
            >>> batch = next(reading)
            >>> reading.close()
            >>> feed.number
            0
        """
        self._batches.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled."""
        raise only_here("a reading")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
