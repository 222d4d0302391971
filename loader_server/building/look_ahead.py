"""Hints to a source about the samples that follow those just read, so that it can fetch them from afar.

Rules: one process does this for the whole machine, and only while the source can take more; no sample is announced
twice. A hint is only a hint: nobody waits for it, and nothing depends on it. Samples that need not be read are left
out.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.planning import EpochPlan
    from loader_server.sources.source import Source

__all__ = ["LookAhead"]

#: Most batches to look ahead: about as many as are trained on in a minute.
_MOST_AHEAD = 512


class LookAhead:
    """Announcer of one stream's upcoming samples; `unkept` filters out those that will not have to be read."""

    def __init__(self, source: Source, unkept: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None) -> None:
        self._source = source
        self._unkept = unkept
        self._lock = threading.Lock()
        #: The epoch looked at last, and its first batch that has not been announced.
        self._told: tuple[tuple[int, int], int] = ((-1, -1), 0)

    def after(self, epoch: EpochPlan, which: tuple[int, int], number: int) -> None:
        """Announce the samples of the batches after `number`, which was just read.

        Return at once if another thread is doing so; stop early once the source can take no more.
        """
        # Readers call this after each batch. One of them is enough, and a hint is not worth waiting for.
        if not self._source.looks_ahead() or not self._lock.acquire(blocking=False):
            return
        try:
            # Another epoch than last time has nothing announced yet.
            told = self._told[1] if self._told[0] == which else 0
            for later in range(max(number + 1, told), min(number + _MOST_AHEAD, epoch.batches)):
                if not self._source.looks_ahead():
                    break
                samples = epoch.batch(later).samples
                self._source.expect(self._unkept(samples) if self._unkept else samples)
                self._told = (which, later + 1)
        finally:
            self._lock.release()
