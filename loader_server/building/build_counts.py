"""The facts reported about one built batch, and a worker's running sums for one stream.

Plain numbers, which become metrics only when they are scraped.

Rules: pure; only the poll loop adds to the sums, so no number is lost between threads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from shared.metrics.names import WAIT_BOUNDS_S

__all__ = ["BuildCounts", "Built", "Effort"]


@dataclass(frozen=True, slots=True)
class Built:
    """Facts about one built batch."""

    rows: int
    masked: int
    #: Hash of the payload; 0 if the build did not ask for one.
    digest: int
    build_us: int
    #: Name of the first masked sample, and its error; empty if no sample was masked.
    reason: str = ""
    #: Masked rows by reason, most frequent reasons first.
    reasons: tuple[tuple[str, int], ...] = ()
    #: The part of `build_us` spent on decoding and transforming. Reading happens before the build: see `read_us`.
    decode_us: int = 0
    read_us: int = 0
    #: Cells (rows times padded length) of the bucketed key: in total, holding sample values, and in rows that are not
    #: valid. The rest is padding.
    cells: int = 0
    sample_cells: int = 0
    masked_cells: int = 0
    #: Samples that were feature cache hits, and samples that had to be decoded.
    kept: int = 0
    decoded: int = 0
    #: Whether the batch was copied from the shelf because another worker had built it.
    taken: bool = False
    #: How many samples have NaN or infinite values, by key, masked samples included.
    not_finite: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class Effort:
    """What a want took, whether or not it became a batch: its time in the queue, and CPU time by phase."""

    #: From the want's arrival until its samples began to be read, or to be built if nothing is read; None before.
    queued_s: float | None = None
    #: CPU time of the thread that did it: planning and reading, building, and encoding and sealing for the network.
    read_cpu_s: float = 0.0
    build_cpu_s: float = 0.0
    send_cpu_s: float = 0.0


@dataclass(slots=True)
class BuildCounts:
    """Sums over all batches built so far, which only grow; cells are those of the bucketed key."""

    batches: int = 0
    #: Payload bytes, before they are encoded or sealed.
    nbytes: int = 0
    #: Time in the reader threads; the other two are the building thread's, and write is what is not decode.
    read_us: int = 0
    decode_us: int = 0
    write_us: int = 0
    sample_cells: int = 0
    padding_cells: int = 0
    masked_cells: int = 0
    kept_samples: int = 0
    decoded_samples: int = 0
    taken: int = 0
    #: Samples with NaN or infinite values, by key.
    not_finite: Counter[str] = field(default_factory=Counter)
    #: CPU time by phase, as in `Effort`.
    read_cpu_s: float = 0.0
    build_cpu_s: float = 0.0
    send_cpu_s: float = 0.0
    #: How long wants were queued: in all, and how many for as long as each interval of WAIT_BOUNDS_S and then longer.
    queued_s: float = 0.0
    queued: list[int] = field(default_factory=lambda: [0] * (len(WAIT_BOUNDS_S) + 1))

    def add(self, built: Built, nbytes: int) -> None:
        """Add a built batch of `nbytes` payload bytes to all sums: times, cells, samples and non-finite values."""
        self.batches += 1
        self.nbytes += nbytes
        self.read_us += built.read_us
        self.decode_us += built.decode_us
        self.write_us += built.build_us - built.decode_us
        self.sample_cells += built.sample_cells
        self.padding_cells += built.cells - built.sample_cells - built.masked_cells
        self.masked_cells += built.masked_cells
        self.kept_samples += built.kept
        self.decoded_samples += built.decoded
        self.taken += built.taken
        if built.not_finite:
            self.not_finite.update(dict(built.not_finite))

    def add_effort(self, effort: Effort) -> None:
        """Add what a want took, whatever became of it; one that never began counts as not queued."""
        self.read_cpu_s += effort.read_cpu_s
        self.build_cpu_s += effort.build_cpu_s
        self.send_cpu_s += effort.send_cpu_s
        if effort.queued_s is not None:
            self.queued_s += effort.queued_s
            self.queued[bisect_left(WAIT_BOUNDS_S, effort.queued_s)] += 1
