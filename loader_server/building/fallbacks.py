"""Counts of batches that fell back from the fast way to a slower one, by reason, so that no fallback is silent.

Rules: a bad sample explains a fallback, and so does an error that ends the want anyway. If the slower way finds nothing
wrong, the fast way is at fault: that is logged once a stream, with the traceback, so that it can be mended.
"""

from __future__ import annotations

import traceback

from shared.logs import Log

__all__ = ["FALLBACK_REASONS", "Fallbacks"]

#: Reasons for a fallback. Each count starts at 0 instead of appearing later, so that metrics show its first increase.
FALLBACK_REASONS = ("bad_sample", "defect", "exhausted", "failed")


class Fallbacks:
    """Fallbacks of one stream; only the building thread counts, any thread reads."""

    def __init__(self, stream: str) -> None:
        self.counts = dict.fromkeys(FALLBACK_REASONS, 0)
        self._log = Log("worker", stream=stream)

    def count(self, reason: str) -> None:
        """Add one to the fallbacks for this reason, and raise KeyError for a reason that is not a known one."""
        self.counts[reason] += 1

    def note_defect(self, error: BaseException) -> None:
        """Count a fallback that no sample explains, and log the first with its traceback."""
        self.count("defect")
        if self.counts["defect"] == 1:
            self._log.error(
                "defect: a batch had to be built sample by sample, and no sample is bad",
                error=repr(error),
                traceback="".join(traceback.format_exception(error)),
            )
