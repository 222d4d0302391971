"""The metrics of coordinator and workers: their declarations, and their present values as samples.

Rules: everything here runs in the metrics server's thread when somebody asks, and reads only single numbers and values
that are replaced as a whole; nothing here is called for each batch.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from loader_server.coordinator.limit_metrics import limit_metrics
from loader_server.leases.table_counts import NO_REASON, TOOK_TOO_LONG
from loader_server.worker.host_metrics import host_samples
from shared.metrics.names import GARBAGE, Declarations
from shared.metrics.server import MetricSamples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from loader_server.building.build_counts import BuildCounts
    from loader_server.coordinator.service import Coordinator
    from loader_server.machine.doors import Doors
    from loader_server.worker.service import Worker
    from shared.guard import Guard
    from shared.metrics.names import Metric
    from shared.metrics.server import Values

__all__ = ["coordinator_metrics", "worker_metrics"]

_T = TypeVar("_T")

_server = Declarations("coordinator", "worker")
_coordinator = Declarations("coordinator")
_worker = Declarations("worker")

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
WORKERS = _coordinator.gauge(
    "stoker_workers",
    "Workers that are registered and have been heard of late.",
    "If fewer than were started, read the supervisor's log for one that dies.",
)
WORKERS_WANTED = _coordinator.gauge(
    "stoker_workers_wanted",
    "Workers on all hosts that the job could use; absent until trainers have read for some seconds.",
    "Above stoker_workers for minutes: trainers wait for data that more workers would bring; start some.",
)
WORKER_SILENT = _coordinator.gauge(
    "stoker_worker_silent_seconds",
    "Time since a worker's last heartbeat; one is due each quarter of heartbeat_timeout_s.",
    "Above the timeout its wants are asked elsewhere: look for a transform that holds the GIL, or a full disk.",
    ("worker",),
)
WORKERS_GONE = _coordinator.counter(
    "stoker_workers_gone_total",
    "Workers dropped for their silence.",
    "No data is lost; if it grows, look for out-of-memory kills and network cuts.",
)
WORKERS_REPLACED = _coordinator.counter(
    "stoker_workers_replaced_total",
    "Workers that died and were started again before their silence was noticed.",
    "If it grows, see the runbook, StokerWorkersFlapping: the supervisor's log has the cause of each death.",
)
TRAINERS = _coordinator.gauge(
    "stoker_trainers",
    "Trainers that are attached to a stream.",
    "If fewer than the job has, the others are waiting or have died: read their logs.",
    ("stream",),
)
TRAINERS_GONE = _coordinator.counter(
    "stoker_trainers_gone_total",
    "Trainers dropped for their silence; those that end in good order are not counted.",
    "See the runbook, StokerTrainerGone: it was killed, hangs, or is cut off.",
)
ATTACHES = _coordinator.counter(
    "stoker_attaches_total",
    "Attaches that were granted: starts, restarts and restored checkpoints of trainers.",
    "If it grows while nobody restarts anything, trainers are crashing or losing the coordinator.",
)
REFUSALS = _coordinator.counter(
    "stoker_refusals_total",
    "Trainers and workers that were refused.",
    "Each got the reason as an error: read its log, it names the setting to change.",
)
SUPERSEDED = _coordinator.counter(
    "stoker_superseded_trainers_total",
    "Trainers whose rank was taken over by a newer one.",
    "One per restart is normal; more means that two runs claim the same rank: stop one.",
)
STALE_MESSAGES = _coordinator.counter(
    "stoker_stale_messages_total",
    "Messages that something newer has overtaken: an attach that was repeated since, a trainer that was superseded.",
    "A few after a network cut are normal; if it grows, two runs claim the same rank: stop one.",
)
UNSENDABLE = _coordinator.counter(
    "stoker_unsendable_messages_total",
    "Answers that did not fit into a message, and were not sent.",
    "Zero is normal; if it grows, report it with the coordinator's log, which names the kind.",
)
WAITED = _coordinator.gauge(
    "stoker_waited_ratio",
    "Share of its recent time that the stream's longest-waiting trainer waited for data; 0 if nobody reads.",
    "From 0.05 on the loaders are the bottleneck: add workers. Below that the trainers are.",
    ("stream",),
)
TRAINED_EPOCH = _coordinator.gauge(
    "stoker_trained_epoch",
    "The epoch of the stream's slowest rank, in queue mode the first that is not done; evaluation streams have none.",
    "See stoker_trained_batch_number.",
    ("stream",),
)
TRAINED_NUMBER = _coordinator.gauge(
    "stoker_trained_batch_number",
    "The first batch number of that epoch that the slowest rank has not trained on; in queue mode, how many are done.",
    "If it stands still while trainers are attached, see the runbook, StokerNoProgress.",
    ("stream",),
)
EPOCH_BATCHES = _coordinator.gauge(
    "stoker_epoch_batches",
    "Batches in that epoch; absent until the first trainer fixes the group.",
    "Divide the batch number by it to know how much of the epoch is done.",
    ("stream",),
)
SAMPLES = _coordinator.gauge(
    "stoker_samples",
    "Samples in the stream's index.",
    "If that is not what the data set has, index again and read the report.",
    ("stream",),
)
LEFT_OUT = _coordinator.gauge(
    "stoker_left_out_samples",
    "Samples that the plan leaves out, and rows that the index left out, by reason.",
    "`loader-server plan` shows which settings decide it; `loader-server index --strict` names bad rows.",
    ("stream", "reason"),
)
CULPRITS = _coordinator.gauge(
    "stoker_culprit_samples",
    "Samples known to kill the process that decodes them; their rows are masked.",
    "`loader-server status --json` names them: take them out of the manifest, or mend the decoder.",
    ("stream",),
)
LEASES = _coordinator.gauge(
    "stoker_leases",
    "Batches of the epochs under way in queue mode, by what became of them: open, running, done, or given up in all.",
    "If some are given up, `loader-server status` names them: look at the errors that trainers reported.",
    ("stream", "work", "state"),
)
FAILED_TRIES = _coordinator.counter(
    "stoker_failed_tries_total",
    "Tries at leased batches that were lost in queue mode, by the reason that the trainer gave; past 32 reasons of a "
    "kind of work, as other reasons.",
    "Look at the most frequent reason in the trainers' logs: a batch that fails too often is given up.",
    ("stream", "work", "reason"),
)
ELASTIC = _coordinator.gauge(
    "stoker_elastic_trainers",
    "Trainers of an elastic run, by what they do: training, or waiting for a place (too few are there, or spares).",
    "If none trains, `loader-server status` says who is waited for: start more, or allow fewer.",
    ("stream", "kind"),
)
WORLD_CHANGES = _coordinator.counter(
    "stoker_world_changes_total",
    "Worlds of an elastic run that were over before its end, because trainers came or went.",
    "`loader-server status` names the last reason; if it grows fast, trainers die or their machines are overloaded.",
    ("stream",),
)
RESULTS = _coordinator.gauge(
    "stoker_result",
    "Loss and metrics of the last epoch, or evaluation, of a stream: means over all ranks, weighted by rows.",
    "One that is not a number is left out: look at the trainers' own output.",
    ("stream", "result"),
)
JOURNAL_ERRORS = _coordinator.counter(
    "stoker_journal_errors_total",
    "Writes to the journal that failed: their content would not survive a restart of the coordinator.",
    "Make room on the disk of the state folder; checkpoints of trainers still hold their cursors.",
)
JOURNAL_WAITING = _coordinator.gauge(
    "stoker_journal_waiting_facts",
    "Facts that could not be written to the journal yet; this is tried again each quarter of heartbeat_timeout_s.",
    "Above zero for longer than a moment: see the runbook, StokerJournalNotWritten.",
)
JOURNAL_LOST = _coordinator.gauge(
    "stoker_journal_lost",
    "1 if the journal's files were unlinked, moved, replaced or cut while the coordinator has them open, else 0.",
    "In queue mode nothing is leased until that is mended: see the runbook, StokerJournalLost.",
)
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


# --- the coordinator ---


def coordinator_metrics(coordinator: Coordinator) -> Iterator[MetricSamples]:
    """Yield the metrics of a coordinator and its job: counts, workers, streams, connections.

    Raise OSError if no descriptor is left to count connections with.
    """
    report, counts = coordinator.report, coordinator.counts
    numbers = {
        GARBAGE: coordinator.garbage,
        ATTACHES: counts.attaches,
        REFUSALS: counts.refusals,
        SUPERSEDED: counts.superseded,
        WORKERS_GONE: counts.workers_gone,
        WORKERS_REPLACED: counts.workers_replaced,
        TRAINERS_GONE: counts.trainers_gone,
        STALE_MESSAGES: counts.stale,
        UNSENDABLE: coordinator.unsendable,
        JOURNAL_ERRORS: coordinator.writer.errors,
        JOURNAL_WAITING: coordinator.writer.waiting,
        JOURNAL_LOST: bool(coordinator.writer.lost),
        WORKERS: len(report["workers"]),
    }
    yield from map(MetricSamples.single, numbers, numbers.values())
    yield MetricSamples(WORKERS_WANTED, _some_number(report["workers_wanted"]))
    yield from limit_metrics(coordinator.limits, report["streams"])
    yield MetricSamples(WORKER_SILENT, _silent(report["workers"]))
    views = coordinator.streams
    yield _by_stream(SAMPLES, views, lambda view: view.samples)
    yield _by_pair(LEFT_OUT, {name: view.left_out for name, view in views.items()})
    yield from _streams(report["streams"], report["culprits"])
    yield from _connection_metrics(coordinator.doors, coordinator.guard)


def _some_number(number: float | None) -> Values:
    """Return the one value of a metric without labels; none for None."""
    return {} if number is None else {(): number}


def _silent(workers: list[dict[str, Any]]) -> Values:
    """Return the silence of each worker in seconds by name; if several share a name, the longest."""
    silent: Values = {}
    for worker in workers:
        silent[worker["name"],] = max(worker["silent_s"], silent.get((worker["name"],), 0.0))
    return silent


def _by_stream(metric: Metric, streams: Mapping[str, _T], value_of: Callable[[_T], float]) -> MetricSamples:
    """Return a metric with one value for each stream.

    What `value_of` raises passes through.
    """
    return MetricSamples(metric, {(name,): value_of(stream) for name, stream in streams.items()})


def _by_pair(metric: Metric, nested: Mapping[str, Mapping[str, float]]) -> MetricSamples:
    """Return a metric with two labels, from its values by the first and then by the second."""
    pairs: Values = {(first, second): value for first, values in nested.items() for second, value in values.items()}
    return MetricSamples(metric, pairs)


def _streams(streams: dict[str, dict[str, Any]], culprits: list[dict[str, Any]]) -> Iterator[MetricSamples]:
    """Yield the metrics of streams, from the coordinator's status report.

    Trained positions are left out for streams of evaluations, and elastic figures, results and sizes where there are
    none.
    """
    yield _by_stream(TRAINERS, streams, itemgetter("attached"))
    convicted = Counter(culprit["stream"] for culprit in culprits)
    yield MetricSamples(CULPRITS, {(name,): convicted[name] for name in streams})
    yield MetricSamples(LEASES, dict(_leases(streams)))
    yield MetricSamples(FAILED_TRIES, dict(_failed_tries(streams)))
    yield from _elastic(_present(streams, "elastic"))
    yield MetricSamples(RESULTS, dict(_results(_present(streams, "results"))))
    yield _by_stream(WAITED, streams, lambda stream: (stream["waited_permille"] or 0) / 1000)
    trained = {name: stream for name, stream in streams.items() if not stream["evaluation"]}
    yield _by_stream(TRAINED_EPOCH, trained, itemgetter("epoch"))
    yield _by_stream(TRAINED_NUMBER, trained, itemgetter("number"))
    yield _by_stream(EPOCH_BATCHES, _present(trained, "batches"), int)


def _present(streams: dict[str, dict[str, Any]], key: str) -> dict[str, Any]:
    """Return this part of each stream's report, by stream, without streams in which it is None."""
    return {name: stream[key] for name, stream in streams.items() if stream[key] is not None}


