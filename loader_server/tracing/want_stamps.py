"""A worker's stamps: when each want came, was read, built and answered.

Rules: the poll loop, the building thread and the readers all stamp, without a lock (see `shared.tracing.ring`).
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from shared.tracing.ring import StampKind, StampRing, bare_key, stamp_key

if TYPE_CHECKING:
    from shared.wire.messages import Want

__all__ = ["WantStamps"]


class WantStamps:
    """The stamps of one worker."""

    def __init__(self) -> None:
        self.ring = StampRing()
        #: Notes kind and time of what happened to the want with a key; without a method in between, as it costs.
        self.stamp = self.ring.stamp

    def key(self, want: Want) -> bytes:
        """Return what all stamps of a want have in common; raise struct.error if a field does not fit."""
        stream = self.ring.stream_number(want.stream)
        return stamp_key(want.number, want.epoch, want.ticket, want.attempt, want.trainer, stream)

    def note_ping(self, trainer: int, number: int) -> None:
        """Note that a trainer's Ping of this number came now; raise struct.error if a number does not fit."""
        self.stamp(StampKind.PING_CAME, monotonic_ns(), bare_key(number, peer=trainer))
