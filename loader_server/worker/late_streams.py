"""Streams that cannot be opened yet, because a trainer still has to send the graph that makes their batches.

They are opened once graph and index are on this machine's disk: where the coordinator runs here too it puts them there,
and otherwise they are fetched from it, piece by piece. Rules: used by the poll loop, which never waits here: opening
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
from shared.system.closed_places import why_closed
from shared.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loader_server.building.builder import Builder
    from loader_server.job_file import JobFile

__all__ = ["LateStreams"]

#: How often to look at the disk, and to ask.
_LOOK_S = 0.5


@dataclass(slots=True)
class _Fetched:
    """What has arrived of a stream's files."""

    digest: str = ""
    content: bytearray = field(default_factory=bytearray)


class LateStreams:
    """`open_one` opens a stream for its builder; `wake` is called when one is open. Both in another thread."""

    def __init__(self, job: JobFile, open_one: Callable[[str], Builder], wake: Callable[[], None]) -> None:
        self._job = job
        self._open_one = open_one
        self._wake = wake
        self._lacking = {name: _Fetched() for name in job.recipes if not job.is_there(name)}
        self._opening: set[str] = set()
        #: The streams whose files could not be kept.
        self._unkept: set[str] = set()
        self._look_s = 0.0
        #: The streams that were tried: name, and the builder if it could be opened.
        self._tried: SimpleQueue[tuple[str, Builder | None]] = SimpleQueue()

    @property
    def awaited(self) -> set[str]:
        """The streams that are not open yet."""
        return set(self._lacking)

    def look(self, now_s: float) -> list[m.GraphWanted]:
        """Now and then, begin to open the streams whose files have come; returns what to ask the coordinator for."""
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
            self._tried.put((name, self._open_one(name)))
        except (StokerError, OSError) as error:
            Log("worker").warning("stream cannot be opened yet", stream=name, error=str(error))
            self._tried.put((name, None))
        self._wake()

    def take_opened(self) -> list[Builder]:
        """Take the builders of the streams that were opened since the last call."""
        found = []
        while not self._tried.empty():
            name, builder = self._tried.get()
            self._opening.discard(name)
            if builder is not None:
                del self._lacking[name]
                found.append(builder)
        return found

    def take_pieces(self, pieces: Iterable[m.GraphPiece]) -> list[m.GraphWanted]:
        """Take in pieces that came from the coordinator; returns what to ask for at once."""
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
            closed = why_closed(self._job.graph_path(name))  # said once, and tried again: somebody may open the folder
            if not closed or name not in self._unkept:
                Log("worker").warning("graph cannot be kept", stream=name, error=closed or str(error))
            self._unkept.add(name)


def _wanted(name: str, arriving: _Fetched) -> m.GraphWanted:
    return m.GraphWanted(stream=name, digest=arriving.digest, offset=len(arriving.content))
