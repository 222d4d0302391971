"""Digests of elements as they were first made, so that an element made differently later is noticed.

The workers of a machine share one file for each epoch and shard, with eight bytes for each element. Rules: the first to
make an element writes its digest. Nothing depends on the files: if the folder cannot be written, a warning says that
the check is off. Only the files of the newest epochs are kept.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from shared.errors import MachineError
from shared.logs import Log
from shared.stores.own_files import open_own

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FirstDigests"]

_BYTES = 8
#: Number of epochs whose files are kept: a restart, or an evaluation beside training, may make them again.
_EPOCHS_KEPT = 4


class FirstDigests:
    """Digests under one name, which stands for everything that shapes the elements."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._writable = True

    def first(self, epoch: int, shard: int, ordinal: int, digest: int) -> int:
        """Return the digest with which this element was first made, or store and return `digest` if there is none.

        If the files cannot be used, return `digest`, so that the caller's comparison passes, and warn once.
        """
        try:
            return self._keep_first(self._folder / f"{self._name}-{epoch}-{shard}", ordinal, digest)
        except (OSError, MachineError) as error:
            if self._writable:
                Log("worker").warning("elements are not compared with those made before", error=str(error))
            self._writable = False
            return digest

    def _keep_first(self, path: Path, ordinal: int, digest: int) -> int:
        """Return the digest stored in the file, after storing this one if there is none.

        There is no lock: two workers that make an element at the same moment both store theirs, and later makings are
        compared with the one stored last.
        """
        self._folder.mkdir(exist_ok=True)
        if not path.exists():  # the first element of a shard in a new epoch
            self._remove_old()
        number = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            # Reading beyond the end gives no bytes, that is 0.
            known = int.from_bytes(os.pread(number, _BYTES, ordinal * _BYTES), "little")
            if not known:  # never stored, because no digest is 0
                os.pwrite(number, digest.to_bytes(_BYTES, "little"), ordinal * _BYTES)
            return known or digest
        finally:
            os.close(number)

    def _remove_old(self) -> None:
        """Remove the files of older epochs, and those under other names, of earlier states of the stream."""
        own = [path for path in self._folder.iterdir() if path.name.startswith(f"{self._name}-")]
        kept = sorted({int(path.name.split("-")[-2]) for path in own})[-_EPOCHS_KEPT:]
        for path in set(self._folder.iterdir()) - {one for one in own if int(one.name.split("-")[-2]) in kept}:
            with contextlib.suppress(OSError):
                path.unlink()
