"""The door for sources whose batches are made whole, by number, in code of the user's own.

Such a source has no samples to batch: its element n is a batch. It comes from `producers` shards, each of which is made
in order from its beginning: batch n is element n div S of shard n mod S, so what a batch holds does not depend on how
many workers there are. Each element has its own shapes. `survey` and `probe` count the elements of epoch 0 while an
index is made, one piece a shard. Rules: only a worker makes batches; nothing else here runs or imports the user's code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from loader_server.sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from shared.wire.layout import BucketShape, Field

__all__ = ["WholeSource"]


class WholeSource(Source):
    """A source of whole batches; `fields` are the values of one, and those that vary are flat behind a padded axis."""

    apart: ClassVar[bool] = True
    measurable: ClassVar[bool] = False
    #: Whether a trainer sends what makes them, so that there may be nothing to open yet.
    sent: ClassVar[bool] = False
    #: Where a job has several epochs, more elements of a shard than that are refused, and fewer leave places empty.
    elements: int
    #: One row, and as long as any value may be.
    largest: BucketShape

    @property
    def producers(self) -> int:
        """How many shards there are."""
        raise NotImplementedError

    @property
    def base_fields(self) -> tuple[Field, ...]:
        """What a sample of the data set below holds, which trainers have to know as well."""
        return ()

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Nobody asks: there are no samples."""
        raise NotImplementedError

    def begin_making(self) -> None:
        """Import what making takes: a worker calls this before it says that it is ready."""

    def make_batch(self, epoch: int, number: int, begin: Callable[[int], None]) -> Mapping[str, NDArray[Any]] | None:
        """The values of a batch, by the keys of `fields`; None if its shard has ended. `begin` is called with the
        number of each batch that is made on the way there. Any thread may call it.
        """
        raise NotImplementedError
