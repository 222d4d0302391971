"""Messages of a worker that say what it has built: the header of a batch, and the heartbeat."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from loader_server.machine.cpu_throttling import throttled_us
from shared.wire import messages as m
from shared.wire.message_parts import WireShape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loader_server.building.build_counts import BuildCounts
    from loader_server.building.build_thread import BuildThread, Outcome

__all__ = ["build_report", "pushed_of"]


def pushed_of(outcome: Outcome, waiting: int) -> m.Pushed:
    """Return the header of a built batch; `waiting` is how many wants the worker still has to build.

    The outcome must have a batch.
    """
    want, built = outcome.build.want, outcome.built
    assert built is not None
    assert outcome.shape is not None
    assert outcome.payload is not None
    return m.Pushed(
        ticket=want.ticket,
        epoch=want.epoch,
        number=want.number,
        empty=want.empty,
        in_slot=want.in_slot,
        shape=WireShape.of(outcome.shape),
        nbytes=outcome.payload.nbytes,
        digest=built.digest,
        rows=built.rows,
        masked=built.masked,
        reason=built.reason,
        reasons=built.reasons,
        build_us=built.build_us,
        read_us=built.read_us,
        held_us=int(1e6 * (time.monotonic() - outcome.build.accepted_s)),
        waiting=waiting,
    )


def build_report(thread: BuildThread, counts: Iterable[BuildCounts]) -> dict[str, int]:
    """Return the fields of a heartbeat on building: sums over all streams, and times in µs.

    Times are those of the building thread, of wants that waited for it, and in which our control group was throttled.
    """
    streams = list(counts)
    return {
        "building": thread.load,
        "kept": sum(sums.kept_samples for sums in streams),
        "decoded": sum(sums.decoded_samples for sums in streams),
        "taken": sum(sums.taken for sums in streams),
        "busy_us": int(1e6 * thread.busy_s()),
        "awaited_us": int(1e6 * thread.awaited_s()),
        "read_us": sum(sums.read_us for sums in streams),
        "held_up_us": int(1e6 * thread.held_up_s()),
        "throttled_us": throttled_us(),
        "queued_us": int(1e6 * thread.queued_s),
    }
