"""The number of groups that each bucket of a window makes, from the number of samples in each bucket alone.

Rules: pure, integers only; no sample is looked at, so a window's batches are known from its counts. Samples that do not
fill a group of `group` batches spill into the next larger bucket. A leftover that would fill more than a whole group
there is completed with empty rows instead, and so is the leftover of the last bucket. With sub-buckets by a second key,
a bucket spills into the next of its sub-buckets, and the last of these into the last one of the next bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["groups_needed", "samples_taken", "spills_into"]


def spills_into(bucket: int, subs: int) -> int:
    """Return the bucket that takes another's leftovers: the next sub-bucket, or the largest of the next bucket."""
    return bucket + 1 if (bucket + 1) % subs else bucket + subs


def groups_needed(
    counts: NDArray[np.int64], rows: NDArray[np.int64], group: int | NDArray[np.int64], subs: int = 1
) -> NDArray[np.int64]:
    """Return the groups that each bucket makes: `counts` is [windows, buckets], `rows` [buckets] or the same shape.

    `group` may differ for each row of counts: [windows, 1].
    """
    full = np.broadcast_to(rows, counts.shape) * group
    groups = np.empty_like(counts)
    waiting = counts.copy()
    last = counts.shape[1] - 1
    # All windows at once, but one bucket after the other: each one's leftovers add to the next one's samples.
    for bucket in range(last):
        larger = spills_into(bucket, subs)
        groups[:, bucket], left = np.divmod(waiting[:, bucket], full[:, bucket])
        # This leftover would overfill a whole group of the larger bucket, so complete it with empty rows here.
        close = left > full[:, larger]
        groups[:, bucket] += close
        waiting[:, larger] += np.where(close, 0, left)
    groups[:, last] = -(-waiting[:, last] // full[:, last])
    return groups


def samples_taken(counts: NDArray[np.int64], capacity: NDArray[np.int64], subs: int = 1) -> NDArray[np.int64]:
    """Return how many samples each bucket takes, [windows, buckets], if its groups hold `capacity`.

    Samples above the capacity spill into the larger bucket, and count there; the last bucket takes all that it gets.
    """
    waiting: NDArray[np.int64] = counts.copy()
    for bucket in range(counts.shape[1] - 1):
        left = np.maximum(waiting[:, bucket] - capacity[:, bucket], 0)
        waiting[:, bucket] -= left
        waiting[:, spills_into(bucket, subs)] += left
    return waiting
