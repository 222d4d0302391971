"""The facts about a built batch besides its payload, as bytes for workers of other jobs.

Pure. Rules: a worker that takes a batch can report all that its builder could, including masked samples and reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgpack

from loader_server.building.build_counts import Built
from shared.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MaskedSample", "as_facts", "from_facts"]


@dataclass(frozen=True, slots=True)
class MaskedSample:
    """A sample whose row was masked, and the error."""

    sample: int
    error: SampleError


def as_facts(built: Built, masked: Sequence[MaskedSample]) -> bytes:
    """Return the facts of a batch that was built, as bytes."""
    said = [
        [built.rows, built.masked, built.reason, list(built.reasons)],
        [built.cells, built.sample_cells, built.masked_cells, list(built.not_finite)],
        [[one.sample, one.error.reason, one.error.words()] for one in masked],
    ]
    facts: bytes = msgpack.packb(said, unicode_errors="surrogatepass")
    return facts


def from_facts(facts: bytes, *, digest: int, build_us: int) -> tuple[Built, list[MaskedSample]]:
    """Return the facts from their bytes, with the digest of the payload and the time it took to take the batch."""
    said = msgpack.unpackb(facts, unicode_errors="surrogatepass")
    (rows, masked, reason, reasons), (cells, sample_cells, masked_cells, not_finite), noted = said
    built = Built(
        rows=rows,
        masked=masked,
        digest=digest,
        build_us=build_us,
        reason=reason,
        reasons=tuple((name, count) for name, count in reasons),
        cells=cells,
        sample_cells=sample_cells,
        masked_cells=masked_cells,
        taken=True,
        not_finite=tuple((key, count) for key, count in not_finite),
    )
    return built, [MaskedSample(sample, SampleError(reason=why, **words)) for sample, why, words in noted]
