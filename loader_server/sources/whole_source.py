"""The interface of sources whose batches are made whole, by number, in a user's own code.

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

    from shared.wire.batch_layout import BucketShape, Field

__all__ = ["WholeSource"]


class WholeSource(Source):
    """A source of whole batches; `fields` are a batch's values, and values that vary are flat with a padded axis."""

    apart: ClassVar[bool] = True
    measurable: ClassVar[bool] = False
    #: Whether a trainer sends the code that makes the batches, so that there may be nothing to open yet.
    sent: ClassVar[bool] = False
    #: Elements of each shard. If a job has several epochs, a shard that yields more is refused, and one that yields
    #: fewer leaves places empty.
    elements: int
    #: The shape that any batch fits into: one row, as long as the longest value may be.
    largest: BucketShape

    @property
    def producers(self) -> int:
        """Return the number of shards; raise NotImplementedError here: each such source overrides it."""
        raise NotImplementedError

    @property
    def base_fields(self) -> tuple[Field, ...]:
        """Return the fields of the data set below, which trainers have to know as well; none if there is none."""
        return ()

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Raise NotImplementedError: there are no samples to decode."""
        raise NotImplementedError

    def begin_making(self) -> None:
        """Import what making batches needs; a worker calls this before it reports that it is ready.

        The default does nothing.
        """

    def make_batch(self, epoch: int, number: int, begin: Callable[[int], None]) -> Mapping[str, NDArray[Any]] | None:
        """Return the values of a batch by the keys of `fields`, or None if its shard has ended.

        `begin` is called with the number of each batch that is made on the way there. Any thread may call this. Each
        such source overrides this, which raises NotImplementedError here.
        """
        raise NotImplementedError
