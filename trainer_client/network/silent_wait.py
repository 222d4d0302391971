"""How long a consumer waits for other ranks while the coordinator says nothing.

Rules: pure. Waiting is counted by looks and not by the clock, so that a process that stands still meanwhile blames
nobody.
"""

from __future__ import annotations

from shared.errors import LostError

__all__ = ["SilentWait"]


class SilentWait:
    """One consumer's wait; `patience_s` is how long the coordinator may say nothing."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._heard_s = -1.0
        self._waited_s = 0.0

    def look(self, heard_s: float, looked_for_s: float, endpoint: str) -> None:
        """Raise an error if nothing was heard for too long.

        `heard_s` is when the coordinator was heard last, `looked_for_s` how long this look has waited.
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
