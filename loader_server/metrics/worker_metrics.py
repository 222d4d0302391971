"""The metrics of a worker: their declarations, and their present values as samples.

Rules: everything here runs in the metrics server's thread when somebody asks, and reads only single numbers and values
that are replaced as a whole; nothing here is called for each batch.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from loader_server.metrics.host_metrics import host_samples
from loader_server.metrics.shared_metrics import RESTARTS, by_pair, by_stream, connection_metrics
from shared.metrics.names import GARBAGE, Declarations
from shared.metrics.server import MetricSamples, Spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from loader_server.building.build_counts import BuildCounts
    from loader_server.worker.service import Worker
    from shared.metrics.server import Values

__all__ = ["worker_metrics"]

_worker = Declarations("worker")

WANTS_WAITING = _worker.gauge(
    "stoker_wants_waiting",
    "Wants in the worker's queue that nobody has begun to build.",
    "Always above zero while trainers wait: workers are the bottleneck, add some. Always zero: it has time to spare.",
)
WANTS_BUILDING = _worker.gauge(
    "stoker_wants_building",
    "Wants whose samples are being read ahead or whose batch is being built.",
    "At its limit of 4 for minutes while nothing is built: the source's disk or mount does not answer.",
)
BUILD_SECONDS = _worker.counter(
    "stoker_build_seconds_total",
    "Time spent on batches by phase: plan_and_read (in threads that read ahead), decode_and_transform, "
    "write_and_digest (both in the one building thread).",
    "Make the largest phase cheaper: faster storage, a cheaper transform, or smaller dtypes.",
    ("stream", "phase"),
)
BUILD_CPU_SECONDS = _worker.counter(
    "stoker_build_cpu_seconds_total",
    "CPU time of building threads by phase: plan_and_read (in threads that read ahead), build (decoding, transforming, "
    "writing and digests), encode_and_seal (of batches that go by TCP).",
    "Far below stoker_build_seconds_total: the phase waits (for a disk, a store or a lock), or the machine has too few "
    "cores. As high as it: make the phase cheaper, or add workers on other machines.",
    ("stream", "phase"),
)
WANT_QUEUE_SECONDS = _worker.histogram(
    "stoker_want_queue_seconds",
    "Time from the arrival of a want until the worker began to read its samples, or to build if it reads none.",
    "Longer than a build takes, while trainers wait: the worker is behind, add workers. Much longer at one worker than "
    "at the others: its machine is slower than trainers believe.",
    ("stream",),
)
BUILT_BATCHES = _worker.counter(
    "stoker_built_batches_total",
    "Batches built, including those that were cancelled meanwhile.",
    "If one worker's rate is far below the others', its machine is slow or shared.",
    ("stream",),
)
TAKEN_BATCHES = _worker.counter(
    "stoker_taken_batches_total",
    "Of the batches built, those that another worker had built (share).",
    "Few although two jobs read the same: one lags by more than share_bytes holds, or their bytes would differ.",
    ("stream",),
)
BUILT_BYTES = _worker.counter(
    "stoker_built_bytes_total",
    "Bytes of built batches, padding included.",
    "Compare its rate with the network's; a smaller dtype or more buckets reduce it.",
    ("stream",),
)
BUILT_CELLS = _worker.counter(
    "stoker_built_cells_total",
    "Cells (rows times padded length of the bucketed key) by kind: sample, padding (after a sample's end), "
    "masked (rows without a sample).",
    "Much padding: raise shapes. Much masked: fewer shapes, a smaller group, or a larger window.",
    ("stream", "kind"),
)
DECODED_SAMPLES = _worker.counter(
    "stoker_samples_total",
    "Samples of batches that were built one by one, by whether the feature cache had them (kept) or not (decoded).",
    "Few kept after the first epoch: raise feature_cache_bytes, or move transforms that draw behind the others.",
    ("stream", "kind"),
)
REMOTE_BYTES = _worker.counter(
    "stoker_remote_fetched_bytes_total",
    "Bytes of remote files that came from their stores into this machine's cache, fetched ahead or not.",
    "More than the data once: the cache holds less than a window needs, so raise remote_cache_bytes.",
)
REMOTE_BLOCKS = _worker.counter(
    "stoker_remote_blocks_total",
    "Blocks and whole files of remote files that were needed, by whether the cache had them (found) or somebody had to "
    "wait for the store (waited).",
    "Many waited for after the first minute: the store is slower than the trainers, or the cache too small to look "
    "ahead.",
    ("kind",),
)
REMOTE_WAIT = _worker.counter(
    "stoker_remote_wait_seconds_total",
    "Time that readers waited for remote blocks and files which the cache did not have.",
    "Divided by the blocks waited for, it is what one takes: see the runbook, StokerRemoteSlow.",
)
REMOTE_RETRIES = _worker.counter(
    "stoker_remote_retries_total",
    "Requests to stores that failed and were made again.",
    "A few are normal; if it grows steadily, the store throttles or the network drops. A fifth attempt is the last.",
)
MASKED_SAMPLES = _worker.counter(
    "stoker_masked_samples_total",
    "Samples that could not be used and whose row was masked, by reason, counted each time.",
    "The quarantine log in the state folder names each with its error: mend or remove them.",
    ("reason",),
)
NOT_FINITE_SAMPLES = _worker.counter(
    "stoker_not_finite_samples_total",
    "Samples of built batches in which a float value is NaN or infinite, by key, counted each time; not_finite in "
    "[job] says whether they are masked.",
    "A loss that becomes NaN may come from them. The worker's log names the first of each key: mend it, or the "
    'transform that makes it, or write not_finite = "mask".',
    ("stream", "key"),
)
FALLBACKS = _worker.counter(
    "stoker_fallbacks_total",
    "Batches whose samples could not be decoded and transformed at once, so that each was taken on its own, by reason: "
    "bad_sample (one of them could not be used), defect (none was bad), exhausted (memory or descriptors ran out), "
    "failed (the batch could not be built at all).",
    "bad_sample: see stoker_masked_samples_total. defect: slower, and Stoker's fault: the worker's log has a "
    "traceback, report it. exhausted: look at memory and open files. failed: read the worker's log.",
    ("reason",),
)
REFUSED_WANTS = _worker.counter(
    "stoker_refused_wants_total",
    "Wants answered without a batch: a different plan, a worker that drains, a source that fails, memory that ran out.",
    "Trainers ask elsewhere and stop if all refuse: read this worker's log.",
)
STALE_WANTS = _worker.counter(
    "stoker_stale_wants_total",
    "Wants dropped because their ticket was not above the last one of its slot.",
    "Zero is normal; if it grows, report it with the logs of both sides.",
)
UNSENT_BYTES = _worker.gauge(
    "stoker_unsent_bytes",
    "Bytes of built batches that are still being sent by TCP.",
    "Near queue_bytes: the network or a trainer is slower than the builder; more workers will not help.",
)


def worker_metrics(worker: Worker, restarts: int = 0) -> Iterator[MetricSamples]:
    """Yield the metrics of a worker, started again `restarts` times: batches, what is waiting, connections.

    Raise OSError if no descriptor is left to count connections with.
    """
    counts, load = worker.counts, worker.load
    numbers = {
        GARBAGE: counts.garbage,
        RESTARTS: restarts,
        WANTS_WAITING: load.waiting if load else 0,
        WANTS_BUILDING: load.building if load else 0,
        UNSENT_BYTES: worker.unsent_bytes(),
        REFUSED_WANTS: counts.refused,
        STALE_WANTS: counts.stale,
    }
    yield from map(MetricSamples.single, numbers, numbers.values())
    # `list`: the worker's threads may add a reason while we iterate.
    yield MetricSamples(MASKED_SAMPLES, {(reason,): count for reason, count in list(worker.masked_by_reason.items())})
    yield MetricSamples(FALLBACKS, {(reason,): count for reason, count in worker.fallbacks.items()})
    yield from _built(worker.build_counts)
    remote = worker.remote_counts
    yield MetricSamples.single(REMOTE_BYTES, remote.fetched_bytes)
    yield MetricSamples(REMOTE_BLOCKS, {("found",): remote.found, ("waited",): remote.waited})
    yield MetricSamples.single(REMOTE_WAIT, remote.waited_s)
    yield MetricSamples.single(REMOTE_RETRIES, remote.retries)
    yield from host_samples(load.held_up_us / 1e6 if load else 0.0)
    yield from connection_metrics(worker.doors, worker.guard)


#: The counts of a stream behind each value of a metric's second label.
_PHASES = {"plan_and_read": "read_us", "decode_and_transform": "decode_us", "write_and_digest": "write_us"}
_CPU = {"plan_and_read": "read_cpu_s", "build": "build_cpu_s", "encode_and_seal": "send_cpu_s"}
_CELLS = {"sample": "sample_cells", "padding": "padding_cells", "masked": "masked_cells"}
_SAMPLES = {"kept": "kept_samples", "decoded": "decoded_samples"}


def _built(streams: Mapping[str, BuildCounts]) -> Iterator[MetricSamples]:
    yield by_stream(BUILT_BATCHES, streams, attrgetter("batches"))
    yield by_stream(TAKEN_BATCHES, streams, attrgetter("taken"))
    yield by_stream(BUILT_BYTES, streams, attrgetter("nbytes"))
    # Copies, in one step each: the worker's threads may add a key while we iterate.
    yield by_pair(NOT_FINITE_SAMPLES, {name: dict(counts.not_finite) for name, counts in streams.items()})
    microseconds = _by_kind(streams, _PHASES)
    yield MetricSamples(BUILD_SECONDS, {labels: spent_us / 1e6 for labels, spent_us in microseconds.items()})
    yield MetricSamples(BUILD_CPU_SECONDS, {**_by_kind(streams, _CPU)})
    queued: Values = {(name,): Spread(tuple(counts.queued), counts.queued_s) for name, counts in streams.items()}
    yield MetricSamples(WANT_QUEUE_SECONDS, queued)
    yield MetricSamples(BUILT_CELLS, {**_by_kind(streams, _CELLS)})
    yield MetricSamples(DECODED_SAMPLES, {**_by_kind(streams, _SAMPLES)})


def _by_kind(streams: Mapping[str, BuildCounts], kinds: Mapping[str, str]) -> dict[tuple[str, ...], float]:
    """Return the counts that `kinds` names by kind and attribute, by stream and kind."""
    return {(name, kind): getattr(counts, key) for name, counts in streams.items() for kind, key in kinds.items()}
