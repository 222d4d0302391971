"""What limits each stream, as the coordinator tells trainers, Prometheus and the rule for the number of workers.

Rules: pure. The model of stations (`shared.stations`) is played at most once in five seconds, and only while trainers
read: 6 ms of CPU for a few workers, 17 for 1000 workers and 500 trainers. All who ask in between get the last answer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from shared.stations.reported import StreamLimits, limits_of_streams
from shared.wire.messages import Limited

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.stations.limit import Gains, JobLimit

__all__ = ["LOOKS_BACK_S", "LimitLook"]

#: What limits a job is worked out from so many seconds, and so often.
LOOKS_BACK_S = 5.0

#: Largest gain in thousandths that a message names; more means that there would hardly be a bound.
_MOST_GAIN = 10**9


class LimitLook:
    """The last look; nothing is known before the first one."""

    def __init__(self) -> None:
        #: Replaced as a whole, so that other threads can read it; None before the first look.
        self.limits: StreamLimits | None = None
        self._messages: dict[str, Limited] = {}
        #: When it looked last.
        self.looked_s = -math.inf

    @property
    def workers_gain(self) -> float | None:
        """Return the part by which several times as many workers would raise the rate; None if that is unknown."""
        return None if self.limits is None else self.limits.workers_gain

    def look(self, report: Mapping[str, Any], now_s: float, *, at_once: bool = False) -> None:
        """Look at a coordinator's report, unless the last look is less than five seconds old and not `at_once`."""
        if (now_s < self.looked_s + LOOKS_BACK_S and not at_once) or not _is_known(report):
            return
        self.looked_s = now_s
        self.limits = limits_of_streams(report)
        self._messages = {name: _message(limit) for name, limit in self.limits.by_stream.items()}

    def message(self, stream: str) -> Limited | None:
        """Return the message to trainers of a stream; None while nothing is known of it."""
        return self._messages.get(stream)


def _is_known(report: Mapping[str, Any]) -> bool:
    """Return whether any trainer has sent two heartbeats, without which no limit shows."""
    return any(trainer["lately"] for stream in report["streams"].values() for trainer in stream["trainers"])


def _message(limit: JobLimit) -> Limited:
    gains = limit.gains
    return Limited(
        limit=limit.limit,
        who=limit.who,
        loaders_gain=_permille(gains, "endless_loaders"),
        worker_gain=_permille(gains, "worker_more"),
        window_gain=_permille(gains, "twice_the_window"),
    )


def _permille(gains: Gains | None, name: str) -> int | None:
    """Return a gain in thousandths, from 0 on: more of something never takes anything, but for chance."""
    if gains is None:
        return None
    gain: float = getattr(gains, name)
    return None if math.isnan(gain) else round(max(0.0, min(1000 * gain, _MOST_GAIN)))
