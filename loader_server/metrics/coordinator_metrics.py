"""The metrics of a coordinator and its job: their declarations, and their present values as samples.

Rules: everything here runs in the metrics server's thread when somebody asks, and reads only single numbers and values
that are replaced as a whole; nothing here is called for each batch.
"""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from loader_server.leases.table_counts import NO_REASON, TOOK_TOO_LONG
from loader_server.metrics.limit_metrics import limit_metrics
from loader_server.metrics.shared_metrics import RESTARTS, by_pair, by_stream, connection_metrics
from shared.metrics.names import GARBAGE, Declarations
from shared.metrics.server import MetricSamples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loader_server.coordinator.service import Coordinator
    from shared.metrics.server import Values

__all__ = ["coordinator_metrics"]

_coordinator = Declarations("coordinator")

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
    "Starts and restarts of trainers, each counted once, when it attaches to a stream for the first time.",
    "If it grows while nobody restarts anything, trainers are crashing or losing the coordinator.",
)
REATTACHES = _coordinator.counter(
    "stoker_reattaches_total",
    "Attaches of trainers that had attached before: a checkpoint, another world, or a coordinator that is back.",
    "If it grows while nobody restores anything, trainers lose the coordinator, or an elastic run changes its world.",
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


def coordinator_metrics(coordinator: Coordinator, restarts: int = 0) -> Iterator[MetricSamples]:
    """Yield the metrics of a coordinator, started again `restarts` times, and its job: workers, streams, connections.

    Raise OSError if no descriptor is left to count connections with.
    """
    report, counts = coordinator.report, coordinator.counts
    numbers = {
        GARBAGE: coordinator.garbage,
        RESTARTS: restarts,
        ATTACHES: counts.attaches,
        REATTACHES: counts.reattaches,
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
    yield by_stream(SAMPLES, views, lambda view: view.samples)
    yield by_pair(LEFT_OUT, {name: view.left_out for name, view in views.items()})
    yield from _streams(report["streams"], report["culprits"])
    yield from connection_metrics(coordinator.doors, coordinator.guard)


def _some_number(number: float | None) -> Values:
    """Return the one value of a metric without labels; none for None."""
    return {} if number is None else {(): number}


def _silent(workers: list[dict[str, Any]]) -> Values:
    """Return the silence of each worker in seconds by name; if several share a name, the longest."""
    silent: Values = {}
    for worker in workers:
        silent[worker["name"],] = max(worker["silent_s"], silent.get((worker["name"],), 0.0))
    return silent


def _streams(streams: dict[str, dict[str, Any]], culprits: list[dict[str, Any]]) -> Iterator[MetricSamples]:
    """Yield the metrics of streams, from the coordinator's status report.

    Trained positions are left out for streams of evaluations, and elastic figures, results and sizes where there are
    none.
    """
    yield by_stream(TRAINERS, streams, itemgetter("attached"))
    convicted = Counter(culprit["stream"] for culprit in culprits)
    yield MetricSamples(CULPRITS, {(name,): convicted[name] for name in streams})
    yield MetricSamples(LEASES, dict(_leases(streams)))
    yield MetricSamples(FAILED_TRIES, dict(_failed_tries(streams)))
    yield from _elastic(_present(streams, "elastic"))
    yield MetricSamples(RESULTS, dict(_results(_present(streams, "results"))))
    yield by_stream(WAITED, streams, lambda stream: (stream["waited_permille"] or 0) / 1000)
    trained = {name: stream for name, stream in streams.items() if not stream["evaluation"]}
    yield by_stream(TRAINED_EPOCH, trained, itemgetter("epoch"))
    yield by_stream(TRAINED_NUMBER, trained, itemgetter("number"))
    yield by_stream(EPOCH_BATCHES, _present(trained, "batches"), int)


def _present(streams: dict[str, dict[str, Any]], key: str) -> dict[str, Any]:
    """Return this part of each stream's report, by stream, without streams in which it is None."""
    return {name: stream[key] for name, stream in streams.items() if stream[key] is not None}


def _elastic(worlds: dict[str, dict[str, Any]]) -> Iterator[MetricSamples]:
    trainers: Values = {(name, "training"): len(world["members"]) for name, world in worlds.items()}
    trainers |= {(name, "waiting"): len(world["waiting"]) for name, world in worlds.items()}
    yield MetricSamples(ELASTIC, trainers)
    yield by_stream(WORLD_CHANGES, worlds, itemgetter("changes"))


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
