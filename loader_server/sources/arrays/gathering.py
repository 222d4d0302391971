"""Batches out of columns: values that lie one after another, and where each sample's begin.

Rules: pure; no Python for each sample; the bytes written are the ones that padding sample after sample would give. A
batch's work is proportional to its padded size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["joined_parts", "parted", "write_padded"]


def write_padded(
    values: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[Any]
) -> None:
    """Write each sample's values into its row of `out`, from `starts` on, with zeros behind them."""
    steps = np.arange(out.shape[1])
    if len(values):
        # Rows take values beyond their ends here, the last ones beyond the array, which mode="clip" allows; the zeros
        # below overwrite them. With mode="raise" numpy would also buffer `out`.
        np.take(values, starts[:, None] + steps, axis=0, out=out, mode="clip")
    out[steps >= lengths[:, None]] = 0


def joined_parts(parts: Sequence[bytes]) -> bytes:
    """Return the values of one sample as one piece, which `parted` splits again."""
    return b"".join((np.array([len(part) for part in parts], np.int64).tobytes(), *parts))


def parted(raw: bytes, count: int) -> list[memoryview]:
    """Return the bytes of each of `count` values that `joined_parts` joined."""
    rest = memoryview(raw)[8 * count :]
    ends = np.cumsum(np.frombuffer(raw, np.int64, count)).tolist()
    return [rest[start:end] for start, end in zip((0, *ends), ends, strict=False)]
