"""The metrics of coordinator and workers: what they counted, as samples.

Rules: everything here runs in the server's thread while it is being asked, and reads only what is replaced whole or is
a single number; nothing here is called for a batch. What the numbers mean is declared in `shared.metric_names`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared import metric_names as names
from shared.exposition import Samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loader_server.coordinator.service import Coordinator
    from loader_server.worker import Worker
    from shared.exposition import Values

__all__ = ["coordinator_samples", "worker_samples"]


# --- the coordinator ---


def coordinator_samples(coordinator: Coordinator) -> Iterator[Samples]:
    """How the job stands."""
    report, counts = coordinator.report, coordinator.counts
    yield Samples.one(names.GARBAGE, coordinator.garbage)
    yield Samples.one(names.ATTACHES, counts.attaches)
    yield Samples.one(names.REFUSALS, counts.refusals)
    yield Samples.one(names.SUPERSEDED, counts.superseded)
    yield Samples.one(names.WORKERS_GONE, counts.workers_gone)
    yield Samples.one(names.JOURNAL_ERRORS, coordinator.journal_errors)
    yield Samples.one(names.WORKERS, len(report["workers"]))
    yield Samples(names.WORKER_SILENT, {(one["name"],): one["silent_s"] for one in report["workers"]})
    yield Samples(names.SAMPLES, {(stream,): count for stream, count in coordinator.samples.items()})
    yield Samples(
        names.LEFT_OUT,
        {(stream, reason): count for stream, left in coordinator.left_out.items() for reason, count in left.items()},
    )
    yield from _streams(report["streams"], report["culprits"])


def _streams(streams: dict[str, Any], culprits: list[dict[str, Any]]) -> Iterator[Samples]:
    yield Samples(names.TRAINERS, {(name,): len(stream["trainers"]) for name, stream in streams.items()})
    yield Samples(names.CULPRITS, {(name,): sum(one["stream"] == name for one in culprits) for name in streams})
    trained = {name: stream for name, stream in streams.items() if not stream["evaluation"]}
    yield Samples(names.TRAINED_EPOCH, {(name,): stream["epoch"] for name, stream in trained.items()})
    yield Samples(names.TRAINED_NUMBER, {(name,): stream["number"] for name, stream in trained.items()})
    known = {name: stream["batches"] for name, stream in trained.items() if stream["batches"] is not None}
    yield Samples(names.EPOCH_BATCHES, {(name,): batches for name, batches in known.items()})


# --- a worker ---


def worker_samples(worker: Worker) -> Iterator[Samples]:
    """What the worker built, and how much there is to do."""
    counts, load = worker.counts, worker.load
    yield Samples.one(names.GARBAGE, counts.garbage)
    yield Samples.one(names.WANTS_WAITING, load.waiting if load else 0)
    yield Samples.one(names.WANTS_BUILDING, load.building if load else 0)
    yield Samples.one(names.UNSENT_BYTES, worker.unsent_bytes())
    yield Samples.one(names.REFUSED_WANTS, counts.refused)
    yield Samples.one(names.STALE_WANTS, counts.stale)
    yield Samples(names.MASKED_SAMPLES, {(reason,): count for reason, count in list(worker.masked_by_reason.items())})
    yield from _built(worker)


def _built(worker: Worker) -> Iterator[Samples]:
    streams = worker.build_counts
    yield Samples(names.BUILT_BATCHES, {(name,): one.batches for name, one in streams.items()})
    yield Samples(names.BUILT_BYTES, {(name,): one.nbytes for name, one in streams.items()})
    seconds: Values = {}
    cells: Values = {}
    for name, one in streams.items():
        seconds[name, "plan_and_read"] = one.read_us / 1e6
        seconds[name, "decode_and_transform"] = one.decode_us / 1e6
        seconds[name, "write_and_digest"] = one.write_us / 1e6
        cells[name, "sample"] = one.sample_cells
        cells[name, "padding"] = one.padding_cells
        cells[name, "masked"] = one.masked_cells
    yield Samples(names.BUILD_SECONDS, seconds)
    yield Samples(names.BUILT_CELLS, cells)
