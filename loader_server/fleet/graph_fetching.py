"""Fetching of graphs that trainers sent, for a worker that lacks them.

Rules: pure. Of the coordinator's bundle only the files of these streams are fetched, one piece at a time and into
memory, as a graph is bounded. While the bundle lacks them, the next one is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.fleet.fetching import Fetching
from loader_server.fleet.manifest import GRAPHS, INDEX

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shared.wire import messages as m

__all__ = ["FetchedGraph", "GraphFetching"]


class FetchedGraph:
    """A graph and the files of its index, by their names there."""

    def __init__(self, stream: str, files: Mapping[str, bytes | bytearray]) -> None:
        self.stream = stream
        self.graph = bytes(files[f"{GRAPHS}/{stream}/graph"])
        prefix = f"{GRAPHS}/{stream}/{INDEX}/"
        self.index = {name.removeprefix(prefix): bytes(files[name]) for name in files if name.startswith(prefix)}


class GraphFetching:
    """The download of graphs: send `wanted()` to the coordinator, and hand what comes to `take`."""

    def __init__(self) -> None:
        self._fetching = Fetching()
        #: The content so far of the files that are being fetched, and the streams that they belong to.
        self._files: dict[str, bytearray] = {}
        self._streams: list[str] = []

    @property
    def waits(self) -> bool:
        """Return whether this bundle has nothing to fetch, so that the next one is waited for."""
        return self._fetching.manifest is not None and self._fetching.wanted() is None

    def wanted(self) -> m.BundleWanted:
        """Return the next request."""
        return self._fetching.wanted() or self._fetching.wanted_after()

    def need(self, streams: Collection[str]) -> None:
        """Fetch the graphs of these streams that the bundle has; do nothing while others are being fetched."""
        manifest = self._fetching.manifest
        if manifest is None or not self.waits:
            return
        names = {file.name for file in manifest.files} - manifest.refused
        self._streams = [name for name in sorted(streams) if f"{GRAPHS}/{name}/graph" in names]
        prefixes = tuple(f"{GRAPHS}/{name}/" for name in self._streams)
        self._files = {name: bytearray() for name in names if name.startswith(prefixes)}
        self._fetching.need(dict.fromkeys(self._files, 0))

    def take(self, piece: m.BundlePiece) -> list[FetchedGraph]:
        """Take in a piece; return the graphs that were wanted once all of them are complete, otherwise nothing."""
        before = self._fetching.manifest
        part = self._fetching.take(piece)
        if self._fetching.manifest is not before:
            self._streams, self._files = [], {}
        if part is None:
            return []
        self._files[part.file.name] += part.content
        if not self.waits:
            return []
        files, self._files = self._files, {}
        streams, self._streams = self._streams, []
        return [FetchedGraph(stream, files) for stream in streams]
