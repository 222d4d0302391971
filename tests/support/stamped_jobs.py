"""Stamps of made-up processes, with clocks of their own, for tests of what is joined from them."""

from __future__ import annotations

from loader_server.tracing.process_stamps import ProcessStamps
from shared.tracing.answering import page_of
from shared.tracing.ring import StampKind, StampRing, bare_key, stamp_key
from shared.wire.message_parts import Ticket, TraceProcess
from shared.wire.messages import TraceWanted

__all__ = ["MS", "StampedProcess", "plain_life"]

MS = 10**6


class StampedProcess:
    """A process whose clock shows `ahead_ms` more than the true time, in which stamps are given here."""

    def __init__(
        self, name: str, incarnation: int, stream: str = "", *, rank: int = 0, boot: str = "boot", ahead_ms: float = 0.0
    ) -> None:
        self.process = TraceProcess(name, incarnation, stream, rank, int(bool(stream)), int(bool(stream)))
        self.ring = StampRing(chunk_rows=50)
        self._boot = boot
        self._ahead_ns = int(ahead_ms * MS)
        if stream:
            self.ring.stream_number(stream)

    def at(
        self,
        kind: int,
        ms: float,
        number: int = 7,
        *,
        epoch: int = 0,
        slot: int = 1,
        generation: int = 1,
        peer: int = 0,
        attempt: int = 0,
        extra: int = 0,
        stream: str = "train",
    ) -> None:
        """Stamp a batch at this true time."""
        place = self.ring.stream_number(stream)
        key = stamp_key(number, epoch, Ticket(slot, generation), attempt, peer, place)
        self.ring.stamp(kind, int(ms * MS) + self._ahead_ns, key, extra)

    def ping(self, kind: int, ms: float, number: int, *, peer: int = 0) -> None:
        """Stamp a Ping or a Pong."""
        self.ring.stamp(kind, int(ms * MS) + self._ahead_ns, bare_key(number, peer=peer))

    def gathered(self, problem: str = "") -> ProcessStamps:
        """Return what a gathering has of it, in pages."""
        stamps = ProcessStamps(self.process, problem=problem)
        first: int | None = 0
        while first is not None and not problem:
            wanted = TraceWanted(serial=1, first_row=first, last_ms=0, stream="", epoch=None, number=None)
            page = page_of(self.ring, wanted, process=self.process.incarnation, boot_id=self._boot, now_ns=10**12)
            stamps.add(page)
            first = page.next_row
        return stamps


def plain_life(trainer: StampedProcess, worker: StampedProcess, *, begin_ms: float = 1000.0, **key: int) -> None:
    """Stamp a batch that is asked for at `begin_ms`, built in 40 ms, waited for 30 ms, and trained on after 100 ms."""
    peer, of_worker = trainer.process.incarnation, worker.process.incarnation
    trainer.at(StampKind.ASKED, begin_ms, peer=of_worker, **key)
    moments = {
        StampKind.RECEIVED: 1, StampKind.READ: 6, StampKind.BEGUN: 21, StampKind.BUILT: 39, StampKind.WRITTEN: 40,
        StampKind.PUSHED: 42,
    }  # fmt: skip
    for kind, after_ms in moments.items():
        worker.at(kind, begin_ms + after_ms, peer=peer, **key)
    trainer.at(StampKind.ARRIVED, begin_ms + 43, **key)
    trainer.at(StampKind.OFFERED, begin_ms + 44, **key)
    trainer.at(StampKind.TAKEN, begin_ms + 45, extra=30 * MS, **key)
    number, epoch = key.get("number", 7), key.get("epoch", 0)
    trainer.ring.stamp(
        StampKind.TRAINED, int((begin_ms + 100) * MS) + trainer._ahead_ns, bare_key(number, epoch), number + 1
    )
