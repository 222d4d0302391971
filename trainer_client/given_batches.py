"""Batches for frameworks whose loops save the state of their data.

Rules: a batch counts as trained on once the next one is asked for, or once the state is asked for, which a loop does
after its step; both in lockstep and in queue mode. Knows no framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trainer_client.batch import Batch
    from trainer_client.feed import Feed

__all__ = ["GivenBatches"]


class GivenBatches:
    """Batches of one feed with arrays of a framework, from the cursor to the end of its epoch.

    Making it raises SettingsError if the feed has several ranks.
    """

    def __init__(self, feed: Feed, convert: Callable[[Any], Any], where: str) -> None:
        replicas = feed._session.ranks.replicas
        require(
            replicas == 1,
            expected="a feed of one rank",
            got=f"one of {replicas}",
            where=where,
            remedy="Leave replicas out: a process is one rank, however many devices share its batches.",
        )
        self._feed = feed
        self._convert = convert
        self._is_in_hand = False

    def __iter__(self) -> Iterator[Batch]:
        self._is_in_hand = False  # an abandoned loop's last batch does not count, and comes again
        for batch in self._feed:
            batch.update({key: self._convert(array) for key, array in batch.items()})
            self._is_in_hand = True
            yield batch
            # The loop asks for the next batch, so its step on this one is over, unless `state` has counted it already.
            self._count()

    def _count(self) -> None:
        """Count the batch in hand as trained on, if there is one.

        Raise LostError if no worker says how long the epoch is, and the error of a feed that failed or was closed.
        """
        if self._is_in_hand:
            self._is_in_hand = False
            self._feed.trained()

    def state(self) -> dict[str, Any]:
        """Return the state of the feed after the batch that was given last, which counts as trained on by this call.

        Raise LostError if no server answers, and the error of a feed that failed or was closed.
        """
        self._count()
        return self._feed.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to what `state` returned, in queue mode with all trainers; the batch in hand does not count.

        Raise SettingsError if it is something else or of another job, stream or plan, RefusedError if other ranks stand
        at another cursor, LostError if the coordinator does not answer, and the error of a feed that failed or was
        closed.
        """
        self._is_in_hand = False
        self._feed.restore(state)
