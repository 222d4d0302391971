"""The metrics of what limits each stream, and of what it would gain from more.

Rules: they are served from the last look, in the thread of the metrics server, so a scrape never plays the model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shared.metrics.names import Declarations
from shared.metrics.server import MetricSamples
from shared.stations.limit import LIMITS, JobLimit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shared.stations.reported import StreamLimits

__all__ = ["limit_metrics"]

_coordinator = Declarations("coordinator")

LIMIT = _coordinator.gauge(
    "stoker_limit",
    "1 at what limits a stream, 0 at all other limits; from the last five seconds, worked out every five.",
    "`loader-server status` says the same in a sentence, with what would help; see the table in docs/troubles.md.",
    ("stream", "limit"),
)
GAIN = _coordinator.gauge(
    "stoker_gain_ratio",
    "Part by which batches a second would grow with endless_loaders, one_worker more, or twice_window; not a "
    "number (NaN) while unknown.",
    "Do what gains most; if endless_loaders gains nothing, the trainers themselves are the limit.",
    ("stream", "more"),
)

#: The gains by the value of a metric's label.
_GAINS = {"endless_loaders": "endless_loaders", "one_worker": "worker_more", "twice_window": "twice_the_window"}


def limit_metrics(limits: StreamLimits | None, streams: Iterable[str]) -> Iterator[MetricSamples]:
    """Yield what limits each stream, nobody before the first look, and its gains, NaN while they are unknown."""
    by_stream = dict.fromkeys(streams, JobLimit("nobody")) | dict(limits.by_stream if limits is not None else {})
    yield MetricSamples(LIMIT, {
        (name, limit): float(limit == found.limit) for name, found in by_stream.items() for limit in LIMITS
    })  # fmt: skip
    yield MetricSamples(GAIN, {
        (name, more): math.nan if found.gains is None else getattr(found.gains, key)
        for name, found in by_stream.items() for more, key in _GAINS.items()
    })  # fmt: skip
