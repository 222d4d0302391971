"""The samples that are known to kill decoders (convictions).

Rules: pure. A sample is known by the identity that its source gives it, compared as an opaque string. The number of
convictions is bounded: long before the bound the data itself is at fault, and more convictions would only mask that.
All workers get the same list under one version and report that version in their heartbeats, so a list that was lost on
its way is sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.building.culprits import culprit_key
from loader_server.coordinator.events import CulpritFound, Forgot, Keep, Warn
from shared.wire import messages as m

if TYPE_CHECKING:
    from loader_server.coordinator.events import Instruction

__all__ = ["Convictions"]

#: Limit over all streams; a message could carry four times as many.
_MOST = 2**13


class Convictions:
    """The convicted samples, by stream and identity, with the way their decoders ended."""

    def __init__(self, first_version: int = 1) -> None:
        self._ends: dict[tuple[str, str], str] = {}
        #: Unique to each list, even across runs of the coordinator: a worker that has a list from before a restart must
        #: not pass for one that has the present list.
        self._version = first_version
        #: The list as workers get it; None until it is made for the present version.
        self._message: m.Culprits | None = None
        #: Whether the warning that there is no more room was logged.
        self._has_warned = False

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._ends

    def convict(self, culprit: m.Culprit) -> list[Instruction]:
        """Record a conviction and return the fact to keep and a warning; nothing if it is known already.

        If the list is full, record nothing and only warn, once until a conviction is forgiven.
        """
        fields = {name: getattr(culprit, name) for name in ("stream", "identity", "ends", "worker")}
        if (culprit.stream, culprit.identity) in self:
            return []
        if len(self._ends) < _MOST:
            self.add(culprit.stream, culprit.identity, culprit.ends)
            kept = Keep(CulpritFound(culprit.stream, culprit.identity, culprit.ends))
            return [kept, Warn("sample kills decoders: it is masked from now on", fields)]
        # Workers repeat a conviction with each heartbeat until it is listed, and this one never will be.
        has_warned, self._has_warned = self._has_warned, True
        return [] if has_warned else [Warn("too many samples kill decoders: from here on they are not kept", fields)]

    def forgive(self, forgive: m.Forgive) -> list[Instruction]:
        """Forget the convictions that a request covers; return a fact to keep for each, nothing if it covers none."""
        forgotten = self.matching(forgive)
        for stream, identity in forgotten:
            self.forget(stream, identity)
        # There is room again, so another overflow is news.
        self._has_warned = self._has_warned and not forgotten
        return [Keep(Forgot(stream, identity)) for stream, identity in forgotten]

    def add(self, stream: str, identity: str, ends: str) -> None:
        """Add a conviction, replacing an earlier one of the sample; the list gets a new version."""
        self._ends[stream, identity] = ends
        self._count_change()

    def forget(self, stream: str, identity: str) -> None:
        """Remove a conviction, if it is known; the list gets a new version in any case."""
        self._ends.pop((stream, identity), None)
        self._count_change()

    def _count_change(self) -> None:
        self._version, self._message = self._version + 1, None

    def matching(self, forgive: m.Forgive) -> list[tuple[str, str]]:
        """Return the convictions that a request to forgive covers, as stream and identity, sorted; empty if none.

        An empty string in the request matches any.
        """
        return [
            (stream, identity)
            for stream, identity in sorted(self._ends)
            if forgive.stream in ("", stream) and forgive.identity in ("", identity)
        ]

    def report(self) -> list[dict[str, str]]:
        """Return stream, identity and way of ending of all convictions, sorted, for people and scripts."""
        return [
            {"stream": stream, "identity": identity, "ends": ends}
            for (stream, identity), ends in sorted(self._ends.items())
        ]

    @property
    def message(self) -> m.Culprits:
        """Return the list that is sent to workers: its version, and the sorted keys of the convicted samples."""
        if self._message is None:
            self._message = m.Culprits(
                version=self._version, keys=tuple(sorted({culprit_key(*sample) for sample in self._ends}))
            )
        return self._message
