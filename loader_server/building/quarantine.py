"""The quarantine log: each sample that could not be used, once per worker, with the reason, for those who mend data.

JSON lines, each appended in one piece, by all workers of a machine to one file. What cannot be written there (the disk
is full, the file is not ours) goes to the process log.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Protocol

from shared.errors import MachineError
from shared.logs import Log
from shared.stores.own_files import open_own, why_closed

if TYPE_CHECKING:
    from pathlib import Path

    from shared.errors import SampleError

__all__ = ["COMMON_REASONS", "MaskedLog", "Quarantine"]

#: Reasons for masking that any job may meet. Their counts start at 0, so that metrics show the first masked row as an
#: increase; a reason of one source or transform alone is counted from its first row on.
COMMON_REASONS = (
    *("dtype", "exhausts", "kills_decoder", "longer_than_planned", "missing", "not_finite", "over_largest_sample"),
    *("shape", "transform", "truncated", "undecodable"),
)


class MaskedLog(Protocol):
    """Where a builder reports the samples that it masks; `loader-server show` has another one than workers."""

    def note(self, stream: str, sample: int, name: str, error: SampleError) -> None:
        """Record that a sample's row was masked."""


class Quarantine:
    """Quarantine log of one worker; `counts` has masked rows by reason, including repeats.

    If the file cannot be opened, that is logged, and samples go to the process log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = Log("quarantine")
        #: What was written already, by stream, sample and reason: a bad sample comes again in each epoch.
        self._known: set[tuple[str, int, str]] = set()
        self._lock = threading.Lock()
        #: A newline to write first if a full disk cut the last line short, so that only that line is broken.
        self._torn = b""
        self.counts: Counter[str] = Counter(dict.fromkeys(COMMON_REASONS, 0))
        self._file = self._open_file()

    def _open_file(self) -> int | None:
        """Return the file's descriptor, or None after a log line if it cannot be opened."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return open_own(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        except (OSError, MachineError) as error:
            # A closed folder is no news: the worker warns of it once, for all that it would write there.
            is_known = isinstance(error, OSError) and why_closed(self._path.parent)
            log = self._log.debug if is_known else self._log.warning
            log("quarantine log cannot be opened", quarantine=str(error))
            return None

    def note(self, stream: str, sample: int, name: str, error: SampleError) -> None:
        """Count a masked row by reason, and write its sample down; if the file cannot be written, log it instead.

        A sample is written only once for each reason.
        """
        with self._lock:
            self.counts[error.reason] += 1
            key = (stream, sample, error.reason)
            if key in self._known:
                return
            self._known.add(key)
        facts = {"stream": stream, "sample": sample, "name": name, "reason": error.reason, "error": str(error)}
        try:
            self._append({"at": datetime.now(timezone.utc).isoformat(timespec="seconds"), **facts})
        except OSError as failure:
            self._log.warning("sample is masked", **facts, quarantine=f"{self._path}: {failure.strerror}")

    def _append(self, line: dict[str, object]) -> None:
        """Write one line; raise OSError if the file is not open or cannot be written, such as on a full disk."""
        if self._file is None:
            raise OSError(errno.EBADF, "it could not be opened")
        # One write in append mode, so that lines of several workers do not mix. A full disk may take only part of it.
        data = self._torn + (json.dumps(line) + "\n").encode()
        while data:
            data = data[os.write(self._file, data) :]
            self._torn = b"\n" if data else b""

    def close(self) -> None:
        """Close the file, if it was opened; call it only once, and note nothing afterwards."""
        if self._file is not None:
            os.close(self._file)
