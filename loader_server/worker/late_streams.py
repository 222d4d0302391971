"""Streams that cannot be opened yet, because a trainer still has to send the graph that makes their batches.

They are opened once graph and index are on this machine's disk: where the coordinator runs here too it puts them there,
and otherwise they are fetched from it, piece by piece. Rules: for the poll loop, which never waits here: opening
imports TensorFlow, so a thread does it. Whatever fails is tried again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING

from loader_server.machine.graph_files import unpack
from shared.errors import StokerError
from shared.logs import Log
from shared.pipelines.sent_graph import digest_of_graph
from shared.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loader_server.building.builder import Builder
    from loader_server.stream import JobFile, Stream

__all__ = ["LateStreams"]

#: How often to look at the disk, and to ask.
_LOOK_S = 0.5

Opened = tuple["Stream", "Builder"]


@dataclass(slots=True)
class _Fetched:
    """What has come of a stream's files."""

    digest: str = ""
    content: bytearray = field(default_factory=bytearray)


class LateStreams:
    """`make` gives an opened stream its builder; `wake` is called from another thread when one is open."""

    def __init__(self, job: JobFile, make: Callable[[Stream], Builder], wake: Callable[[], None]) -> None:
        self._job = job
        self._make = make
        self._wake = wake
        self._lacking = {name: _Fetched() for name in job.recipes if not job.is_there(name)}
        self._opening: set[str] = set()
        self._look_s = 0.0
        self._opened: SimpleQueue[str | Opened] = SimpleQueue()

    @property
    def awaited(self) -> set[str]:
        """The streams that are not open yet."""
        return set(self._lacking)

    def look(self, now_s: float) -> list[m.GraphWanted]:
        """Now and then, begin to open what is there by now; returns what to ask the coordinator for."""
        if not self._lacking or now_s < self._look_s:
            return []
        self._look_s = now_s + _LOOK_S
        asked = []
        for name, arriving in self._lacking.items():
            if name in self._opening:
                continue
            if self._job.is_there(name):
                self._opening.add(name)
                threading.Thread(target=self._open, args=(name,), name="opening", daemon=True).start()
            else:
                asked.append(_wanted(name, arriving))
        return asked

    def _open(self, name: str) -> None:
        try:
            stream = self._job.open(name)
            self._opened.put((stream, self._make(stream)))
        except (StokerError, OSError) as error:
            Log("worker").warning("stream cannot be opened yet", stream=name, error=str(error))
            self._opened.put(name)
        self._wake()

    def take_opened(self) -> list[Opened]:
        """Those that are open since the last call."""
        found = []
        while not self._opened.empty():
            one = self._opened.get()
            self._opening.discard(one if isinstance(one, str) else one[0].name)
            if not isinstance(one, str):
                del self._lacking[one[0].name]
                found.append(one)
        return found

    def take_pieces(self, pieces: Iterable[m.GraphPiece]) -> list[m.GraphWanted]:
        """What came from the coordinator; returns what to ask for at once."""
        return [wanted for piece in pieces for wanted in self._take(piece)]

    def _take(self, piece: m.GraphPiece) -> list[m.GraphWanted]:
        arriving = self._lacking.get(piece.stream)
        if arriving is None or piece.stream in self._opening or piece.offset > len(arriving.content):
            return []
        if piece.digest != arriving.digest:
            arriving.digest, arriving.content = piece.digest, bytearray()
        if piece.offset == len(arriving.content):
            arriving.content += piece.content
        if len(arriving.content) < piece.nbytes:
            return [_wanted(piece.stream, arriving)]
        self._keep(piece.stream, arriving)
        return []

    def _keep(self, name: str, arriving: _Fetched) -> None:
        content, self._lacking[name] = bytes(arriving.content), _Fetched()
        if digest_of_graph(content) != arriving.digest:
            return
        try:
            unpack(content, self._job.graph_path(name), self._job.index_folder(name))
        except (StokerError, OSError) as error:
            Log("worker").warning("graph cannot be kept", stream=name, error=str(error))


def _wanted(name: str, arriving: _Fetched) -> m.GraphWanted:
    return m.GraphWanted(stream=name, digest=arriving.digest, offset=len(arriving.content))
