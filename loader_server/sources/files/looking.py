"""Looking at some of very many samples, within a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["look_at_some"]

#: How many are looked at in a pass over all: these few tell of most changes, as whole data sets are written anew.
_A_PASS = 1000


def look_at_some(samples: int, look: Callable[[int], object], time_s: float) -> None:
    """Call `look` with sample after sample, in passes of evenly spread ones, until all had their turn or time is up."""
    until_s = time.monotonic() + time_s
    step = max(samples // _A_PASS, 1)
    for first in range(step):
        for sample in range(first, samples, step):
            if time.monotonic() > until_s:
                return
            look(sample)
