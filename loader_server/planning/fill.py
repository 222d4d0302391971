"""How many groups each bucket of a window makes, from the number of samples in each bucket alone.

Rules: pure, integers only, no sample is looked at, so that the batches of a window are known from its counts. What does
not fill a group of `group` batches spills into the next larger bucket; a leftover that would fill more than a whole
group there is completed with empty rows instead; what is left over in the last bucket ends there. The longest samples
of a bucket are those that spill, so bucket k takes the next `groups * group * rows` samples in order of length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["groups_needed", "taken"]


def groups_needed(counts: NDArray[np.int64], rows: NDArray[np.int64], group: int) -> NDArray[np.int64]:
    """Groups of each bucket: `counts` is [windows, buckets], `rows` [buckets] or the same shape."""
    full = np.broadcast_to(rows, counts.shape) * group
    groups = np.empty_like(counts)
    spilled = np.zeros(len(counts), np.int64)
    last = counts.shape[1] - 1
    for bucket in range(last):
        waiting = counts[:, bucket] + spilled
        groups[:, bucket], spilled = np.divmod(waiting, full[:, bucket])
        close = spilled > full[:, bucket + 1]
        groups[:, bucket] += close
        spilled[close] = 0
    groups[:, last] = -(-(counts[:, last] + spilled) // full[:, last])
    return groups


def taken(counts: NDArray[np.int64], capacity: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many samples each bucket takes, spilled ones included, if its groups hold `capacity`; [windows, buckets]."""
    sizes = np.empty_like(counts)
    spilled = np.zeros(len(counts), np.int64)
    for bucket in range(counts.shape[1]):
        waiting = counts[:, bucket] + spilled
        sizes[:, bucket] = np.minimum(waiting, capacity[:, bucket])
        spilled = waiting - sizes[:, bucket]
    return sizes
