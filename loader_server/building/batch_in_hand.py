"""What is known and counted while one batch is written. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from shared.errors import SampleError

__all__ = ["MOST_NAME", "BatchInHand"]

_MOST_REASON = 200
#: Characters of a sample's name and of a reason.
MOST_NAME = 100


@dataclass(slots=True)
class BatchInHand:
    """What is known and counted while one batch is written."""

    epoch: int
    #: Samples that were convicted for this batch.
    convicted: AbstractSet[int]
    #: Masked rows by reason.
    reasons: Counter[str]
    #: Samples that the feature cache has.
    kept: Mapping[int, bytearray]
    decoded: int = 0
    masked: int = 0
    reason: str = ""
    decode_ns: int = 0
    #: Keys whose values may not all be finite; None if nobody has looked yet.
    suspects: set[str] | None = None

    def mask(self, name: str, error: SampleError) -> None:
        """Count a row that is masked, and keep the first reason."""
        self.masked += 1
        self.reasons[error.reason[:MOST_NAME]] += 1
        if not self.reason:
            self.reason = f"{name[-MOST_NAME:]}: {error.reason}: {error.got}"[:_MOST_REASON]
