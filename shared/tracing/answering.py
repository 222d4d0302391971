"""The answer of a process to a request for its stamps.

Rules: pure. One page at a time, small enough for the coordinator's socket; who asks goes on from `next_row`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.tracing.ring import ROW, BatchKey
from shared.wire.messages import TracePage
from shared.wire.topics.trace_messages import MOST_STAMP_BYTES

if TYPE_CHECKING:
    from shared.tracing.ring import StampRing
    from shared.wire.messages import TraceWanted

__all__ = ["page_of"]


def page_of(ring: StampRing, wanted: TraceWanted, *, process: int, boot_id: str, now_ns: int) -> TracePage:
    """Return the page of stamps that was asked for; without stamps if none fits the request."""
    key = None if wanted.number is None else BatchKey(wanted.stream, wanted.number, wanted.epoch)
    since_ns = now_ns - wanted.last_ms * 10**6 if wanted.last_ms else 0
    page = ring.page(wanted.first_row, MOST_STAMP_BYTES // ROW.itemsize, since_ns=max(0, since_ns), key=key)
    return TracePage(
        serial=wanted.serial,
        process=process,
        gone=False,
        boot_id=boot_id,
        now_ns=now_ns,
        oldest_ns=ring.oldest_ns(),
        streams=ring.streams,
        stamps=page.rows.tobytes(),
        next_row=page.next_row,
        overwritten=page.overwritten,
    )
