"""Parts of plans on disk, beside the index: the first start computes them, the next one reads them.

Rules: a file is written under a temporary name and renamed, so it is there completely or not at all; it starts with a
hash of its name and content, and if that does not match it is computed anew; the newest few of each kind are kept.
Nothing depends on these files: a disk that cannot be written only costs time, with a warning.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from loader_server.planning.stages import Keeper
from shared.hashing import fingerprint
from shared.logs import Log
from shared.stores.eviction import evict, last_use_ns
from shared.stores.own_files import replacing, why_closed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.integer]]

__all__ = ["PlanKeeper"]

#: Files kept of each kind: enough for the plans of a few settings that are being compared, or the epochs around the
#: current one.
_KEPT = 8
_DIGEST_BYTES = 16


class PlanKeeper(Keeper):
    """Arrays kept in one folder; safe to use from several threads and processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = Log("plan")

    def load(self, kind: str, name: str) -> Arrays | None:
        """Return the arrays that were saved; None if there are none, they cannot be read, or are damaged (logged)."""
        path = self._path(kind, name)
        try:
            with path.open("rb") as file:
                digest, body = file.read(_DIGEST_BYTES), file.read()
        except OSError:
            return None
        if digest != _digest(path, body):
            self._log.warning("a damaged part of the plan is computed again", path=str(path))
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # marks the file as used, so that others are removed first
        with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
            return dict(arrays)

    def save(self, kind: str, name: str, arrays: Arrays) -> None:
        """Save arrays, and remove all but the eight of this kind that were used last; log it if that fails.

        That is a warning, or a debug line if the folder cannot be written to at all.
        """
        path = self._path(kind, name)
        body = io.BytesIO()  # in memory first, because its hash comes before it in the file
        np.savez(body, **arrays)  # type: ignore[arg-type]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Not synced: a file that a power failure leaves torn does not match its hash, and is computed anew.
            with replacing(path, sync=False) as file:
                file.write(_digest(path, body.getbuffer()))
                file.write(body.getbuffer())
            self._remove_old(f"{kind}-*.plan")
            self._remove_old("*.tmp*")
        except OSError as error:
            warn = self._log.debug if why_closed(self._folder) else self._log.warning  # may be read-only
            warn("the plan cannot be saved: the next start computes it again", error=str(error))

    def _path(self, kind: str, name: str) -> Path:
        return self._folder / f"{kind}-{name}.plan"

    def _remove_old(self, pattern: str) -> None:
        """Remove the files that match a pattern, but for the eight that were used last.

        Raise OSError if one cannot be removed; one that is gone by now is passed over.
        """
        # Drafts too: a recent one may be another process's, an old one was left by a killed process.
        files = [(last_use_ns(path), 1, str(path)) for path in self._folder.glob(pattern)]
        evict(files, len(files) - _KEPT, _remove)


def _remove(path: str) -> bool:
    Path(path).unlink(missing_ok=True)  # another process may be quicker
    return True


def _digest(path: Path, body: bytes | memoryview) -> bytes:
    return bytes.fromhex(fingerprint(path.name, body))
