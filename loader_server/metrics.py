"""The metrics of coordinator and workers: what they have counted, as samples.

Rules: everything here runs in the metrics server's thread when somebody asks, and reads only single numbers and values
that are replaced as a whole; nothing here is called for each batch. What the numbers mean is declared in
`shared.metrics.names`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.metrics import names
from shared.metrics.server import MetricSamples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loader_server.coordinator.service import Coordinator
    from loader_server.machine.doors import Doors
    from loader_server.sources.remote.counts import RemoteCounts
    from loader_server.worker.service import Worker
    from shared.guard import Guard
    from shared.metrics.server import Values

__all__ = ["coordinator_metrics", "worker_metrics"]


# --- the coordinator ---


def coordinator_metrics(coordinator: Coordinator) -> Iterator[MetricSamples]:
    """How the job is doing."""
    report, counts = coordinator.report, coordinator.counts
    yield MetricSamples.one(names.GARBAGE, coordinator.garbage)
    yield MetricSamples.one(names.ATTACHES, counts.attaches)
    yield MetricSamples.one(names.REFUSALS, counts.refusals)
    yield MetricSamples.one(names.SUPERSEDED, counts.superseded)
    yield MetricSamples.one(names.WORKERS_GONE, counts.workers_gone)
    yield MetricSamples.one(names.STALE_MESSAGES, counts.stale)
    yield MetricSamples.one(names.UNSENDABLE, coordinator.unsendable)
    yield MetricSamples.one(names.JOURNAL_ERRORS, coordinator.writer.errors)
    yield MetricSamples.one(names.JOURNAL_WAITING, coordinator.writer.waiting)
    yield MetricSamples.one(names.JOURNAL_LOST, bool(coordinator.writer.lost))
    yield MetricSamples.one(names.WORKERS, len(report["workers"]))
    yield MetricSamples(names.WORKER_SILENT, _silent(report["workers"]))
    streams = coordinator.streams
    yield MetricSamples(names.SAMPLES, {(name,): view.samples for name, view in streams.items()})
    left_out: Values = {
        (name, reason): count for name, view in streams.items() for reason, count in view.left_out.items()
    }
    yield MetricSamples(names.LEFT_OUT, left_out)
    yield from _streams(report["streams"], report["culprits"])
    yield from _connection_metrics(coordinator.doors, coordinator.guard)


def _silent(workers: list[dict[str, Any]]) -> Values:
    """By name; if several workers share one, the longest silence."""
    silent: Values = {}
    for one in workers:
        silent[one["name"],] = max(one["silent_s"], silent.get((one["name"],), 0.0))
    return silent


def _streams(streams: dict[str, Any], culprits: list[dict[str, Any]]) -> Iterator[MetricSamples]:
    yield MetricSamples(names.TRAINERS, {(name,): stream["attached"] for name, stream in streams.items()})
    yield MetricSamples(names.CULPRITS, {(name,): sum(one["stream"] == name for one in culprits) for name in streams})
    yield MetricSamples(names.LEASES, dict(_leases(streams)))
    elastic = {name: stream["elastic"] for name, stream in streams.items() if stream["elastic"] is not None}
    doing: Values = {(name, "training"): len(one["members"]) for name, one in elastic.items()}
    doing |= {(name, "waiting"): len(one["waiting"]) for name, one in elastic.items()}
    yield MetricSamples(names.ELASTIC, doing)
    yield MetricSamples(names.WORLD_CHANGES, {(name,): one["changes"] for name, one in elastic.items()})
    results = {name: stream["results"]["values"] for name, stream in streams.items() if stream["results"] is not None}
    known = ((stream, name, value) for stream, values in results.items() for name, value in values.items())
    yield MetricSamples(names.RESULTS, {(stream, name): value for stream, name, value in known if value is not None})
    yield MetricSamples(
        names.WAITED, {(name,): (stream["waited_permille"] or 0) / 1000 for name, stream in streams.items()}
    )
    trained = {name: stream for name, stream in streams.items() if not stream["evaluation"]}
    yield MetricSamples(names.TRAINED_EPOCH, {(name,): stream["epoch"] for name, stream in trained.items()})
    yield MetricSamples(names.TRAINED_NUMBER, {(name,): stream["number"] for name, stream in trained.items()})
    counted = {name: stream["batches"] for name, stream in trained.items() if stream["batches"] is not None}
    yield MetricSamples(names.EPOCH_BATCHES, {(name,): batches for name, batches in counted.items()})


_STATES = {"open": "open", "leased": "running", "done": "done", "dead": "given_up"}


def _leases(streams: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], float]]:
    for name, stream in streams.items():
        for work, table in (stream["queue"] or {}).items():
            yield from (((name, work, state), table[key]) for key, state in _STATES.items())


# --- both ---


def _connection_metrics(doors: Doors, guard: Guard) -> Iterator[MetricSamples]:
    yield MetricSamples(names.CONNECTIONS, {(port,): count for port, count in doors.count_connections().items()})
    changes = doors.changes.items()
    yield MetricSamples(
        names.CONNECTION_CHANGES, {(port, change): count for port, one in changes for change, count in one.items()}
    )
    yield MetricSamples.one(names.DOORS_SHUT, doors.times_shut)
    yield MetricSamples.one(names.WRONG_ROLES, guard.wrong_roles)


# --- a worker ---


def worker_metrics(worker: Worker) -> Iterator[MetricSamples]:
    """What the worker built, and how much there is to do."""
    counts, load = worker.counts, worker.load
    yield MetricSamples.one(names.GARBAGE, counts.garbage)
    yield MetricSamples.one(names.WANTS_WAITING, load.waiting if load else 0)
    yield MetricSamples.one(names.WANTS_BUILDING, load.building if load else 0)
    yield MetricSamples.one(names.UNSENT_BYTES, worker.unsent_bytes())
    yield MetricSamples.one(names.REFUSED_WANTS, counts.refused)
    yield MetricSamples.one(names.STALE_WANTS, counts.stale)
    yield MetricSamples(
        names.MASKED_SAMPLES, {(reason,): count for reason, count in list(worker.masked_by_reason.items())}
    )
    yield MetricSamples(names.FALLBACKS, {(reason,): count for reason, count in worker.fallbacks.items()})
    yield from _built(worker)
    yield from _remote(worker.remote_counts)
    yield from _connection_metrics(worker.doors, worker.guard)


def _remote(counts: RemoteCounts) -> Iterator[MetricSamples]:
    yield MetricSamples.one(names.REMOTE_BYTES, counts.fetched_bytes)
    yield MetricSamples(names.REMOTE_BLOCKS, {("found",): counts.found, ("waited",): counts.waited})
    yield MetricSamples.one(names.REMOTE_RETRIES, counts.retries)


def _built(worker: Worker) -> Iterator[MetricSamples]:
    streams = worker.build_counts
    yield MetricSamples(names.BUILT_BATCHES, {(name,): one.batches for name, one in streams.items()})
    yield MetricSamples(names.TAKEN_BATCHES, {(name,): one.taken for name, one in streams.items()})
    yield MetricSamples(names.BUILT_BYTES, {(name,): one.nbytes for name, one in streams.items()})
    unfit: Values = {(name, key): count for name, one in streams.items() for key, count in list(one.not_finite.items())}
    yield MetricSamples(names.NOT_FINITE_SAMPLES, unfit)
    seconds: Values = {}
    cells: Values = {}
    samples: Values = {}
    for name, one in streams.items():
        seconds[name, "plan_and_read"] = one.read_us / 1e6
        seconds[name, "decode_and_transform"] = one.decode_us / 1e6
        seconds[name, "write_and_digest"] = one.write_us / 1e6
        samples[name, "kept"] = one.kept_samples
        samples[name, "decoded"] = one.decoded_samples
        cells[name, "sample"] = one.sample_cells
        cells[name, "padding"] = one.padding_cells
        cells[name, "masked"] = one.masked_cells
    yield MetricSamples(names.BUILD_SECONDS, seconds)
    yield MetricSamples(names.BUILT_CELLS, cells)
    yield MetricSamples(names.DECODED_SAMPLES, samples)
