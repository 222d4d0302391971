"""The samples that are known to kill decoders.

Rules: pure. A sample is known by the identity that its source gives it, compared as an opaque text. Convictions are
bounded: long before the bound the data is at fault, and more would only mask it.
"""

from __future__ import annotations

from shared import messages as m
from shared.hashing import digest64

__all__ = ["Convictions"]

#: Of all streams together; one message names four times as many.
_MOST = 2**13


class Convictions:
    """What was said of each culprit, by stream and identity."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str], str] = {}

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._ends

    @property
    def full(self) -> bool:
        """Whether there is room for no more."""
        return len(self._ends) >= _MOST

    def add(self, stream: str, identity: str, ends: str) -> None:
        """It is known now."""
        self._ends[stream, identity] = ends

    def forget(self, stream: str, identity: str) -> None:
        """It is not known any more."""
        self._ends.pop((stream, identity), None)

    def matching(self, forgive: m.Forgive) -> list[tuple[str, str]]:
        """Those that somebody wants forgotten; an empty word stands for any."""
        return [
            (stream, identity)
            for stream, identity in sorted(self._ends)
            if forgive.stream in ("", stream) and forgive.identity in ("", identity)
        ]

    def report(self) -> list[dict[str, str]]:
        """All, for people and scripts."""
        return [
            {"stream": stream, "identity": identity, "ends": ends}
            for (stream, identity), ends in sorted(self._ends.items())
        ]

    def message(self, stream: str) -> m.Culprits:
        """What workers are told of a stream."""
        keys = {digest64(identity.encode()) for name, identity in self._ends if name == stream}
        return m.Culprits(stream=stream, keys=tuple(sorted(keys)))
