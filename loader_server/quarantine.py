"""The quarantine log: each sample that could not be used, once a worker, with the reason, for whoever mends the data.

JSON lines, appended whole, by all workers of a machine to one file.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from shared.errors import SampleError

__all__ = ["Quarantine"]


class Quarantine:
    """Notes samples; `counts` are masked rows by reason, repeats included."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._known: set[tuple[str, int, str]] = set()
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def note(self, stream: str, sample: int, name: str, error: SampleError) -> None:
        """A row was masked."""
        with self._lock:
            self.counts[error.reason] += 1
            key = (stream, sample, error.reason)
            if key in self._known:
                return
            self._known.add(key)
        line = {
            "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "stream": stream,
            "sample": sample,
            "name": name,
            "reason": error.reason,
            "error": str(error),
        }
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
