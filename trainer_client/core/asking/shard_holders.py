"""Which worker makes the batches of a shard, where batches are made whole: batch n by shard n mod `producers`.

Rules: pure. A shard is made in order, from its beginning, so one worker is asked for its batches as long as it is
there; any other would have to make everything again up to the batch that is asked for. The choice follows from the
names of the workers that are there, so all trainers ask the same one. Workers that come while shards are young get
their share of them; later only the shards of a lost worker move, and they return to its successor with the next epoch.
A batch that a worker has refused is asked of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.hashing import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_client.core.upcoming import Entry
    from trainer_client.core.workers.known_workers import KnownWorker

__all__ = ["ShardHolders"]

#: Epochs whose holders are remembered: the one being read, and those ahead of it.
_EPOCHS_KEPT = 4
#: While a shard has at most this many elements, which are quickly made again, it may still move to a newcomer.
_YOUNG = 8


class ShardHolders:
    """The worker of each shard of each epoch, chosen when one is first needed, and again whenever it is gone."""

    def __init__(self, producers: int) -> None:
        self._producers = producers
        self._names: dict[int, dict[int, str]] = {}
        #: How shards are divided among the latest list of workers.
        self._shared_among: frozenset[str] = frozenset()
        self._shared: dict[int, str] = {}

    def holder(self, entry: Entry, live: Sequence[KnownWorker], now_s: float) -> KnownWorker | None:
        """Whom to ask for this batch now; None if that one is busy, or everyone has it or refused it."""
        able = [one for one in live if one.incarnation not in entry.refused]
        if not able:
            return None
        named = self._of_epoch(entry.batch.position.epoch)
        ordinal, shard = divmod(entry.batch.number, self._producers)
        if ordinal < _YOUNG or shard not in named:
            named[shard] = self._shares(live)[shard]
        found = next((one for one in able if one.name == named[shard]), None)
        if found is None:
            found = _preferred(shard, able)
            if not entry.refused:  # it is gone, rather than refusing just this batch
                named[shard] = found.name
        free = found.incarnation not in entry.askers and now_s >= found.busy_until_s
        return found if free else None

    def _of_epoch(self, epoch: int) -> dict[int, str]:
        if epoch not in self._names and len(self._names) >= _EPOCHS_KEPT:
            del self._names[next(iter(self._names))]
        return self._names.setdefault(epoch, {})

    def _shares(self, live: Sequence[KnownWorker]) -> dict[int, str]:
        names = frozenset(one.name for one in live)
        if names != self._shared_among:
            self._shared_among, self._shared = names, _shared_out(self._producers, live)
        return self._shared


def _shared_out(producers: int, live: Sequence[KnownWorker]) -> dict[int, str]:
    """Give each shard the worker that it prefers among those that have not had their share."""
    share, given = -(-producers // len(live)), {one.name: 0 for one in live}
    named = {}
    for shard in range(producers):
        open_ = [one for one in live if given[one.name] < share] or live
        named[shard] = _preferred(shard, open_).name
        given[named[shard]] += 1
    return named


def _preferred(shard: int, workers: Sequence[KnownWorker]) -> KnownWorker:
    """The choice by rendezvous hash: the same wherever the same workers are known."""
    return max(workers, key=lambda one: (key_of(shard, one.name), one.name))
