"""Quick looks at very many files or samples: whether the indexed files are on this machine, and what has changed.

Rules: a file is there if its name and size are, because a copy has other times, and what a file holds is
compared when it is read. Remote files are not looked at. However many files there are, a look takes no longer than its
time; what it has seen by then, evenly spread over all, tells enough.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["IndexedFiles", "MissingFiles", "find_missing", "look_at_some"]

#: How many files are looked at, evenly spread over all: a mount or a copy that is missing lacks most of them.
_MOST_LOOKED_AT = 1000

#: The share of files that may be missing without a word to trainers: such samples are refused one by one. With batches
#: of 32 samples from a file each, a worker that lacks a tenth of its files refuses 29 of 30 batches.
_BEARABLE_SHARE = 0.1

#: Samples in the first pass over all: these few reveal most changes, because data sets are usually rewritten whole.
_A_PASS = 1000


@dataclass(frozen=True, slots=True)
class IndexedFiles:
    """The files of an index by number: `file_at` returns a file's path ("" if it is remote) and its size."""

    count: int
    file_at: Callable[[int], tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFiles:
    """The result of a look: the first missing file, the reason, and how many of those looked at are missing."""

    path: str
    #: Why the first one counts as missing, as the end of a sentence: "missing", "has 3 bytes, not 8".
    reason: str
    missing: int
    looked_at: int

    @property
    def share(self) -> float:
        """Return the missing fraction of the files looked at, of which there is at least one."""
        return self.missing / self.looked_at

    @property
    def is_bearable(self) -> bool:
        """Return whether at most a tenth of the files looked at is missing: most batches can be built all the same."""
        return self.share <= _BEARABLE_SHARE

    def fields(self) -> dict[str, str | int]:
        """Return the facts for a line of the log."""
        return {"path": self.path, "reason": self.reason, "missing": self.missing, "looked_at": self.looked_at}

    def __str__(self) -> str:
        files = "file" if self.looked_at == 1 else "files"
        return f"{self.path} {self.reason} ({self.missing} of {self.looked_at} {files} looked at)"


def find_missing(files: IndexedFiles, time_s: float) -> MissingFiles | None:
    """Return a summary of files that are missing, unreadable or of another size, or None if none was found.

    Look at 1000 to 1999, evenly spread, or all if there are fewer, until `time_s` are over; remote files are skipped.
    """
    until_s = time.monotonic() + time_s
    first, reason, missing, looked_at = "", "", 0, 0
    for number in range(0, files.count, max(1, files.count // _MOST_LOOKED_AT)):
        path, nbytes = files.file_at(number)
        why = _reason(path, nbytes) if path else ""
        looked_at += bool(path)
        missing += bool(why)
        if why and not first:
            first, reason = path, why
        # A mount may answer slowly, and a look has to end in time; what was looked at so far tells enough.
        if time.monotonic() > until_s:
            break
    return MissingFiles(path=first, reason=reason, missing=missing, looked_at=looked_at) if missing else None


def _reason(path: str, nbytes: int) -> str:
    """Return why a file counts as missing (absent, unreadable, of another size), or "" if one of this size is there."""
    try:
        now = os.stat(path).st_size  # takes a fifth of the time of Path.stat
    except FileNotFoundError:
        return "missing"
    except (OSError, ValueError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    return "" if now == nbytes else f"has {now} bytes, not {nbytes}"


def look_at_some(samples: int, look: Callable[[int], object], time_s: float) -> None:
    """Call `look` with sample after sample, in passes of evenly spread ones, until all are done or time is up.

    What `look` raises passes through and ends the passes.
    """
    until_s = time.monotonic() + time_s
    step = max(samples // _A_PASS, 1)
    for first in range(step):
        for sample in range(first, samples, step):
            if time.monotonic() > until_s:
                return
            look(sample)
