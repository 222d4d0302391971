"""The end of a job by order: which trainers are told, and what is still under way.

Rules: pure. Trainers are told at once, and with each heartbeat for as long as they stay, because a message may be lost.
A trainer that attaches is let in and told as well, because one that comes back has leases to report. In queue mode
nothing more is leased. When nobody is attached any more, nothing is left to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.coordinator.events import Send
from shared.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from loader_server.coordinator.streams.queues import Queues
    from loader_server.coordinator.streams.stream_trainers import StreamTrainers

__all__ = ["Ending"]


class Ending:
    """Whether the job was ended."""

    def __init__(self, streams: Mapping[str, StreamTrainers], queues: Queues) -> None:
        self._streams = streams
        self._queues = queues
        self._message: m.JobEnds | None = None

    def order(self, *, drains: bool) -> Iterator[Send]:
        """End it, or end it faster."""
        self._message = m.JobEnds(drains=drains)
        self._queues.lease_no_more()
        for stream in self._streams.values():
            yield from (Send(trainer.peer, self._message) for trainer in stream.trainers.values())

    def greet(self, peer: bytes) -> Iterator[Send]:
        """The message for a trainer that has just attached."""
        if self._message is not None:
            yield Send(peer, self._message)

    def news(self) -> m.JobEnds | m.Noted:
        """The answer to a heartbeat."""
        return self._message or m.Noted()

    def report(self) -> dict[str, Any] | None:
        """What is still under way; None: the job goes on."""
        if self._message is None:
            return None
        trainers = sum(len(stream.trainers) for stream in self._streams.values())
        return {"drains": self._message.drains, "trainers": trainers, "leased": self._queues.leased()}
