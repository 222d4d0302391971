"""The stamps of one process, as they came, and its clock compared with those of others.

Rules: pure. Processes of one host, by its boot id, share one clock. Clocks of two hosts are compared by Pings: a
trainer's two stamps of a Ping surround the worker's, so the offset is known to half of the time between them. Of
several Pings the quickest counts, and of several ways from clock to clock the most exact.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shared.tracing.ring import ROW, StampKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from shared.wire.message_parts import TraceProcess
    from shared.wire.messages import TracePage

__all__ = ["ClockOffset", "ProcessStamps", "joined_clocks"]


@dataclass(slots=True)
class ProcessStamps:
    """One process of a job with the stamps that it sent.

    `problem` says why it sent none or not all; it is empty if all is here.
    """

    process: TraceProcess
    boot_id: str = ""
    oldest_ns: int = 0
    now_ns: int = 0
    overwritten: int = 0
    streams: tuple[str, ...] = ()
    problem: str = ""
    _pages: list[NDArray[np.void]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return the process's name."""
        return self.process.name

    @property
    def is_trainer(self) -> bool:
        """Return whether it is a trainer; else it is a worker."""
        return bool(self.process.stream)

    @property
    def clock(self) -> str:
        """Return what names its clock: the host's boot id, or its own incarnation if that is not known."""
        return self.boot_id or f"process {self.process.incarnation}"

    def add(self, page: TracePage) -> None:
        """Take in a page; a stamp that is cut off is dropped."""
        self.boot_id, self.now_ns, self.oldest_ns = page.boot_id, page.now_ns, page.oldest_ns
        self.streams = max(self.streams, page.streams, key=len)
        self.overwritten += page.overwritten
        if page.gone:
            self.problem = "gone"
        whole = len(page.stamps) // ROW.itemsize * ROW.itemsize
        self._pages.append(np.frombuffer(page.stamps[:whole], ROW))

    def rows(self) -> NDArray[np.void]:
        """Return all stamps that came, each once, by time."""
        rows = np.concatenate(self._pages) if self._pages else np.zeros(0, ROW)
        return np.sort(np.unique(rows), order="time_ns", kind="stable")


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """What to add to a clock's time to get the reference's, in ns, and by how much that may be wrong."""

    offset_ns: int
    error_ns: int


def joined_clocks(processes: Sequence[ProcessStamps], reference: str) -> dict[str, ClockOffset]:
    """Return the offset of each clock that can be compared with the clock called `reference`, itself included.

    A clock that no Pings lead to is left out.
    """
    edges: dict[str, list[tuple[str, ClockOffset]]] = {}
    for ours, theirs, offset in _pairs(processes):
        edges.setdefault(ours, []).append((theirs, ClockOffset(-offset.offset_ns, offset.error_ns)))
        edges.setdefault(theirs, []).append((ours, offset))
    found: dict[str, ClockOffset] = {}
    waiting = [(0, 0, reference)]
    # Dijkstra's way: the clock that is known best so far is settled next.
    while waiting:
        error_ns, offset_ns, clock = heapq.heappop(waiting)
        if clock in found:
            continue
        found[clock] = ClockOffset(offset_ns, error_ns)
        for other, offset in edges.get(clock, ()):
            heapq.heappush(waiting, (error_ns + offset.error_ns, offset_ns + offset.offset_ns, other))
    return found


def _pairs(processes: Sequence[ProcessStamps]) -> Iterable[tuple[str, str, ClockOffset]]:
    """Return (a, b, what to add to a's time to get b's) for each pair of clocks that a Ping compares, once a pair."""
    sent: dict[tuple[int, int], tuple[str, int, int]] = {}
    for trainer in processes:
        if trainer.is_trainer:
            for number, times in _pings(trainer.rows()).items():
                sent[trainer.process.incarnation, number] = (trainer.clock, *times)
    best: dict[tuple[str, str], ClockOffset] = {}
    for worker in processes:
        rows = worker.rows()
        for row in rows[rows["kind"] == StampKind.PING_CAME]:
            ping = sent.get((int(row["peer"]), int(row["number"])))
            if ping is None or ping[0] == worker.clock:
                continue
            clock, sent_ns, back_ns = ping
            offset = ClockOffset((sent_ns + back_ns) // 2 - int(row["time_ns"]), (back_ns - sent_ns + 1) // 2)
            known = best.get((worker.clock, clock))
            if known is None or offset.error_ns < known.error_ns:
                best[worker.clock, clock] = offset
    return [(theirs, ours, offset) for (theirs, ours), offset in best.items()]


def _pings(rows: NDArray[np.void]) -> Mapping[int, tuple[int, int]]:
    """Return when each Ping was sent and its Pong came, by number; those that lack either are left out."""
    times: dict[int, dict[int, int]] = {}
    for row in rows[np.isin(rows["kind"], (StampKind.PINGED, StampKind.PONGED))]:
        times.setdefault(int(row["number"]), {})[int(row["kind"])] = int(row["time_ns"])
    both = (StampKind.PINGED, StampKind.PONGED)
    return {number: (pair[both[0]], pair[both[1]]) for number, pair in times.items() if len(pair) == len(both)}
