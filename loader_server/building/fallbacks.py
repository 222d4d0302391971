"""Batches that a quick way could not build, so that a slower one did: counted by reason, and never in silence.

Rules: a bad sample explains a fallback, and so does an error that ends the want anyway. Where the slower way finds
nothing wrong, the quick way is at fault: that is logged once a stream, with the traceback, so that it can be mended.
"""

from __future__ import annotations

import traceback

from shared.logs import Log

__all__ = ["FALLBACK_REASONS", "Fallbacks"]

#: Why; each has a count from the beginning, so that its first increase is seen.
FALLBACK_REASONS = ("bad_sample", "defect", "exhausted", "failed")


class Fallbacks:
    """Those of one stream; only the building thread counts, any thread reads."""

    def __init__(self, stream: str) -> None:
        self.counts = dict.fromkeys(FALLBACK_REASONS, 0)
        self._log = Log("worker", stream=stream)

    def count(self, reason: str) -> None:
        """Count one for this reason."""
        self.counts[reason] += 1

    def note_defect(self, error: BaseException) -> None:
        """Count one that no sample explains, and log the first with its traceback."""
        self.count("defect")
        if self.counts["defect"] == 1:
            self._log.error(
                "defect: a batch had to be built sample by sample, and no sample is bad",
                error=repr(error),
                traceback="".join(traceback.format_exception(error)),
            )
