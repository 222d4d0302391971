"""Metrics that coordinator and workers have in common, those of their ports, and samples by one label or two.

Rules: everything here runs in the metrics server's thread when somebody asks, and reads only single numbers and values
that are replaced as a whole; nothing here is called for each batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from shared.metrics.names import Declarations
from shared.metrics.server import MetricSamples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from loader_server.machine.doors import Doors
    from shared.guard import Guard
    from shared.metrics.names import Metric
    from shared.metrics.server import Values

__all__ = ["RESTARTS", "by_pair", "by_stream", "connection_metrics"]

_T = TypeVar("_T")

_server = Declarations("coordinator", "worker")

RESTARTS = _server.counter(
    "stoker_restarts_total",
    "How often `loader-server run` has started this process again, because it had ended, or its nursery had; 0 if it "
    "was started by hand.",
    "The log of the run names each cause. Several in an hour: look for out-of-memory kills, a build_timeout that is "
    "missed, or a transform that crashes.",
)
CONNECTIONS = _server.gauge(
    "stoker_connections",
    "Open connections by port: messages, or sealed (where a worker sends payloads under keys).",
    "Far more than trainers and workers: strangers connect, see stoker_connection_changes_total.",
    ("port",),
)
CONNECTION_CHANGES = _server.counter(
    "stoker_connection_changes_total",
    "What happened to connections: accepted, admitted (past its handshake), ended; not let in: unknown_key, "
    "not_understood (not our protocol, or no keys), unfinished (silent, or hung up, as a client without keys does), "
    "no_descriptor.",
    "unknown_key: put that machine's key into allowed/. If the others grow, close this port to strangers.",
    ("port", "kind"),
)
DOORS_SHUT = _server.counter(
    "stoker_doors_shut_total",
    "How often new connections were stopped, because too many of the process's descriptors were in use.",
    "Close the port to strangers; if the connections are your own, raise the limit of open files (ulimit -n).",
)
WRONG_ROLES = _server.counter(
    "stoker_wrong_roles_total",
    "Messages from keys that lack the role for them, or are no longer allowed.",
    "The sender's log says which role it has and which it needs: move its key to that folder of allowed/.",
)


def by_stream(metric: Metric, streams: Mapping[str, _T], value_of: Callable[[_T], float]) -> MetricSamples:
    """Return a metric with one value for each stream.

    What `value_of` raises passes through.
    """
    return MetricSamples(metric, {(name,): value_of(stream) for name, stream in streams.items()})


def by_pair(metric: Metric, nested: Mapping[str, Mapping[str, float]]) -> MetricSamples:
    """Return a metric with two labels, from its values by the first and then by the second."""
    pairs: Values = {(first, second): value for first, values in nested.items() for second, value in values.items()}
    return MetricSamples(metric, pairs)


def connection_metrics(doors: Doors, guard: Guard) -> Iterator[MetricSamples]:
    """Yield the metrics of a server's ports: open connections, and what happened to them.

    Raise OSError if no descriptor is left to count connections with.
    """
    yield MetricSamples(CONNECTIONS, {(port,): count for port, count in doors.count_connections().items()})
    yield by_pair(CONNECTION_CHANGES, doors.changes)
    yield MetricSamples.single(DOORS_SHUT, doors.times_shut)
    yield MetricSamples.single(WRONG_ROLES, guard.wrong_roles)
