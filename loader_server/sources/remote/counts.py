"""A process's counters of remote files: plain numbers, which become metrics only when someone asks.

Rules: any thread may add; numbers only grow. A copy in another process counts for itself.
"""

from __future__ import annotations

import threading

__all__ = ["RemoteCounts"]


class RemoteCounts:
    """Counters over all remote files of a job in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Bytes fetched from stores.
        self.fetched_bytes = 0
        #: Cache hits: blocks and whole files that were in the cache when they were needed.
        self.found = 0
        #: Cache misses: blocks and whole files that a reader had to wait for, whichever process fetched them.
        self.waited = 0
        #: Requests that failed and were retried.
        self.retries = 0

    def add(self, *, fetched_bytes: int = 0, found: int = 0, waited: int = 0, retries: int = 0) -> None:
        """Add to the counts."""
        with self._lock:
            self.fetched_bytes += fetched_bytes
            self.found += found
            self.waited += waited
            self.retries += retries

    def __reduce__(self) -> tuple[type[RemoteCounts], tuple[()]]:
        return RemoteCounts, ()
