"""A want that was looked up in the plan, with the bytes of its samples: what readers hand to the building thread.

Rules: pure data; who reads and who builds is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.planning import PlannedBatch
    from shared.wire.batch_layout import BucketShape, Layout

__all__ = ["Prepared", "UnreadError", "unwatched"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A want that was looked up in the plan, and the bytes of its samples."""

    planned: PlannedBatch
    #: The sample numbers; none if an empty batch is wanted.
    samples: NDArray[np.int64]
    shape: BucketShape
    layout: Layout
    #: Byte ranges of the payload between tensors.
    gaps: tuple[slice, ...]
    #: The bytes of each sample, None for a culprit and b"" for a cache hit; None as a whole if the source writes the
    #: batch at once.
    raw: Sequence[bytes | None] | None
    read_us: int
    #: Feature cache hits by sample, which were not read.
    kept: Mapping[int, bytearray]
    #: Rows of culprits in a batch that is written at once.
    culprits: Sequence[int] = ()
    #: Key under which other jobs find the batch on the shelf; empty if it is not shared.
    key: bytes = b""
    #: Whether its samples were read; False if the whole batch seemed to be on the shelf.
    is_read: bool = True


class UnreadError(Exception):
    """The samples turned out to be needed but were not read; `read` reads them in a reader thread."""

    def __init__(self, read: Callable[[Callable[[int], None]], Prepared]) -> None:
        super().__init__("the samples were not read")
        self.read = read


def unwatched(_sample: int) -> None:
    """Ignore the sample: the `begin` of callers that need not know which sample is being read."""
