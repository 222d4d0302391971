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
        able = [worker for worker in live if worker.incarnation not in entry.refused]
        if not able:
            return None
        names = self._of_epoch(entry.batch.position.epoch)
        ordinal, shard = divmod(entry.batch.number, self._producers)
        # A young shard costs little to make again, so new workers get their part of the shards only then.
        if ordinal < _YOUNG or shard not in names:
            names[shard] = self._shares(live)[shard]
        holder = next((worker for worker in able if worker.name == names[shard]), None)
        if holder is None:
            holder = _preferred(shard, able)
            if not entry.refused:  # the former one is gone, rather than refusing just this batch
                names[shard] = holder.name
        # A busy holder is waited for: any other worker would have to make the shard from its beginning.
        is_free = holder.incarnation not in entry.askers and now_s >= holder.busy_until_s
        return holder if is_free else None

    def _of_epoch(self, epoch: int) -> dict[int, str]:
        if epoch not in self._names and len(self._names) >= _EPOCHS_KEPT:
            del self._names[next(iter(self._names))]
        return self._names.setdefault(epoch, {})

    def _shares(self, live: Sequence[KnownWorker]) -> dict[int, str]:
        names = frozenset(worker.name for worker in live)
        if names != self._shared_among:
            self._shared_among, self._shared = names, _shared_out(self._producers, live)
        return self._shared


def _shared_out(producers: int, live: Sequence[KnownWorker]) -> dict[int, str]:
    """Return a worker's name for each shard: its rendezvous choice among workers that have room for more shards."""
    # Rounded up, so that every shard finds a worker with room.
    share, counts = -(-producers // len(live)), {worker.name: 0 for worker in live}
    names = {}
    for shard in range(producers):
        # By hash alone one worker may get several shards and another none, and an epoch is as slow as the former.
        with_room = [worker for worker in live if counts[worker.name] < share] or live
        names[shard] = _preferred(shard, with_room).name
        counts[names[shard]] += 1
    return names


def _preferred(shard: int, workers: Sequence[KnownWorker]) -> KnownWorker:
    """Return the worker with the highest rendezvous hash for this shard, equal in all trainers that know the same."""
    return max(workers, key=lambda worker: (key_of(shard, worker.name), worker.name))
