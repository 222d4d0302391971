"""A trainer's metrics: their declarations, and a feed's counts as samples when Prometheus asks.

Rules: everything here runs in the server's thread and reads only single numbers and lists of fixed length; nothing here
runs for each batch. The server references the feed weakly, so that it keeps no feed open, and ends with the feed's
receive thread. A trainer serves metrics only if it was connected with `metrics_port` or `metrics_listen`.
"""

from __future__ import annotations

import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shared.metrics.names import GARBAGE, Declarations
from shared.metrics.scrape_targets import trainer_labels
from shared.metrics.server import MetricSamples, MetricsServer, Spread
from trainer_client.core.slot_states import SlotState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.metrics.listening import Listening
    from shared.metrics.names import Metric
    from trainer_client.core.attached_stream import AttachedStream
    from trainer_client.network.receiver import Receiver
    from trainer_client.session.batch_maker import BatchMaker
    from trainer_client.session.epoch_account import Accounts, ReadCounts

__all__ = ["serve", "trainer_samples"]


_trainer = Declarations("trainer")

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
    "What the training loop did besides waiting for data, where it reports it (trainer-client train and FeedCheckpoint "
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


def serve(
    receiver: Receiver, maker: BatchMaker, accounts: Accounts, *, listening: Listening, targets: str | Path | None
) -> None:
    """Serve a feed's metrics until its receive thread ends; with `targets`, announce the address in that folder.

    Raise SettingsError if the port cannot be used; a folder that cannot be written to only logs a warning. MachineError
    of `MetricsServer` passes through.
    """
    spec, core = receiver.spec, receiver.settings.core
    # In queue mode nobody has a rank: all would say 0.
    rank = core.ranks.rank if not spec.work else None
    labels = {"job": spec.job} | trainer_labels(spec.stream, rank, core.name)
    samples = partial(_samples_while_used, weakref.ref(receiver), weakref.ref(maker), accounts)
    folder = Path(targets) if targets is not None else None
    server = MetricsServer(samples, listening=listening, labels=labels, targets_folder=folder)
    receiver.at_end(server.close)
    receiver.standing.metrics = server.bound


def _samples_while_used(
    held: weakref.ref[Receiver], held_maker: weakref.ref[BatchMaker], accounts: Accounts
) -> Iterator[MetricSamples]:
    receiver, maker = held(), held_maker()
    if receiver is not None and maker is not None:
        yield from trainer_samples(receiver, maker, accounts)


def trainer_samples(receiver: Receiver, maker: BatchMaker, accounts: Accounts) -> Iterator[MetricSamples]:
    """Yield the samples of all metrics of a feed; step waits are left out until the training loop reports any.

    Garbage, waits, and the feed's counts and sums by part are always there, with zeros.
    """
    stream, counts = receiver.settings.core.stream, accounts.counts
    yield MetricSamples.single(GARBAGE, receiver.count_garbage())
    yield MetricSamples(DATA_WAIT, {(stream,): Spread(tuple(counts.waits), counts.wait_s)})
    if counts.step_wait_s is not None:
        yield MetricSamples.single(STEP_WAIT, counts.step_wait_s, stream)
    for metric, number in _numbers(receiver, maker, accounts).items():
        yield MetricSamples.single(metric, number, stream)
    for metric, parts in _parts(receiver.stream, counts).items():
        yield MetricSamples(metric, {(stream, part): number for part, number in parts.items()})


def _numbers(receiver: Receiver, maker: BatchMaker, accounts: Accounts) -> dict[Metric, float]:
    counts, wants, answers = accounts.counts, receiver.stream.wants, receiver.stream.answers
    return {
        UNSEALED: receiver.count_fallbacks(),
        COPIED: maker.copied,
        STAGED: accounts.staged,
        ASKED: wants.asked,
        ASKED_AGAIN: wants.asked_again,
        HEDGED: wants.hedged,
        RETRACTED: wants.retracted,
        STALE_BATCHES: answers.stale,
        REJECTED: answers.rejected,
        LOST_WANTS: answers.lost_on_the_way,
        SUSPECTED: receiver.stream.tickets.suspected,
        RETRACES: counts.retraces,
        READ_BATCHES: counts.batches,
        READ_BYTES: counts.nbytes,
        TRAINED_ROUNDS: counts.rounds,
    }


def _parts(stream: AttachedStream, counts: ReadCounts) -> dict[Metric, dict[str, float]]:
    """Return the numbers of metrics with a second label, by that label."""
    return {
        SLOTS: {state.value: stream.slots.count(state) for state in SlotState},
        WAIT_SPLIT: {
            "build": counts.build_wait_s,
            "transfer": counts.transfer_wait_s,
            "conversion": counts.conversion_s,
        },
        PHASE_TIME: dict(counts.phases_s),
        READ_ROWS: {"sample": counts.sample_rows, "masked": counts.masked_rows, "vacant": counts.vacant_rows},
        PADDED_BYTES: {"sample": counts.sample_bytes, "padding": counts.padding_bytes, "masked": counts.masked_bytes},
    }
