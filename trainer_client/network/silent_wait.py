"""A consumer's wait for other ranks while the coordinator is silent.

Rules: pure. The wait is the sum of the looks, not of clock time, so that a process that stalled meanwhile does not
blame the coordinator.
"""

from __future__ import annotations

from shared.errors import LostError

__all__ = ["SilentWait"]


class SilentWait:
    """One consumer's wait; `patience_s` is how long the coordinator may be silent."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._heard_s = -1.0
        self._waited_s = 0.0

    def look(self, heard_s: float, looked_for_s: float, endpoint: str) -> None:
        """Raise LostError if the coordinator has been silent for `patience_s` of looking.

        `heard_s` is the time of its last message, `looked_for_s` how long this look has waited.
        """
        self._waited_s = self._waited_s + looked_for_s if heard_s == self._heard_s else 0.0
        self._heard_s = heard_s
        if self._waited_s > self._patience_s:
            raise LostError(
                expected=f"a word of the coordinator within {self._patience_s:g} s, while all ranks are waited for",
                got="none",
                where=endpoint,
                remedy="Start the loaders again, or allow more time with lost_timeout_s.",
            )
