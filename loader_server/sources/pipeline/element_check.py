"""The check of an element before it is sent: it has to fit into trainers' slots, and to equal its first making.

Epoch 0 is run during indexing, so the index has the digests of its elements; for other epochs the workers of a machine
share them in files (see `first_digests`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shared.errors import DataError
from shared.pipelines.element_values import digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from loader_server.sources.pipeline.first_digests import FirstDigests

__all__ = ["ElementCheck"]

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

        Elements are compared only if the stream asks for exact replay.
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
        if self.exact and not self._is_as_before(epoch, shard, ordinal, digest_of(flat)):
            raise DataError(
                expected="the element that was made here first", got="another one", where=place, remedy=_UNLIKE
            )

    def _is_as_before(self, epoch: int, shard: int, ordinal: int, digest: int) -> bool:
        """Tell whether the digest is that of the first making, or this is the first one."""
        # An element beyond those of the index (0) is compared like those of later epochs.
        known = self._digest_in_index(shard, ordinal) if epoch == 0 else 0
        return (known or self.first.first(epoch, shard, ordinal, digest)) == digest

    def _digest_in_index(self, shard: int, ordinal: int) -> int:
        """Return the digest in the index, or 0 if the shard had fewer elements in epoch 0."""
        start, stop = np.searchsorted(self.shards, [shard, shard + 1])
        return int(self.digests[start + ordinal]) if start + ordinal < stop else 0