def _elastic(worlds: dict[str, dict[str, Any]]) -> Iterator[MetricSamples]:
    trainers: Values = {(name, "training"): len(world["members"]) for name, world in worlds.items()}
    trainers |= {(name, "waiting"): len(world["waiting"]) for name, world in worlds.items()}
    yield MetricSamples(ELASTIC, trainers)
    yield _by_stream(WORLD_CHANGES, worlds, itemgetter("changes"))


def _results(results: dict[str, dict[str, Any]]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield each result by stream and name; None stands for one that is not a number, which is left out."""
    for stream, latest in results.items():
        yield from (((stream, name), value) for name, value in latest["values"].items() if value is not None)


_STATES = {"open": "open", "leased": "running", "done": "done", "dead": "given_up"}


def _leases(streams: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], float]]:
    for name, stream in streams.items():
        for work, table in (stream["queue"] or {}).items():
            yield from (((name, work, state), table[key]) for key, state in _STATES.items())


def _failed_tries(streams: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the lost tries by stream, kind of work and reason: those that are not a trainer's words from 0 on."""
    for name, stream in streams.items():
        for work, table in (stream["queue"] or {}).items():
            reasons = dict.fromkeys((NO_REASON, TOOK_TOO_LONG), 0) | table["reasons"]
            yield from (((name, work, reason), times) for reason, times in reasons.items())


# --- both ---


def _connection_metrics(doors: Doors, guard: Guard) -> Iterator[MetricSamples]:
    yield MetricSamples(CONNECTIONS, {(port,): count for port, count in doors.count_connections().items()})
    yield _by_pair(CONNECTION_CHANGES, doors.changes)
    yield MetricSamples.single(DOORS_SHUT, doors.times_shut)
    yield MetricSamples.single(WRONG_ROLES, guard.wrong_roles)


# --- a worker ---


def worker_metrics(worker: Worker) -> Iterator[MetricSamples]:
    """Yield the metrics of a worker: what it built, how much is waiting, and its connections.

    Raise OSError if no descriptor is left to count connections with.
    """
    counts, load = worker.counts, worker.load
    numbers = {
        GARBAGE: counts.garbage,
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
    yield from _connection_metrics(worker.doors, worker.guard)


#: The counts of a stream behind each value of a metric's second label.
_PHASES = {"plan_and_read": "read_us", "decode_and_transform": "decode_us", "write_and_digest": "write_us"}
_CELLS = {"sample": "sample_cells", "padding": "padding_cells", "masked": "masked_cells"}
_SAMPLES = {"kept": "kept_samples", "decoded": "decoded_samples"}


def _built(streams: Mapping[str, BuildCounts]) -> Iterator[MetricSamples]:
    yield _by_stream(BUILT_BATCHES, streams, attrgetter("batches"))
    yield _by_stream(TAKEN_BATCHES, streams, attrgetter("taken"))
    yield _by_stream(BUILT_BYTES, streams, attrgetter("nbytes"))
    # Copies, in one step each: the worker's threads may add a key while we iterate.
    yield _by_pair(NOT_FINITE_SAMPLES, {name: dict(counts.not_finite) for name, counts in streams.items()})
    microseconds = _by_kind(streams, _PHASES)
    yield MetricSamples(BUILD_SECONDS, {labels: spent_us / 1e6 for labels, spent_us in microseconds.items()})
    yield MetricSamples(BUILT_CELLS, {**_by_kind(streams, _CELLS)})
    yield MetricSamples(DECODED_SAMPLES, {**_by_kind(streams, _SAMPLES)})


def _by_kind(streams: Mapping[str, BuildCounts], kinds: Mapping[str, str]) -> dict[tuple[str, ...], int]:
    """Return the counts that `kinds` names by kind and attribute, by stream and kind."""
    return {(name, kind): getattr(counts, key) for name, counts in streams.items() for kind, key in kinds.items()}
