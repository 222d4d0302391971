"""Spells of waiting: when a share of time that wavers from look to look begins to be high, and when it is over.

Rules: pure. The share is averaged over the last five seconds, and it has to fall well below the mark at which a spell
began: so a spell is two lines in a log, whatever wavers in between.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Spell", "SpellBegan", "SpellEnded"]

#: The average over this time is judged, and nothing before so much time was seen.
_LOOKS_BACK_S = 5.0

#: A spell begins at this share of the time, and ends at that one.
_BEGINS_AT = 0.25
_ENDS_AT = 0.10


@dataclass(frozen=True, slots=True)
class SpellBegan:
    """A spell begins; `share` is that of the last five seconds."""

    share: float


@dataclass(frozen=True, slots=True)
class SpellEnded:
    """A spell of so many seconds is over; `share` is that of the last five seconds."""

    seconds: float
    share: float


class Spell:
    """Whether something waits, by the shares of time that it waited."""

    def __init__(self) -> None:
        self._share = 0.0
        #: The time that the average covers so far.
        self._known_s = 0.0
        #: When the present spell began; None while there is none.
        self._since_s: float | None = None

    def note(self, share: float, over_s: float, now_s: float) -> SpellBegan | SpellEnded | None:
        """Note that this share of the last `over_s` was waited; return what begins or ends with that, None if nothing.

        A time without length changes nothing, and nothing begins before five seconds were noted.
        """
        over_s = min(over_s, _LOOKS_BACK_S)
        if over_s <= 0:
            return None
        self._known_s = min(self._known_s + over_s, _LOOKS_BACK_S)
        self._share += (share - self._share) * over_s / self._known_s
        return self.judge(self._share, now_s) if self._known_s >= _LOOKS_BACK_S else None

    def judge(self, share: float, now_s: float) -> SpellBegan | SpellEnded | None:
        """Return what begins (at 0.25 or more) or ends (at 0.1 or less) if `share` is the average already, or None."""
        if self._since_s is None and share >= _BEGINS_AT:
            self._since_s = now_s
            return SpellBegan(share)
        if self._since_s is not None and share <= _ENDS_AT:
            since_s, self._since_s = self._since_s, None
            return SpellEnded(now_s - since_s, share)
        return None
