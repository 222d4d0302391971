"""HTTP server of a process's metrics for Prometheus, and of its probes; samples are made only on request.

Rules: `samples` is called in the server's thread, so it reads plain numbers and complete snapshots, and changes
nothing. `/metrics` has the metrics, `/targets` those of other processes' addresses, `/healthz` and `/readyz` the
answers of `probes`, and no other path has anything. Probes are open to anyone who reaches the port; the others are not
if `Listening` has a token. A client that holds a connection delays nobody else (see `BoundedConnections`). What a
process exposes is declared in `names`; a sample of anything else is a defect. prometheus_client adds its own
`process_…` metrics: CPU seconds, memory, start time; `stoker_build_info` comes from here as well.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from dataclasses import dataclass
from functools import partial
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from shared.errors import SettingsError
from shared.logs import Log
from shared.metrics.build_info import build_versions
from shared.metrics.listening import Listening, bracketed
from shared.metrics.names import BUILD_INFO, WAIT_BOUNDS_S
from shared.metrics.scrape_targets import TargetFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from prometheus_client.core import Metric as Family

    from shared.metrics.names import Metric
    from shared.metrics.probes import Probes

__all__ = ["BoundedConnections", "MetricSamples", "MetricsServer", "Spread", "Values"]

#: Most connections at a time; `BoundedConnections` decides which one makes room for another.
_MOST_AT_ONCE = 8

#: Pause when no descriptor is left to accept with: the connection stays pending, so the thread would spin.
_EXHAUSTED_PAUSE_S = 0.1

#: How long a client may take to send its request, and then until it has read the answer, which may be slow to make.
ASKING_S, ANSWERING_S = 2.0, 10.0

#: How long the thread of an ended connection may take to leave.
_LEAVING_S = 0.5


@dataclass(frozen=True, slots=True)
class Spread:
    """Histogram: the number of values in each interval of WAIT_BOUNDS_S, then above the last bound; and their sum."""

    counts: Sequence[int]
    total: float


#: Values of a metric by its label values.
Values: TypeAlias = dict[tuple[str, ...], float | Spread]

#: Key of a request's environment for the host that it came to.
_OWN_HOST = "stoker.own_host"


@dataclass(frozen=True, slots=True)
class MetricSamples:
    """All samples of one metric."""

    metric: Metric
    values: Values

    @classmethod
    def single(cls, metric: Metric, value: float, *labels: str) -> MetricSamples:
        """Return the samples of a metric that has one value, under these values of its labels."""
        return cls(metric, {labels: value})


class MetricsServer(contextlib.AbstractContextManager["MetricsServer"]):
    """Small HTTP server in a thread of its own, which runs until `close`.

    `labels` name the process: job, role and, for a worker or trainer, its own name. With `targets_folder` it writes its
    target file there, or logs a warning if it cannot. Without `probes`, `/healthz`, `/readyz` and `/targets` answer
    404. Making it raises SettingsError if the port cannot be bound, and MachineError of `TargetFile` passes through.
    """

    def __init__(
        self,
        samples: Callable[[], Iterable[MetricSamples]],
        *,
        labels: Mapping[str, str],
        targets_folder: Path | None,
        listening: Listening = Listening(),  # noqa: B008 - it cannot change
        probes: Probes | None = None,
    ) -> None:
        registry = CollectorRegistry()
        registry.register(_Collector(samples))
        ProcessCollector(registry=registry)
        try:
            self._server = _Server(listening.host, listening.port)
        except (OSError, OverflowError) as error:
            raise SettingsError(
                expected="a free port for metrics",
                got=f"{getattr(error, 'strerror', None) or error} on {listening.port}",
                where="metrics_port",
                remedy="Name another port, or 0 for any free one.",
            ) from error
        port = self._server.server_port
        self._server.set_app(_App(listening, port, make_wsgi_app(registry), probes))
        #: The address for processes of this machine, and the one it listens at.
        self.address = f"{bracketed(listening.local_host)}:{port}"
        self.bound = f"{bracketed(listening.host)}:{port}"
        self._local_host = listening.local_host
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="stoker-metrics", daemon=True)
        self._thread.start()
        self._log = Log("metrics", **labels)
        self._target_file = self._write_target(targets_folder, labels) if targets_folder is not None else None
        self._log.info("metrics are served", address=self.bound)

    def _write_target(self, folder: Path, labels: Mapping[str, str]) -> TargetFile | None:
        """Write the target file, or log a warning and return None if that fails with OSError.

        MachineError of `TargetFile` passes through.
        """
        try:
            return TargetFile(folder, self.address, labels)
        except OSError as error:
            self._log.warning("where metrics are served is not written", folder=folder, error=str(error))
            return None

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop the server and remove its target file; requests being answered are cut off.

        Wait at most `timeout_s` for the server's thread to end.
        """
        if self._target_file is not None:
            self._target_file.close()
        self._closing = True
        # A connection of our own: the thread waits for the next one, and sees the flag only then.
        with contextlib.suppress(OSError):  # wakes the thread from `handle_request`; fails only if it has ended
            socket.create_connection((self._local_host, self._server.server_port), timeout_s).close()
        self._thread.join(timeout_s)  # before the socket goes, whose number could be another file's by then
        self._server.server_close()

    def _serve(self) -> None:
        while not self._closing:
            self._server.timeout = self._server.connections.end_overdue(time.monotonic())
            self._server.handle_request()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingMixIn, WSGIServer):
    """Server with one thread per request, so that a hanging one delays no other."""

    daemon_threads = True
    allow_reuse_port = False  # some releases of Python let two servers share a port silently
    request_queue_size = 128  # listen backlog: a client that finds no place in it is heard a second later

    def __init__(self, host: str, port: int) -> None:
        self.connections = BoundedConnections(_MOST_AT_ONCE)
        if ":" in host:  # only an IPv6 address holds colons, and the class is made for IPv4
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without looking up the host's name, which is slow where there is no name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept the next connection; pause before raising OSError, so that a lack of descriptors does not spin."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_EXHAUSTED_PAUSE_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether the connection got a place; if there is no room, an older connection is ended for it.

        Return False if none leaves in time.
        """
        return self.connections.admit(request, time.monotonic())

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request in its own thread, which gets a name by which people know it."""
        threading.current_thread().name = "stoker-metrics-answer"
        super().process_request_thread(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Release the connection's place and close it."""
        self.connections.leave(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a client that hangs up, or never sends a request, is normal."""


class _App:
    """WSGI application that answers a request by its path."""

    def __init__(self, listening: Listening, port: int, metrics: WSGIApplication, probes: Probes | None) -> None:
        self._listening = listening
        #: What answers a path: for those who show the token, and for anyone.
        self._protected: dict[str, Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]] = {"/metrics": metrics}
        self._open: dict[str, Callable[[float], str]] = {}
        if probes is not None:
            self._open = {"/healthz": probes.is_dead, "/readyz": probes.is_unready}
            if probes.targets is not None:
                self._protected["/targets"] = partial(_list_targets, probes.targets, port)

    def __call__(self, request: WSGIEnvironment, begin: StartResponse) -> Iterable[bytes]:
        path = request.get("PATH_INFO", "")
        if path in self._protected:
            if not self._listening.admits(request.get("HTTP_AUTHORIZATION", "")):
                return _say(begin, "401 Unauthorized", "show the token", ("WWW-Authenticate", "Bearer"))
            return self._protected[path](request, begin)
        if path in self._open:
            reason = self._open[path](time.monotonic())
            return _say(begin, "503 Service Unavailable", reason) if reason else _say(begin, "200 OK", "ok")
        return _say(begin, "404 Not Found", "there is nothing here")


def _list_targets(
    targets: Callable[[str, int], list[dict[str, Any]]], port: int, request: WSGIEnvironment, begin: StartResponse
) -> Iterable[bytes]:
    # Under the host that was asked: a process that listens at all addresses does not know which of them others reach.
    listed = targets(bracketed(request[_OWN_HOST]), port)
    begin("200 OK", [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
    return [json.dumps(listed).encode()]


def _say(begin: StartResponse, status: str, text: str, *more: tuple[str, str]) -> Iterable[bytes]:
    begin(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store"), *more])
    return [f"{text}\n".encode()]


class _Handler(WSGIRequestHandler):
    """Handler of one request, which is bounded in time and not logged."""

    server: _Server

    def parse_request(self) -> bool:
        """Read the request; return False if it is malformed, or its connection was ended."""
        return super().parse_request() and self.server.connections.note_asked(self.connection, time.monotonic())

    def get_environ(self) -> WSGIEnvironment:
        """Return the request's environment, with the host that it came to."""
        return super().get_environ() | {_OWN_HOST: self.connection.getsockname()[0]}

    def log_message(self, *_arguments: object) -> None:
        """Log nothing: scrapes come every few seconds."""


class _Collector(Collector):
    """Collector that asks for samples at each scrape, and adds the versions that the process runs."""

    def __init__(self, samples: Callable[[], Iterable[MetricSamples]]) -> None:
        self._samples = samples

    def describe(self) -> list[Family]:
        """Return nothing: metrics are declared in `names`, and the process cannot be asked before it runs."""
        return []

    def collect(self) -> Iterator[Family]:
        yield _family(MetricSamples.single(BUILD_INFO, 1, *build_versions()))
        for samples in self._samples():
            yield _family(samples)


#: prometheus_client's families by the kind of a metric.
_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
_BOUNDS = [*map(floatToGoString, WAIT_BOUNDS_S), "+Inf"]


def _family(samples: MetricSamples) -> Family:
    """Return the samples of a metric as prometheus_client's family; the buckets of a histogram are cumulative."""
    metric = samples.metric
    family = _FAMILIES[metric.kind](metric.name, metric.help_text, labels=metric.labels)
    for labels, value in samples.values.items():
        if isinstance(value, Spread):
            family.add_metric(labels, list(zip(_BOUNDS, itertools.accumulate(value.counts), strict=True)), value.total)
        else:
            family.add_metric(labels, value)
    return family  # type: ignore[no-any-return] # of one of the three classes above


@dataclass(slots=True)
class _HeldConnection:
    """State of one connection."""

    #: When it will be ended.
    due_s: float
    has_asked: bool = False
    is_ended: bool = False


class BoundedConnections:
    """At most `most` connections, bounded in time; used by the accepting thread and by those that answer.

    A client sends its request within `ASKING_S` of connecting, and reads its answer within `ANSWERING_S`. If there is
    no room for a new connection, the oldest without a request is ended, or the oldest of all if each has sent one: so
    strangers who hold connections delay nobody who asks at once. Ending a connection wakes the thread that reads or
    writes it, which then leaves. Nobody else closes it, because its descriptor could be another connection's by then.
    """

    def __init__(self, most: int) -> None:
        self._room = threading.Semaphore(most)
        self._lock = threading.Lock()
        #: In order of arrival.
        self._held: dict[socket.socket, _HeldConnection] = {}

    def admit(self, connection: socket.socket, now_s: float) -> bool:
        """Hold a new connection, ending an older one if there is no room; return False if none leaves in time."""
        if not self._room.acquire(blocking=False):
            # Only its own thread may close the ended connection, so wait until it has left, but not for long: we are in
            # the thread that accepts.
            self._end_oldest()
            if not self._room.acquire(timeout=_LEAVING_S):
                return False
        with self._lock:
            self._held[connection] = _HeldConnection(now_s + ASKING_S)
        return True

    def note_asked(self, connection: socket.socket, now_s: float) -> bool:
        """Note that a connection's request came; return False if the connection was ended before."""
        with self._lock:
            held = self._held[connection]
            held.has_asked, held.due_s = True, now_s + ANSWERING_S
            return not held.is_ended

    def leave(self, connection: socket.socket) -> None:
        """Release the place of a connection that is about to be closed; do nothing if it was not held."""
        with self._lock:
            held = self._held.pop(connection, None)
        if held is not None:
            self._room.release()

    def end_overdue(self, now_s: float) -> float | None:
        """End overdue connections; return the seconds until the next one is due, or None if there is none."""
        with self._lock:
            for connection, held in self._held.items():
                if now_s >= held.due_s:
                    _end(connection, held)
            due_s = [held.due_s for held in self._held.values() if not held.is_ended]
        return min(due_s) - now_s if due_s else None

    def _end_oldest(self) -> None:
        """End the oldest connection without a request, or the oldest of all if each has sent one."""
        with self._lock:
            living = [(connection, held) for connection, held in self._held.items() if not held.is_ended]
            silent = [(connection, held) for connection, held in living if not held.has_asked]
            for connection, held in (silent or living)[:1]:
                _end(connection, held)


def _end(connection: socket.socket, held: _HeldConnection) -> None:
    # shutdown, not close: it wakes the connection's thread, which alone may free the descriptor.
    held.is_ended = True
    with contextlib.suppress(OSError):  # the other side has hung up
        connection.shutdown(socket.SHUT_RDWR)
