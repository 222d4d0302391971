"""The command `loader-server worker`: serve batches until told to end.

A worker that cannot begin to serve tells the coordinator why. Only one that was started by hand then waits until its
index or files exist: a worker of `loader-server run` ends and is restarted, so that a job that cannot begin is refused
at once.
"""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import zmq

from loader_server.arguments import metrics_listening
from loader_server.building.deadline import let_deadlines_end_us
from loader_server.commands.ask import connected
from loader_server.fleet.host_folder import JoinedFolder
from loader_server.job_file import read_job
from loader_server.machine.processes import WORKER_OFFER, keep_ports_from_children, offer_once, send_facts
from loader_server.metrics.worker_metrics import worker_metrics
from loader_server.named_objects import MissingModuleError
from loader_server.worker.service import Worker, WorkerSettings
from shared.commands import allow_many_files
from shared.endpoints import at_any_port, check_endpoint, port_of
from shared.errors import DataError, SettingsError, StokerError
from shared.keys import ClientKeys, ServerKeys
from shared.logs import Log
from shared.malloc_tuning import keep_freed_memory
from shared.metrics.probes import Probes
from shared.metrics.server import MetricsServer
from shared.stores.own_files import why_closed
from shared.system.endpoint_file import FollowedEndpoint
from shared.wire.codec import encode
from shared.wire.message_parts import clipped
from shared.wire.messages import Failing

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from loader_server.job_file import JobFile
    from loader_server.machine.asking import Asker

    OnStop = Callable[[Callable[[], None]], None]

__all__ = ["open_once_there", "serve_worker"]

_T = TypeVar("_T")

#: Freed memory that is kept: samples take megabytes, and returning their pages to the kernel each time costs more than
#: decoding them.
_KEPT_BYTES = 256 * 2**20

#: Pauses between attempts to open data that are not there yet.
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 4.0

#: How long to wait for a connection on which to tell the coordinator why this worker ends, and for the message to
#: leave.
_CONNECT_MS = 1000
_LEAVE_MS = 500


def serve_worker(options: argparse.Namespace, nursery: Asker, on_stop: OnStop) -> int:
    """Serve batches until a signal to end comes, and return the exit code; `on_stop` sets what such a signal does.

    A worker that was started by hand waits for data that are missing, and returns 0 if the signal comes before they are
    there. Raises StokerError for what keeps the worker from serving; other errors of opening and serving pass through.
    """
    allow_many_files()
    not_offered = offer_once(WORKER_OFFER)
    keep_freed_memory(trim_bytes=_KEPT_BYTES, mmap_bytes=_KEPT_BYTES)
    let_deadlines_end_us()
    with _hint_at_accept_code(options.job):
        job = read_job(options.job)
    settings = _settings(options, job)
    serve_metrics = partial(
        MetricsServer,
        listening=metrics_listening(options),
        labels={"job": job.settings.name, "role": "worker", "worker": settings.name},
        targets_folder=_open_targets(job, settings.name),
    )
    worker = _open(settings, nursery, serve_metrics, on_stop, waits=not options.parent)
    if worker is None:
        return 0
    if not_offered:
        worker.log.warning(
            "cannot raise its OOM score, so the kernel may kill other processes first", reason=not_offered
        )
    on_stop(lambda: worker.drain(options.drain_seconds))
    with serve_metrics(partial(worker_metrics, worker, restarts=options.restarts), probes=worker.probes()) as served:
        worker.tell_metrics(served.bound)
        # Before the user's code runs: a child that a transform leaves behind would keep our successor from these ports.
        keep_ports_from_children([*worker.ports, port_of(served.address)])
        send_facts(options.ready_fd, endpoint=worker.endpoint, metrics=served.address)
        worker.tell_refused = partial(send_facts, options.ready_fd, refused=True)
        options.ready_fd = -1  # an error is for the log from now on
        worker.run()
    return 0


