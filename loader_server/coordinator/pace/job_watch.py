"""How the job goes, by the heartbeats of its workers and trainers: its pace, its limit, and the workers it wants.

Rules: pure.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loader_server.coordinator.pace.limit_look import LOOKS_BACK_S, LimitLook
from loader_server.coordinator.pace.pace_meter import PaceMeter
from loader_server.coordinator.pace.workers_wanted import WorkersWanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from loader_server.coordinator.streams.stream_trainers import StreamTrainers
    from loader_server.coordinator.workers import RegisteredWorker
    from shared.stations.reported import StreamLimits
    from shared.wire.messages import Limited

__all__ = ["JobWatch"]


class JobWatch:
    """The watch over one job; `heartbeat_timeout_s` is how long a worker may be silent and still count as there."""

    def __init__(self, heartbeat_timeout_s: float) -> None:
        self._timeout_s = heartbeat_timeout_s
        self._pace, self._wanted, self._limits = PaceMeter(), WorkersWanted(), LimitLook()
        #: How many workers and trainers there are, and since when.
        self._crew, self._same_since_s = (0, 0), -math.inf

    @property
    def workers_wanted(self) -> int | None:
        """Return how many workers the job could use; None while that is not known."""
        return self._wanted.wanted

    @property
    def limits(self) -> StreamLimits | None:
        """Return what limits each stream, as of the last look; None before the first. Other threads may call this."""
        return self._limits.limits

    def tick(
        self,
        streams: Iterable[StreamTrainers],
        workers: Iterable[RegisteredWorker],
        report: Mapping[str, Any] | None,
        now_s: float,
    ) -> None:
        """Take in what was done since the last tick; once in five seconds look at the report for what limits the job.

        Without a report what was found out before stays.
        """
        pace = self._pace.look(streams, workers, now_s - self._timeout_s, now_s)
        if (pace.workers, pace.trainers) != self._crew:
            self._crew, self._same_since_s = (pace.workers, pace.trainers), now_s
        # What was seen before workers or trainers changed says nothing of what more workers would gain now.
        alike_s = self._same_since_s + LOOKS_BACK_S
        if report is not None:
            self._limits.look(report, now_s, at_once=self._limits.looked_s < alike_s <= now_s)
        gain = self._limits.workers_gain if self._limits.looked_s >= alike_s else None
        self._wanted.look(replace(pace, workers_gain=gain), now_s)

    def limit_message(self, stream: str) -> Limited | None:
        """Return the message to trainers about what limits their stream; None while nothing is known."""
        return self._limits.message(stream)
