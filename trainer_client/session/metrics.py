"""A trainer's metrics: turns what its feed counted into samples when Prometheus asks.

Rules: everything here runs in the server's thread and reads only single numbers and lists of fixed length; nothing here
runs for each batch. The server references the feed weakly, so that it keeps none open that nobody else has, and ends
with its receive thread. What the numbers mean is declared in `shared.metrics.names`. A trainer serves metrics only if
it was connected with `metrics_port` or `metrics_listen`.
"""

from __future__ import annotations

import os
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shared.metrics import names
from shared.metrics.server import MetricSamples, MetricsServer, Spread
from trainer_client.core.slot_states import SlotState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.metrics.listening import Listening
    from trainer_client.core.attached_stream import AttachedStream
    from trainer_client.network.receiver import Receiver
    from trainer_client.session.batch_maker import BatchMaker
    from trainer_client.session.epoch_account import Accounts, ReadCounts

__all__ = ["serve", "trainer_samples"]


def serve(
    receiver: Receiver, maker: BatchMaker, accounts: Accounts, *, listening: Listening, targets: str | Path | None
) -> None:
    """Serve a feed's metrics until its receive thread ends; with `targets`, a file in that folder says where."""
    spec, core = receiver.spec, receiver.settings.core
    process = f"{spec.stream}-{os.uname().nodename}-{os.getpid()}"
    labels = {"job": spec.job, "role": "trainer", "rank": str(core.ranks.rank), "trainer": process}
    samples = partial(_samples_while_used, weakref.ref(receiver), weakref.ref(maker), accounts)
    folder = Path(targets) if targets is not None else None
    receiver.at_end(MetricsServer(samples, listening=listening, labels=labels, targets_folder=folder).close)


def _samples_while_used(
    held: weakref.ref[Receiver], held_maker: weakref.ref[BatchMaker], accounts: Accounts
) -> Iterator[MetricSamples]:
    receiver, maker = held(), held_maker()
    if receiver is not None and maker is not None:
        yield from trainer_samples(receiver, maker, accounts)


def trainer_samples(receiver: Receiver, maker: BatchMaker, accounts: Accounts) -> Iterator[MetricSamples]:
    """The samples of all metrics of a feed."""
    name, stream = receiver.settings.core.stream, receiver.stream
    yield MetricSamples.one(names.GARBAGE, receiver.count_garbage())
    yield MetricSamples.one(names.UNSEALED, receiver.count_fallbacks(), name)
    yield MetricSamples.one(names.COPIED, maker.copied, name)
    yield MetricSamples(names.SLOTS, {(name, state.value): stream.slots.count(state) for state in SlotState})
    yield MetricSamples.one(names.STAGED, accounts.staged, name)
    yield from _wants(stream, name)
    yield from _waits(accounts.counts, name)
    yield from _reads(accounts.counts, name)


def _wants(stream: AttachedStream, name: str) -> Iterator[MetricSamples]:
    wants, answers = stream.wants, stream.answers
    yield MetricSamples.one(names.ASKED, wants.asked, name)
    yield MetricSamples.one(names.ASKED_AGAIN, wants.asked_again, name)
    yield MetricSamples.one(names.HEDGED, wants.hedged, name)
    yield MetricSamples.one(names.STALE_BATCHES, answers.stale, name)
    yield MetricSamples.one(names.REJECTED, answers.rejected, name)
    yield MetricSamples.one(names.LOST_WANTS, answers.lost_on_the_way, name)
    yield MetricSamples.one(names.RETRACTED, wants.retracted, name)
    yield MetricSamples.one(names.SUSPECTED, stream.tickets.suspected, name)


def _waits(counts: ReadCounts, stream: str) -> Iterator[MetricSamples]:
    yield MetricSamples(names.DATA_WAIT, {(stream,): Spread(tuple(counts.waits), counts.wait_s)})
    parts = {
        "build": counts.build_wait_s,
        "transfer": counts.transfer_wait_s,
        "conversion": counts.conversion_s,
    }
    yield MetricSamples(names.WAIT_SPLIT, {(stream, part): seconds for part, seconds in parts.items()})
    if counts.step_wait_s is not None:
        yield MetricSamples.one(names.STEP_WAIT, counts.step_wait_s, stream)
    yield MetricSamples(names.PHASE_TIME, {(stream, phase): seconds for phase, seconds in counts.phases_s.items()})
    yield MetricSamples.one(names.RETRACES, counts.retraces, stream)


def _reads(counts: ReadCounts, stream: str) -> Iterator[MetricSamples]:
    yield MetricSamples.one(names.READ_BATCHES, counts.batches, stream)
    yield MetricSamples.one(names.READ_BYTES, counts.nbytes, stream)
    yield MetricSamples.one(names.TRAINED_ROUNDS, counts.rounds, stream)
    rows = {"sample": counts.sample_rows, "masked": counts.masked_rows, "vacant": counts.vacant_rows}
    yield MetricSamples(names.READ_ROWS, {(stream, kind): count for kind, count in rows.items()})
    padded = {"sample": counts.sample_bytes, "padding": counts.padding_bytes, "masked": counts.masked_bytes}
    yield MetricSamples(names.PADDED_BYTES, {(stream, kind): nbytes for kind, nbytes in padded.items()})
