"""Every metric of Stoker, declared once: name, kind, labels, who exposes it, what it is, and what to do about it.

Rules: pure. Names start with `stoker_` and end in their unit where they have one; counters end in `_total`. Labels here
are those of the samples; job, role, worker and rank come with the scrape target (see scrape_targets). Anything that may
have many values (a sample, a batch number, an address) is never a label. This module must not know prometheus_client,
nor where the numbers come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from shared.wire.permissions import Role

__all__ = ["METRICS", "WAIT_BOUNDS_S", "Kind", "Metric"]

Kind = Literal["counter", "gauge", "histogram"]

#: From a batch that lay ready to one that a machine had to be restarted for, and the usual fractions of a step between.
WAIT_BOUNDS_S = (0.0001, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric; `what` and `remedy` together are its help text."""

    name: str
    kind: Kind
    roles: tuple[Role, ...]
    what: str
    remedy: str
    labels: tuple[str, ...]

    @property
    def help_text(self) -> str:
        """What Prometheus shows."""
        return f"{self.what} {self.remedy}"


#: Every metric by its name.
METRICS: dict[str, Metric] = {}


class _Declarations:
    """Declares what processes of some roles expose."""

    def __init__(self, *roles: Role) -> None:
        self._roles = roles

    def counter(self, name: str, what: str, remedy: str, labels: tuple[str, ...] = ()) -> Metric:
        return self._declare("counter", name, what, remedy, labels)

    def gauge(self, name: str, what: str, remedy: str, labels: tuple[str, ...] = ()) -> Metric:
        return self._declare("gauge", name, what, remedy, labels)

    def histogram(self, name: str, what: str, remedy: str, labels: tuple[str, ...] = ()) -> Metric:
        return self._declare("histogram", name, what, remedy, labels)

    def _declare(self, kind: Kind, name: str, what: str, remedy: str, labels: tuple[str, ...]) -> Metric:
        if name in METRICS:
            raise AssertionError(f"{name} is declared twice")
        metric = METRICS[name] = Metric(
            name=name, kind=kind, roles=self._roles, what=what, remedy=remedy, labels=labels
        )
        return metric


_everyone = _Declarations("coordinator", "worker", "trainer")
_server = _Declarations("coordinator", "worker")
_coordinator = _Declarations("coordinator")
_worker = _Declarations("worker")
_trainer = _Declarations("trainer")

