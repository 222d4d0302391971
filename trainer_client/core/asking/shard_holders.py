"""The worker that makes each shard, where batches are made whole: batch n comes from shard n mod `producers`.

Rules: pure. A shard is made in order, from its beginning, so one worker is asked for its batches as long as it lives;
any other would have to make everything again up to the requested batch. The choice depends only on the names of the
live workers, so all trainers choose the same one. Workers that come while shards are young get their part of them;
later only the shards of a lost worker move, and they return to its successor with the next epoch. A batch that a worker
has refused is asked of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.hashing import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_client.core.upcoming import Entry
    from trainer_client.core.workers.known_workers import KnownWorker

__all__ = ["ShardHolders"]

#: How many epochs' holders are remembered: the one being read, and those ahead of it.
_EPOCHS_KEPT = 4
#: The first elements of a shard, which are quickly made again: until then it may move to a new worker.
_YOUNG = 8


class ShardHolders:
    """The worker of each shard of each epoch, chosen when it is first needed, and again whenever it is gone."""

    def __init__(self, producers: int) -> None:
        self._producers = producers
        self._names: dict[int, dict[int, str]] = {}
        #: The names of the live workers, and how shards are divided among them: a cache of the last division.
        self._shared_among: frozenset[str] = frozenset()
        self._shared: dict[int, str] = {}

    def holder(self, entry: Entry, live: Sequence[KnownWorker], now_s: float) -> KnownWorker | None:
        """Return the worker to ask for this batch; None if it is busy or holds it already, or if all refused it."""
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
    """Return a worker's name for each shard: its rendezvous choice among workers that have room for more shards."""
    # Rounded up, so that every shard finds a worker with room.
    share, given = -(-producers // len(live)), {one.name: 0 for one in live}
    named = {}
    for shard in range(producers):
        open_ = [one for one in live if given[one.name] < share] or live
        named[shard] = _preferred(shard, open_).name
        given[named[shard]] += 1
    return named


def _preferred(shard: int, workers: Sequence[KnownWorker]) -> KnownWorker:
    """Return the worker with the highest rendezvous hash for this shard, equal in all trainers that know the same."""
    return max(workers, key=lambda one: (key_of(shard, one.name), one.name))
