"""The end of a job by order: which trainers hear of it, and what is still under way.

Rules: pure. The end is announced at once and repeated in the answer to each heartbeat, because a message may be lost. A
trainer that attaches later is admitted and hears of the end too: one that comes back may still have leases to report.
In queue mode nothing more is leased. In lockstep each rank pauses and reports its round; the furthest round becomes the
last one for all ranks. Once no trainer is attached, there is nothing left to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.coordinator.events import Send
from shared.silence import GONE_AFTER
from shared.wire import messages as m
from shared.wire.message_parts import RoundPlace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from loader_server.coordinator.streams.queues import Queues
    from loader_server.coordinator.streams.stream_trainers import StreamTrainers

__all__ = ["Ending"]


class Ending:
    """State of a job's ordered end: whether it was ordered, and each stream's last round."""

    def __init__(self, streams: Mapping[str, StreamTrainers], queues: Queues, *, timeout_s: float) -> None:
        self._streams = streams
        self._queues = queues
        #: How long to wait for ranks that are not attached (they may be restarting), and the deadline that follows from
        #: it.
        self._patience_s = GONE_AFTER * timeout_s
        self._until_s = 0.0
        #: Whether trainers finish what they have leased; None while the job goes on.
        self._drains: bool | None = None
        #: By stream: the round at which each paused trainer stands, by incarnation; and the last round, once it is
        #: agreed.
        self._places: dict[str, dict[int, RoundPlace]] = {}
        self._last: dict[str, RoundPlace] = {}

    def order(self, now_s: float, *, drains: bool) -> Iterator[Send]:
        """Stop leasing, and yield the announcement of the job's end for each attached trainer.

        A later call may change `drains`, but does not move the deadline for absent ranks. Nothing is done before the
        first announcement is asked for.
        """
        if self._drains is None:
            self._until_s = now_s + self._patience_s
        self._drains = drains
        self._queues.lease_no_more()
        for stream in self._streams:
            yield from self._announce(stream)

    def _announce(self, stream: str) -> Iterator[Send]:
        message = self.announcement(stream)
        return (Send(trainer.peer, message) for trainer in self._streams[stream].trainers.values())

    def greet(self, peer: bytes, stream: str) -> Iterator[Send]:
        """Yield the announcement for a trainer that has just attached; nothing while the job goes on."""
        if self._drains is not None:
            yield Send(peer, self.announcement(stream))

    def news(self, stream: str) -> m.JobEnds | None:
        """Return the announcement of the end, which answers every heartbeat; None while the job goes on."""
        return None if self._drains is None else self.announcement(stream)

    def announcement(self, stream: str) -> m.JobEnds:
        """Return the announcement of an end that was ordered, with the last round of the stream once that is fixed."""
        assert self._drains is not None
        return m.JobEnds(drains=self._drains, last=self._last.get(stream))

    def stand(self, place: m.StandsStill, now_s: float) -> Iterator[Send]:
        """Record the round of a paused rank; yield the announcement of the last round to all if it can be fixed now.

        Do nothing while the job goes on, or before the result is iterated. The stream has to be known.
        """
        # The journal has no end: a coordinator that was restarted knows of none until it is ordered again.
        if self._drains is not None:
            self._places.setdefault(place.stream, {})[place.incarnation] = RoundPlace(place.epoch, place.number)
            yield from self._agree(place.stream, now_s)

    def agree(self, now_s: float) -> Iterator[Send]:
        """Fix the last round of each stream that need not wait any longer, and yield its announcement to all trainers.

        A stream need not wait once all attached trainers have reported their rounds, and these are all ranks of the
        world or the wait for absent ranks is over. Nothing is done for a stream that has a last round already or no
        trainer, or before iteration. Called when a trainer has left or time has passed: either may complete the ranks.
        """
        for stream in self._places:
            yield from self._agree(stream, now_s)

    def _agree(self, stream: str, now_s: float) -> Iterator[Send]:
        places, attached = self._places[stream], self._streams[stream].trainers
        if stream in self._last or not attached or not places.keys() >= attached.keys():
            return
        # A rank that is restarting may be ahead of all attached ones, so the last round is fixed only when every rank
        # of the world has reported, or when the wait for absent ranks is over.
        ranks = sum(len(trainer.ranks) for trainer in attached.values())
        if ranks >= max(trainer.attach.world for trainer in attached.values()) or now_s >= self._until_s:
            # The furthest attached rank's, because no rank can take back a step. The place of a rank that has left, or
            # is gone, does not count.
            self._last[stream] = max(
                (places[incarnation] for incarnation in attached), key=lambda place: (place.epoch, place.number)
            )
            yield from self._announce(stream)

    def report(self) -> dict[str, Any] | None:
        """Return whether trainers drain, and how many trainers and leases remain; None while the job goes on."""
        if self._drains is None:
            return None
        return {
            "drains": self._drains,
            "trainers": sum(len(stream.trainers) for stream in self._streams.values()),
            "leased": self._queues.leased(),
        }
