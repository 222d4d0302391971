"""A digest of each element when it was first made, so that one that differs later is noticed.

There is a file for each epoch and shard, with eight bytes for each element, which the workers of a machine share.
Rules: the first to make an element writes its digest; nothing depends on the files being there: a folder that cannot be
written costs the check, with a warning. The newest few are kept.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from shared.errors import MachineError
from shared.logs import Log
from shared.system.own_files import open_own

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FirstDigests"]

_BYTES = 8
#: Epochs that may be read again: by a restart, or by an evaluation beside training.
_EPOCHS_KEPT = 4


class FirstDigests:
    """The digests under one name, which stands for everything that shapes the elements."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._writable = True

    def first(self, epoch: int, shard: int, ordinal: int, digest: int) -> int:
        """The digest with which the element was made first: this one, if nobody has made it before."""
        try:
            return self._keep_first(self._folder / f"{self._name}-{epoch}-{shard}", ordinal, digest)
        except (OSError, MachineError) as error:
            if self._writable:
                Log("worker").warning("elements are not compared with those made before", error=str(error))
            self._writable = False
            return digest

    def _keep_first(self, path: Path, ordinal: int, digest: int) -> int:
        self._folder.mkdir(exist_ok=True)
        if not path.exists():
            self._remove_old()
        number = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            known = int.from_bytes(os.pread(number, _BYTES, ordinal * _BYTES), "little")
            if not known:
                os.pwrite(number, digest.to_bytes(_BYTES, "little"), ordinal * _BYTES)
            return known or digest
        finally:
            os.close(number)

    def _remove_old(self) -> None:
        """Remove files of older epochs, and of earlier states of the stream."""
        own = [path for path in self._folder.iterdir() if path.name.startswith(f"{self._name}-")]
        kept = sorted({int(path.name.split("-")[-2]) for path in own})[-_EPOCHS_KEPT:]
        for path in set(self._folder.iterdir()) - {one for one in own if int(one.name.split("-")[-2]) in kept}:
            with contextlib.suppress(OSError):
                path.unlink()
