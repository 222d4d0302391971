"""Checks whether a worker's data are on its machine: before it registers, and repeatedly for what is missing.

A worker without its data would refuse every want while it looks healthy, so such a stream is not served here until its
files are there. Rules: a thread of its own checks, because a network file system may take its time to answer; the poll
loop takes the results. A stream whose files were all there is not checked again: files that disappear later are
reported where they are read.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from shared.logs import Log
from shared.wire import messages as m
from shared.wire.message_parts import clipped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from loader_server.sources.files.presence import MissingFiles
    from loader_server.stream import Stream

__all__ = ["DataWatch"]

#: Time limit of a check of one source; of files that answer slowly only a part is checked.
_LOOK_S = 1.0

#: Pauses between checks of what is missing.
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 4.0


class DataWatch:
    """Watcher of missing data; calls `wake`, in its thread, when there is something new to `take`."""

    def __init__(self, worker: str, job_path: Path, streams: Mapping[str, Stream], wake: Callable[[], None]) -> None:
        self._worker = worker
        self._job_path = job_path
        self._streams = dict(streams)
        self._wake = wake
        self._log = Log("worker", worker=worker)
        self._looks: SimpleQueue[dict[str, MissingFiles]] = SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="data watch", daemon=True)
        #: The missing files of each stream that is not served because of them; unknown until the first check
        #: (`is_known`).
        self.lacking: Mapping[str, MissingFiles] = {}
        self.is_known = False

    def start(self) -> None:
        """Start to check, in a thread of its own, until all data are there or the watch is closed."""
        self._thread.start()

    def close(self) -> None:
        """Stop checking, and wait for at most a second; a check that hangs in the file system ends with the process."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_LOOK_S)

    def _look(self) -> None:
        streams, pause_s = self._streams, _FIRST_PAUSE_S
        while not self._stop.is_set():
            checks = {name: stream.find_missing(_LOOK_S) for name, stream in streams.items()}
            missing_files = {name: missing for name, missing in checks.items() if missing is not None}
            self._looks.put(missing_files)
            # A look may take as long as the file system does, and the worker may be closed meanwhile.
            if not self._stop.is_set():
                self._wake()
            streams = {name: streams[name] for name, missing in missing_files.items() if not missing.is_bearable}
            if not streams or self._stop.wait(pause_s):
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def take(self) -> bool:
        """Take the results of the last checks and log changes; return whether anything changed."""
        known, before = self.is_known, self.lacking
        while not self._looks.empty():
            missing_files = self._looks.get()
            self._log_changes(missing_files)
            self.lacking = {name: missing for name, missing in missing_files.items() if not missing.is_bearable}
            self.is_known = True
        return self.is_known != known or self.lacking != before

    def _log_changes(self, missing_files: Mapping[str, MissingFiles]) -> None:
        for name, missing in missing_files.items():
            if missing.is_bearable:
                self._log.warning("some data are missing", stream=name, **missing.fields())
            elif name not in self.lacking:
                self._log.warning(
                    "no data: the stream is not served until they are there", stream=name, **missing.fields()
                )
        for name in self.lacking.keys() - missing_files.keys():
            self._log.info("data are there: the stream is served", stream=name)

    def failing(self) -> m.Failing | None:
        """Return the report for the job's status; None if no stream is kept from serving by missing data."""
        if not self.lacking:
            return None
        streams = "; ".join(f"no data for stream {name}: {missing}" for name, missing in sorted(self.lacking.items()))
        return m.Failing(
            worker=self._worker,
            expected="the files that the index lists, on this worker's machine",
            got=clipped(streams),
            where=clipped(f"{self._job_path}, streams {', '.join(sorted(self.lacking))}"),
            remedy="Mount the data, or copy them, where the job file says; the worker looks again.",
        )
