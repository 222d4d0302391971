"""The plan of a stream whose batches are made whole: batch n is element n div S of shard n mod S, of S shards.

Rules: pure; the number of batches depends neither on who makes them nor on how long a shard turns out to be: each epoch
has room for `elements` of every shard, in whole groups, and places that a shard does not fill are empty batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loader_server.planning.epoch import EpochPlan, PlannedBatch
from loader_server.planning.plan import Plan
from shared.hashing import fingerprint

if TYPE_CHECKING:
    from shared.wire.batch_layout import BucketShape

__all__ = ["OrdinalEpoch", "OrdinalPlan"]

#: Version of the plan in its digest: raise it whenever the same shards would give other batches than before.
_VERSION = 1


class OrdinalEpoch(EpochPlan):
    """Batches of any epoch: the number of a batch determines which shard makes it."""

    def __init__(self, batches: int, group: int, shape: BucketShape) -> None:
        self.batches = batches
        self.group = group
        self._largest = shape

    def batch(self, number: int) -> PlannedBatch:
        """Return what is known of a batch before it is made.

        Its shape is the largest possible one; its only sample is its number.
        """
        return PlannedBatch(samples=np.array([number]), bucket=0, shape=self._largest)


class OrdinalPlan(Plan):
    """Plan with room for `elements` of each of `producers` shards, none larger than `largest`."""

    def __init__(self, *, producers: int, elements: int, largest: BucketShape, made_from: tuple[str, ...]) -> None:
        self.buckets = (largest,)
        self.dropped = {}
        self.digest = fingerprint(f"ordinals {_VERSION}", f"{producers} {elements}", *made_from)
        self._batches = producers * elements

    def most_batches(self, group: int) -> int:
        """Return the number of batches, the same in all epochs."""
        return -(-self._batches // group) * group

    def objection(self, group: int) -> None:
        """Return None: any group will do, because its last batches may be empty."""
        return

    def epoch(self, epoch: int, group: int) -> OrdinalEpoch:
        """Return the batches of one epoch, in groups of `group`."""
        return OrdinalEpoch(self.most_batches(group), group, self.buckets[0])