@contextlib.contextmanager
def _hint_at_accept_code(job_file: Path) -> Iterator[None]:
    """Add to the error of a missing module how a host that joined by endpoint can get it; raise SettingsError then.

    Raise the error as it is if the host did not join by endpoint, or fetches the job's code already. Raise a
    SettingsError instead if the file of the joined job cannot be read.
    """
    try:
        yield
    except MissingModuleError as error:
        joined = JoinedFolder.beside(job_file)
        if joined is None or joined.code:
            raise
        raise SettingsError(
            expected=error.expected,
            got=error.got,
            where=error.where,
            remedy="Install it on this host, or put it into the folder that --data names; or, with keys, join with "
            "--accept-code: then it is fetched, if it lies in the job's folder.",
        ) from error


def _open_targets(job: JobFile, name: str) -> Path | None:
    """Return the folder for the metrics' address; None, with a warning, if the state folder is closed."""
    closed = why_closed(job.state)
    if not closed:
        return job.targets_folder
    Log("worker", worker=name).warning(
        "state folder is closed: serves without quarantine.jsonl, kept plans and a file with the metrics' address",
        state=closed,
    )
    return None


def _settings(options: argparse.Namespace, job: JobFile) -> WorkerSettings:
    listen = options.listen or at_any_port(job.settings.listen)
    check_endpoint(listen, where="--listen", encrypted=job.keys is not None, insecure=options.insecure)
    return WorkerSettings(
        job_path=options.job,
        name=options.name or f"{os.uname().nodename}-{os.getpid()}",
        listen=listen,
        coordinator=options.coordinator or job.settings.listen,
        server_keys=ServerKeys.read(job.keys, "worker") if job.keys else None,
        client_keys=ClientKeys.read(job.keys, "worker", to="coordinator") if job.keys else None,
        advertise=options.advertise,
        shelf=options.shelf,
    )


def _open(
    settings: WorkerSettings,
    nursery: Asker,
    serve_metrics: Callable[..., MetricsServer],
    on_stop: OnStop,
    *,
    waits: bool,
) -> Worker | None:
    """Return a worker once its data are there, or None if it has to end before.

    With `waits` it waits for data that are missing; otherwise they are an error, which is reported to the coordinator
    and raised, as is each other StokerError. Errors of reporting are raised instead, such as SettingsError for an
    unusable endpoint of the coordinator; other errors, also of serving metrics meanwhile, pass through.
    """

    def make() -> Worker:
        with _hint_at_accept_code(settings.job_path):
            return Worker(settings, nursery)

    report = partial(_report, settings.coordinator, settings.client_keys, settings.name)
    try:
        return make()
    except StokerError as error:
        if not waits or not isinstance(error, DataError):
            report(error)
            raise
        stop = threading.Event()
        on_stop(stop.set)
        with serve_metrics(list, probes=Probes(lambda _now_s: "", lambda _now_s: "no_data")):
            return open_once_there(make, error, report, stop, settings.name)


def open_once_there(
    open_it: Callable[[], _T], error: DataError, report: Callable[[DataError], None], stop: threading.Event, worker: str
) -> _T | None:
    """Retry until what failed with this error can be opened, and return it; return None if stopped before.

    `report` is called with the error of each attempt; the log has an error once while it stays the same. Any error of
    `open_it` that is no DataError, and those of `report`, are raised.
    """
    log, logged, pause_s = Log("worker", worker=worker), "", _FIRST_PAUSE_S
    while True:
        if str(error) != logged:
            log.warning("no data: this worker serves as soon as they exist", **error.words())
            logged = str(error)
        report(error)
        if stop.wait(pause_s):
            return None
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        try:
            return open_it()
        except DataError as latest:
            error = latest


def _report(coordinator: str, keys: ClientKeys | None, worker: str, error: StokerError) -> None:
    """Send the coordinator the reason why this worker cannot serve; the message has no answer, and may be lost.

    Nothing is sent if there is no connection within a second. Raise SettingsError if the endpoint is malformed, or its
    file is unsafe; zmq.ZMQError of `connected` passes through.
    """
    words = {name: clipped(text) for name, text in error.words().items()}
    address = FollowedEndpoint(coordinator, encrypted=keys is not None).address
    with connected(address, keys, linger_ms=_LEAVE_MS) as dealer:
        if dealer.poll(_CONNECT_MS, zmq.POLLOUT):
            dealer.send(encode(Failing(worker=worker, **words)))
