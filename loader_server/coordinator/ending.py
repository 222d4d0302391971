"""The end of a job by order: which trainers are told, and what is still under way.

Rules: pure. Trainers are told at once, and with each heartbeat for as long as they stay, because a message may be lost.
A trainer that attaches is let in and told as well, because one that comes back has leases to report. In queue mode
nothing more is leased. Ranks in lockstep say how far each has come and stand still meanwhile, and the furthest round is
the last for all. When nobody is attached any more, nothing is left to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.coordinator.events import Send
from shared.silence import GONE_AFTER
from shared.wire import messages as m
from shared.wire.parts import RoundPlace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from loader_server.coordinator.streams.queues import Queues
    from loader_server.coordinator.streams.stream_trainers import StreamTrainers

__all__ = ["Ending"]


class Ending:
    """Whether the job was ended."""

    def __init__(self, streams: Mapping[str, StreamTrainers], queues: Queues, *, timeout_s: float) -> None:
        self._streams = streams
        self._queues = queues
        #: How long ranks that are not attached are waited for, which may have to come back first; and until when.
        self._patience_s = GONE_AFTER * timeout_s
        self._until_s = 0.0
        #: Whether trainers finish what they have leased; None: the job goes on.
        self._drains: bool | None = None
        #: By stream: where each rank that stands still has come to, by incarnation; and the last round, once agreed.
        self._places: dict[str, dict[int, RoundPlace]] = {}
        self._last: dict[str, RoundPlace] = {}

    def order(self, now_s: float, *, drains: bool) -> Iterator[Send]:
        """End it, or end it faster."""
        if self._drains is None:
            self._until_s = now_s + self._patience_s
        self._drains = drains
        self._queues.lease_no_more()
        for stream in self._streams:
            yield from self._tell(stream)

    def _tell(self, stream: str) -> Iterator[Send]:
        message = self.news(stream)
        return (Send(trainer.peer, message) for trainer in self._streams[stream].trainers.values())

    def greet(self, peer: bytes, stream: str) -> Iterator[Send]:
        """The message for a trainer that has just attached."""
        if self._drains is not None:
            yield Send(peer, self.news(stream))

    def news(self, stream: str) -> m.JobEnds | m.Noted:
        """The answer to a heartbeat."""
        return m.Noted() if self._drains is None else m.JobEnds(drains=self._drains, last=self._last.get(stream))

    def stand(self, said: m.StandsStill, now_s: float) -> Iterator[Send]:
        """A rank stands still; all are told the last round, if it was the last to do so."""
        if self._drains is not None:
            self._places.setdefault(said.stream, {})[said.incarnation] = RoundPlace(said.epoch, said.number)
            yield from self._agree(said.stream, now_s)

    def agree(self, now_s: float) -> Iterator[Send]:
        """The same where somebody is not attached any more, or was waited for long enough."""
        for stream in self._places:
            yield from self._agree(stream, now_s)

    def _agree(self, stream: str, now_s: float) -> Iterator[Send]:
        places, attached = self._places[stream], self._streams[stream].trainers
        if stream in self._last or not attached or not places.keys() >= attached.keys():
            return
        ranks = sum(len(one.ranks) for one in attached.values())
        if ranks >= max(one.attach.world for one in attached.values()) or now_s >= self._until_s:
            self._last[stream] = max((places[one] for one in attached), key=lambda at: (at.epoch, at.number))
            yield from self._tell(stream)

    def report(self) -> dict[str, Any] | None:
        """What is still under way; None: the job goes on."""
        if self._drains is None:
            return None
        trainers = sum(len(stream.trainers) for stream in self._streams.values())
        return {"drains": self._drains, "trainers": trainers, "leased": self._queues.leased()}
