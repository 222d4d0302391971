"""Graphs that trainers sent, kept on disk beside the journal and run once to make their index.

Rules: a graph counts only once it is synced and renamed into place. Its first epoch runs in a separate process, the
only one that needs TensorFlow, which ends with this one; the result is reported from another thread. A graph that
cannot be run is removed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from loader_server.coordinator.events import GraphFailed, GraphRuns
from loader_server.machine.graph_files import write_synced
from loader_server.stream import Stream
from shared.errors import DataError, StokerError
from shared.logs import Log
from shared.pipelines.element_values import digest_of_graph

if TYPE_CHECKING:
    from collections.abc import Callable

    from loader_server.coordinator.events import StreamView
    from loader_server.job_file import JobFile

__all__ = ["GraphKeeper", "kept_graphs"]

#: Limit of the process's output that fits into a message beside the rest.
_MOST_OUTPUT = 3000


class GraphKeeper:
    """Keeper of one job's graphs; calls `report` with events, from any thread.

    Once made it runs the graphs that are on disk without an index.
    """

    def __init__(
        self, job: JobFile, view: Callable[[Stream], StreamView], report: Callable[[GraphRuns | GraphFailed], None]
    ) -> None:
        self._job = job
        self._view = view
        self._report = report
        self._log = Log("coordinator")
        for name in job.accepting:
            if not job.is_awaited(name) and not job.is_there(name):
                self.run(name, b"")

    def run(self, stream: str, content: bytes) -> None:
        """Start a thread that writes the graph to disk and runs its first epoch; return at once.

        The thread reports `GraphRuns` or, after it has removed a graph that cannot be written or run, `GraphFailed`.
        Without content, the graph that is on disk is run. An error that is no StokerError or OSError, or one of
        removing the graph, ends the thread without a report.
        """
        threading.Thread(target=self._run, args=(stream, content), name="graph", daemon=True).start()

    def _run(self, stream: str, content: bytes) -> None:
        self._log.info("first epoch of a graph is run", stream=stream)
        try:
            if content:
                # An index that is still there is another graph's. It goes first: after a crash in between, a graph that
                # has no index is run again.
                (self._job.index_folder(stream) / "meta.json").unlink(missing_ok=True)
                write_synced(self._job.graph_path(stream), content)
            self._index(stream)
            opened = self._view(Stream(self._job, stream))
        except (StokerError, OSError) as error:
            # What cannot be run must not be found at the next start, nor stand in the way of another graph.
            self._job.graph_path(stream).unlink(missing_ok=True)
            self._report(GraphFailed(stream, str(error)))
        else:
            self._log.info("graph runs", stream=stream)
            self._report(GraphRuns(stream, opened))

    def _index(self, stream: str) -> None:
        command = [sys.executable, "-m", "loader_server", "index", str(self._job.path), "--stream", stream]
        command += ["--parent", str(os.getpid())]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        if ended.returncode:
            raise DataError(
                expected="the batches of the first epoch to be counted",
                got=ended.stderr.strip()[-_MOST_OUTPUT:] or f"exit {ended.returncode}",
                where=f"loader-server index {self._job.path} --stream {stream}",
                remedy="Mend what it names.",
            )


def kept_graphs(job: JobFile) -> dict[str, str]:
    """Return the digests of the graphs on disk, by stream; empty for a stream that has none yet.

    Raises OSError if a graph cannot be read.
    """
    return {
        name: "" if job.is_awaited(name) else digest_of_graph(job.graph_path(name).read_bytes())
        for name in job.accepting
    }