GARBAGE = _everyone.counter(
    "stoker_garbage_messages_total",
    "Frames that are not messages of this protocol.",
    "Zero is normal; if it grows, something else talks to this port: shut it out.",
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
WORKERS = _coordinator.gauge(
    "stoker_workers",
    "Workers that are registered and have been heard of late.",
    "If fewer than were started, read the supervisor's log for one that dies.",
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
TRAINERS = _coordinator.gauge(
    "stoker_trainers",
    "Trainers that are attached to a stream.",
    "If fewer than the job has, the others are waiting or have died: read their logs.",
    ("stream",),
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
    "The epoch that the stream's slowest rank is in; evaluation streams have none.",
    "See stoker_trained_batch_number.",
    ("stream",),
)
TRAINED_NUMBER = _coordinator.gauge(
    "stoker_trained_batch_number",
    "The first batch number of that epoch that the stream's slowest rank has not trained on.",
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
    "`loader-server plan` says which settings decide it; `loader-server index --strict` names bad rows.",
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
    "If some are given up, `loader-server status` names them: look at what trainers said when they failed.",
    ("stream", "work", "state"),
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
DATA_WAIT = _trainer.histogram(
    "stoker_data_wait_seconds",
    "Time that the reader of the feed was blocked for each batch. Under tf.data the reader is its generator, "
    "which runs ahead of the steps, so this is then an upper bound for how long steps waited.",
    "Its rate is the share of time spent waiting; see stoker_data_wait_split_seconds_total for where that goes.",
    ("stream",),
)
STEP_WAIT = _trainer.counter(
    "stoker_step_wait_seconds_total",
    "Time that training steps were blocked for data, where the training loop measures it (FeedCheckpoint does).",
    "Its rate is the share of time that the accelerator idles for lack of data: above 0.05, look at the workers.",
    ("stream",),
)
PHASE_TIME = _trainer.counter(
    "stoker_phase_seconds_total",
    "What the training loop did besides waiting for data, where it says so (trainer-client train and FeedCheckpoint "
    "do). warm_up: tracing the step for all shapes. step: training. checkpoint: writing checkpoints.",
    "checkpoint above a few per cent: save less often (--save-every). warm_up: fewer shapes.",
    ("stream", "phase"),
)
RETRACES = _trainer.counter(
    "stoker_retraces_total",
    "Steps that TensorFlow traced in the midst of training, because a shape had not been planned.",
    'Zero is normal; if it grows, write pad_to = "bucket" and shapes = "auto": each costs as much as many steps.',
    ("stream",),
)
WAIT_SPLIT = _trainer.counter(
    "stoker_data_wait_split_seconds_total",
    "Where the reader's time went. build: blocked, up to the time that the worker spent on the batch (all of the "
    "wait, where it writes into our slot). transfer: blocked for the rest: network, and a worker's queue. "
    "conversion: after the wait, from slot to arrays, including copies made for lack of free slots.",
    "build: add workers. transfer: look at the network and at stoker_wants_waiting. conversion: keep fewer "
    "batches, or raise prefetch_bytes.",
    ("stream", "part"),
)
READ_BATCHES = _trainer.counter(
    "stoker_read_batches_total",
    "Batches handed to the reader.",
    "Its rate is the trainer's speed; compare ranks.",
    ("stream",),
)
READ_BYTES = _trainer.counter(
    "stoker_read_bytes_total",
    "Bytes of these batches, padding included.",
    "Compare its rate with the network's.",
    ("stream",),
)
READ_ROWS = _trainer.counter(
    "stoker_read_rows_total",
    "Rows of these batches by kind: sample, masked (its sample could not be used), vacant (no sample was planned).",
    "masked: read the quarantine log. vacant: see stoker_built_cells_total.",
    ("stream", "kind"),
)
PADDED_BYTES = _trainer.counter(
    "stoker_padded_bytes_total",
    "Bytes of the padded tensors of these batches by kind: sample, padding, masked.",
    "Every share but sample is accelerator time wasted: raise shapes.",
    ("stream", "kind"),
)
TRAINED_ROUNDS = _trainer.counter(
    "stoker_trained_rounds_total",
    "Rounds (steps of the whole world) that were trained on.",
    "If it stands still while batches are read, nobody calls feed.trained() or uses FeedCheckpoint.",
    ("stream",),
)
SLOTS = _trainer.gauge(
    "stoker_slots",
    "Slots by state: free, lent (to workers), offered (ready batches), out (the consumer holds them).",
    "None offered: loaders are slower than the trainer. All out: the consumer keeps batches; raise prefetch_bytes.",
    ("stream", "state"),
)
STAGED = _trainer.gauge(
    "stoker_staged_batches",
    "Batches that were handed to the reader, so that TensorFlow or a device has them, and not trained on yet. Ready "
    "ones that nobody took are those of stoker_slots in the state offered.",
    "None while steps wait and batches are offered: handing over is slow, see conversion in "
    "stoker_data_wait_split_seconds_total. It grows without end: nobody counts steps (feed.trained, FeedCheckpoint).",
    ("stream",),
)
ASKED = _trainer.counter(
    "stoker_asked_wants_total",
    "Wants sent to workers, including those asked again and hedged.",
    "The base for the shares of the next two.",
    ("stream",),
)
ASKED_AGAIN = _trainer.counter(
    "stoker_asked_again_wants_total",
    "Wants asked again, because a worker was silent, died or refused.",
    "A burst when a worker dies is normal; a steady rate means workers that stall: see stoker_worker_silent_seconds.",
    ("stream",),
)
HEDGED = _trainer.counter(
    "stoker_hedged_wants_total",
    "Wants asked of a second worker although the first was well, because the batch needed next took long.",
    "Near one in twenty: build times vary a lot, or one worker is slow.",
    ("stream",),
)
STALE_BATCHES = _trainer.counter(
    "stoker_stale_batches_total",
    "Batches dropped on arrival, because another answer came first or they are no longer wanted.",
    "About as many as were hedged or asked again is normal; more is wasted work: report it.",
    ("stream",),
)
REJECTED = _trainer.counter(
    "stoker_rejected_batches_total",
    "Batches whose digest, layout or number was not what was asked for.",
    "Even one is serious: look at that machine's memory and network.",
    ("stream",),
)
LOST_WANTS = _trainer.counter(
    "stoker_lost_wants_total",
    "Wants that never reached the worker, and were asked again.",
    "A few after a network cut are normal; a steady rate means a network that drops connections.",
    ("stream",),
)
RETRACTED = _trainer.counter(
    "stoker_retracted_batches_total",
    "Ready batches dropped to make room for the one needed next.",
    "If it grows, there are too few slots: raise prefetch_bytes, or let the consumer keep fewer batches.",
    ("stream",),
)
SUSPECTED = _trainer.counter(
    "stoker_suspected_workers_total",
    "How often a worker fell silent for this trainer.",
    "See stoker_worker_silent_seconds; if the coordinator hears that worker, look at the network between them.",
    ("stream",),
)
UNSEALED = _trainer.counter(
    "stoker_unsealed_batches_total",
    "Batches that came by a worker's connection for messages, although it sends sealed payloads from a port beside.",
    "A few at the start are normal; if it grows, open each worker's second port (docs/fleet.md): three times as fast.",
    ("stream",),
)
COPIED = _trainer.counter(
    "stoker_copied_batches_total",
    "Batches copied out of their slot, because the consumer held nearly all slots.",
    "Correct but slower: raise prefetch_bytes, or keep fewer batches.",
    ("stream",),
)
