"""What there is to say about a built batch, and what a worker counts for the batches of one stream: plain numbers,
which become metrics only when someone asks.

Rules: pure; only the poll loop adds to them, so no number is lost between threads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["BuildCounts", "Built"]


@dataclass(frozen=True, slots=True)
class Built:
    """What there is to say about a built batch."""

    rows: int
    masked: int
    #: 0 if none was wanted.
    digest: int
    build_us: int
    #: Name of the first sample that was masked, and why; empty if none was.
    reason: str = ""
    #: Rows masked by reason, the most frequent ones.
    reasons: tuple[tuple[str, int], ...] = ()
    #: The part of these spent on decoding and transforming; reading came before and is not included.
    decode_us: int = 0
    read_us: int = 0
    #: Rows times padded length of the bucketed key: all, those of samples, those of rows without a sample.
    cells: int = 0
    sample_cells: int = 0
    masked_cells: int = 0
    #: Samples that came from the feature cache, and such that had to be decoded.
    kept: int = 0
    decoded: int = 0
    #: Whether another worker had built it.
    taken: bool = False
    #: Samples with values that are NaN or infinite, by key, masked ones included.
    not_finite: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class BuildCounts:
    """Sums over all batches built so far, which only grow; cells are those of the bucketed key."""

    batches: int = 0
    nbytes: int = 0
    read_us: int = 0
    decode_us: int = 0
    write_us: int = 0
    sample_cells: int = 0
    padding_cells: int = 0
    masked_cells: int = 0
    kept_samples: int = 0
    decoded_samples: int = 0
    taken: int = 0
    #: Samples by key.
    not_finite: Counter[str] = field(default_factory=Counter)

    def add(self, built: Built, nbytes: int) -> None:
        """Count one more batch."""
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
