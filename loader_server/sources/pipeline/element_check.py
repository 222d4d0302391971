"""The check of an element before it is sent: it has to fit into trainers' slots, and to equal its first making.

Epoch 0 is run during indexing, so the index has the digests of its elements; for other epochs the workers of a machine
share one file for each epoch and shard, with eight bytes for each element. Rules: the first to make an element writes
its digest. Nothing depends on the files: if the folder cannot be written, a warning says that the check is off. Only
the files of the newest epochs are kept.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shared.errors import DataError, MachineError
from shared.logs import Log
from shared.pipelines.element_values import digest_of
from shared.stores.own_files import open_own

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["ElementCheck", "FirstDigests"]

_BYTES = 8
#: Number of epochs whose files are kept: a restart, or an evaluation beside training, may make them again.
_EPOCHS_KEPT = 4

_UNLIKE = (
    "Draw without state (tf.random.stateless_uniform and its like) and read nothing that changes; or write "
    'replay = "approximate", and losing a worker may change what is trained on.'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementCheck:
    """Check of elements; `shards` and `digests` are columns of the index."""

    where: str
    most_steps: Mapping[str, int]
    exact: bool
    shards: NDArray[np.int64]
    digests: NDArray[np.int64]
    first: FirstDigests

    def check(self, epoch: int, shard: int, ordinal: int, flat: Mapping[str, NDArray[np.generic]]) -> None:
        """Raise a DataError if this element is too large, or differs from the one made first.

        Elements are compared only if the stream asks for exact replay; the first one's digest is then stored for later
        ones.
        """
        place = f"{self.where}, element {ordinal} of shard {shard} of epoch {epoch}"
        for key, most in self.most_steps.items():
            if len(flat[key]) > most:
                raise DataError(
                    expected=f'at most {most} values of "{key.partition(":")[0]}", the room that trainers have for it',
                    got=str(len(flat[key])),
                    where=place,
                    remedy='Say how much there may be: largest = "… MB".',
                )
        # That a shard that is made again has the same elements is for the user's code to keep, so it is checked.
        if self.exact and not self._is_as_before(epoch, shard, ordinal, digest_of(flat)):
            raise DataError(
                expected="the element that was made here first", got="another one", where=place, remedy=_UNLIKE
            )

    def _is_as_before(self, epoch: int, shard: int, ordinal: int, digest: int) -> bool:
        """Return whether the digest is that of the first making, or this is the first one."""
        # An element beyond those of the index (0) is compared like those of later epochs.
        known = self._digest_in_index(shard, ordinal) if epoch == 0 else 0
        return digest == (known or self.first.first(epoch, shard, ordinal, digest))

    def _digest_in_index(self, shard: int, ordinal: int) -> int:
        """Return the digest in the index, or 0 if the shard had fewer elements in epoch 0."""
        start, stop = np.searchsorted(self.shards, [shard, shard + 1])
        return int(self.digests[start + ordinal]) if start + ordinal < stop else 0


class FirstDigests:
    """Digests under one name, which stands for everything that shapes the elements."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        #: Whether the files could be used so far; the warning comes once.
        self._writable = True

    def first(self, epoch: int, shard: int, ordinal: int, digest: int) -> int:
        """Return the digest with which this element was first made, or store and return `digest` if there is none.

        If the files cannot be used, return `digest`, so that the caller's comparison passes, and warn once. ValueError
        of `_remove_old` passes.
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
        compared with the one stored last. Raise an OSError or a MachineError if the file cannot be used; ValueError of
        `_remove_old` passes.
        """
        self._folder.mkdir(exist_ok=True)
        if not path.exists():  # the first element of a shard in a new epoch
            self._remove_old()
        handle = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            # Reading beyond the end gives no bytes, that is 0.
            known = int.from_bytes(os.pread(handle, _BYTES, ordinal * _BYTES), "little")
            if not known:  # never stored, because no digest is 0
                os.pwrite(handle, digest.to_bytes(_BYTES, "little"), ordinal * _BYTES)
            return known or digest
        finally:
            os.close(handle)

    def _remove_old(self) -> None:
        """Remove the files of all but the four newest epochs, and those under other names.

        Other names are of earlier states of the stream. A file that cannot be removed stays. Raise an OSError if the
        folder cannot be listed, and a ValueError for a file under this name without an epoch.
        """
        # Epoch of each file; -1 for those under other names, which nobody compares with any more.
        epochs = dict.fromkeys(self._folder.iterdir(), -1)
        epochs |= {path: int(path.name.split("-")[-2]) for path in epochs if path.name.startswith(f"{self._name}-")}
        kept = sorted(set(epochs.values()) - {-1})[-_EPOCHS_KEPT:]
        for path in (path for path, epoch in epochs.items() if epoch not in kept):
            with contextlib.suppress(OSError):  # another worker may have removed it
                path.unlink()
