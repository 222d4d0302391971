"""Streams that cannot be opened yet, because a trainer still has to send the graph that makes their batches.

They are opened once graph and index are on this machine's disk: a coordinator on this machine writes them there;
otherwise they are fetched from its bundle, piece by piece. Rules: used by the poll loop, which never waits here:
opening imports TensorFlow, so a thread does it. What fails is tried again.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from loader_server.fleet.fetching import GraphFetching
from loader_server.machine.graph_files import write_graph
from shared.errors import DataError, StokerError
from shared.logs import Log
from shared.stores.own_files import why_closed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loader_server.building.builder import Builder
    from loader_server.fleet.fetching import FetchedGraph
    from loader_server.job_file import JobFile
    from shared.wire import messages as m

__all__ = ["LateStreams"]

#: Interval of checks of the disk, and of requests for another bundle.
_LOOK_S = 0.5

#: How long to wait for a piece before asking again: at first, and once the coordinator has answered.
_FIRST_S, _AGAIN_S = 1.0, 5.0


class LateStreams:
    """The streams that are not open yet.

    `open_stream` opens a stream for its builder; `wake` is called after each attempt. Both run in another thread.
    Making it raises what `JobFile.is_there` raises.
    """

    def __init__(self, job: JobFile, open_stream: Callable[[str], Builder], wake: Callable[[], None]) -> None:
        self._job = job
        self._open_stream = open_stream
        self._wake = wake
        #: The streams that are not open yet.
        self.awaited = {name for name in job.recipes if not job.is_there(name)}
        self._opening: set[str] = set()
        #: Streams whose files could not be written.
        self._unkept: set[str] = set()
        self._look_s = 0.0
        self._fetching = GraphFetching()
        #: The last request, and when to repeat it.
        self._asked: m.BundleWanted | None = None
        self._again_s = 0.0
        #: Results of attempts to open: the stream's name, and the builder or None.
        self._tried: SimpleQueue[tuple[str, Builder | None]] = SimpleQueue()

    def look(self, now_s: float) -> list[m.BundleWanted]:
        """Start to open the streams whose files have come, at intervals; return requests for the coordinator.

        Return an empty list if it is not time yet, no stream lacks files, or the last request is still to be answered.
        MissingLibraryError of `is_there` passes through.
        """
        if not self.awaited or now_s < self._look_s:
            return []
        self._look_s = now_s + _LOOK_S
        for name in sorted(self.awaited - self._opening):
            if self._job.is_there(name):
                self._opening.add(name)
                threading.Thread(target=self._open, args=(name,), name="opening", daemon=True).start()
        absent = self._absent()
        if not absent:
            return []
        self._fetching.need(absent)
        return self._ask(now_s)

    def _ask(self, now_s: float) -> list[m.BundleWanted]:
        wanted = self._fetching.wanted()
        if wanted == self._asked and now_s < self._again_s:
            return []
        pause_s = _AGAIN_S if wanted.digest else _FIRST_S
        self._asked, self._again_s = wanted, now_s + (_LOOK_S if self._fetching.waits else pause_s)
        return [wanted]

    def _open(self, name: str) -> None:
        builder = None
        try:
            builder = self._open_stream(name)
        except (StokerError, OSError) as error:
            Log("worker").warning("stream cannot be opened yet", stream=name, error=str(error))
        finally:  # after any other error too: the stream would never be tried again
            self._tried.put((name, builder))
            self._wake()

    def take_opened(self) -> list[Builder]:
        """Return the builders of the streams that were opened since the last call; empty if none was.

        Streams whose opening failed are tried again.
        """
        builders = []
        while not self._tried.empty():
            name, builder = self._tried.get()
            self._opening.discard(name)
            if builder is not None:
                self.awaited.discard(name)
                builders.append(builder)
        return builders

    def take_pieces(self, pieces: Iterable[m.BundlePiece], now_s: float) -> list[m.BundleWanted]:
        """Take in pieces from the coordinator; return the next request, if there is one, or an empty list.

        Graphs that are complete are written to disk. Errors of pieces or of writing are logged, and fetching goes on.
        MissingLibraryError of `is_there` passes through.
        """
        # Only the last request counts: those before are for pieces that came in the meantime.
        requests: list[m.BundleWanted] = []
        for piece in pieces:
            self._take(piece)
            requests += self._ask(now_s) if self._absent() else []
        return requests[-1:]

    def _take(self, piece: m.BundlePiece) -> None:
        try:
            fetched = self._fetching.take(piece)
            if not fetched:
                self._fetching.need(self._absent())
        except DataError as error:
            # The files of a coordinator were changed in place: what came so far may be of either state.
            Log("worker").warning("graphs cannot be fetched", error=str(error))
            self._fetching = GraphFetching()
            return
        for graph in fetched:
            self._keep(graph)

    def _absent(self) -> list[str]:
        return [name for name in sorted(self.awaited - self._opening) if not self._job.is_there(name)]

    def _keep(self, fetched: FetchedGraph) -> None:
        name = fetched.stream
        if name not in self._absent():
            return
        try:
            write_graph(self._job.graph_path(name), fetched.graph, self._job.index_folder(name), fetched.index)
        except (StokerError, OSError) as error:
            # Logged once, tried again: somebody may open the folder.
            closed = why_closed(self._job.graph_path(name))
            if not closed or name not in self._unkept:
                Log("worker").warning("graph cannot be kept", stream=name, error=closed or str(error))
            self._unkept.add(name)
