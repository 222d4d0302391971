"""A want that was looked up in the plan, with the bytes of its samples: what reading ahead hands to building.

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
    from shared.wire.layout import BucketShape, Layout

__all__ = ["Prepared", "UnreadError", "unwatched"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A want that was looked up in the plan, and the bytes of its samples."""

    planned: PlannedBatch
    #: No samples where the want is for an empty batch.
    samples: NDArray[np.int64]
    shape: BucketShape
    layout: Layout
    #: Bytes of the payload between tensors.
    gaps: tuple[slice, ...]
    #: The bytes of each sample, None for a culprit; None instead of all if the source writes the whole batch at once.
    raw: Sequence[bytes | None] | None
    read_us: int
    #: Samples that the feature cache has; their bytes were not read.
    kept: Mapping[int, bytearray]
    #: Rows of culprits in a batch that is written at once.
    culprits: Sequence[int] = ()
    #: What other jobs know the batch by; empty if it is not shared.
    key: bytes = b""
    #: Whether its samples were read; not if the batch seemed to be there as a whole.
    is_read: bool = True


class UnreadError(Exception):
    """The samples have to be read after all; `read` does, for a thread that reads ahead."""

    def __init__(self, read: Callable[[Callable[[int], None]], Prepared]) -> None:
        super().__init__("the samples were not read")
        self.read = read


def unwatched(_sample: int) -> None:
    """For callers that need not know which sample is being read."""
