"""Parts of plans on disk, beside the index: the first start computes them, the next one reads them.

Rules: a file is written under a temporary name and renamed, so it is there completely or not at all; it starts with a
hash of its name and content, and if that does not match it is computed anew; the newest few of each kind are kept.
Nothing depends on these files: a disk that cannot be written only costs time, with a warning.
"""

from __future__ import annotations

import contextlib
import io
import os
from typing import TYPE_CHECKING

import numpy as np

from shared.hashing import fingerprint
from shared.logs import Log
from shared.system.own_files import draft_of, why_closed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.integer]]

__all__ = ["PlanKeeper"]

#: Files kept of each kind: enough for the plans of a few settings that are being compared, or the epochs around the
#: current one.
_KEPT = 8
_DIGEST_BYTES = 16


class PlanKeeper:
    """Arrays kept in one folder; safe to use from several threads and processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = Log("plan")

    def load(self, kind: str, name: str) -> Arrays | None:
        """Return the arrays that were saved; None if there are none, or if they are damaged."""
        path = self._path(kind, name)
        try:
            with path.open("rb") as file:
                digest, body = file.read(_DIGEST_BYTES), file.read()
        except OSError:
            return None
        if digest != _digest(path, body):
            self._log.warning("a damaged part of the plan is made anew", path=str(path))
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # marks the file as used, so that others are removed first
        with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
            return dict(arrays)

    def save(self, kind: str, name: str, arrays: Arrays) -> None:
        """Save arrays, and remove the least recently used ones of this kind; log a warning if that fails."""
        path = self._path(kind, name)
        body = io.BytesIO()
        np.savez(body, **arrays)  # type: ignore[arg-type]
        draft = draft_of(path)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Not synced: a file that a power failure leaves torn does not match its hash, and is computed anew.
            with draft.open("xb") as file:
                file.write(_digest(path, body.getbuffer()))
                file.write(body.getbuffer())
            draft.replace(path)
            self._remove_old(f"{kind}-*.plan")
            self._remove_old("*.tmp*")
        except OSError as error:
            say = self._log.debug if why_closed(self._folder) else self._log.warning  # may be read-only
            say("the plan is not kept: the next start works it out again", error=str(error))
            with contextlib.suppress(OSError):
                draft.unlink()

    def _path(self, kind: str, name: str) -> Path:
        return self._folder / f"{kind}-{name}.plan"

    def _remove_old(self, pattern: str) -> None:
        """Remove all but the newest files.

        This is for drafts too: a recent one may be another process's, an old one was left by a killed process.
        """
        for path in sorted(self._folder.glob(pattern), key=_used_ns, reverse=True)[_KEPT:]:
            path.unlink(missing_ok=True)


def _digest(path: Path, body: bytes | memoryview) -> bytes:
    return bytes.fromhex(fingerprint(path.name, body))


def _used_ns(path: Path) -> int:
    """Return when a file was last used; 0 if another process has removed it meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0
