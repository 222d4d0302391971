"""A time-limited look at some of very many samples."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["look_at_some"]

#: Samples in the first pass over all: these few reveal most changes, because data sets are usually rewritten whole.
_A_PASS = 1000


def look_at_some(samples: int, look: Callable[[int], object], time_s: float) -> None:
    """Call `look` with sample after sample, in passes of evenly spread ones, until all are done or time is up."""
    until_s = time.monotonic() + time_s
    step = max(samples // _A_PASS, 1)
    for first in range(step):
        for sample in range(first, samples, step):
            if time.monotonic() > until_s:
                return
            look(sample)
