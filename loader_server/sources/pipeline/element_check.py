"""Whether an element may be sent: it has to fit into trainers' slots, and to equal what was made the first time.

For epoch 0, which was run while indexing, the index knows what was made first; for others the workers of a machine tell
each other (see `first_digests`).
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
    """Checks elements; `shards` and `digests` are columns of the index."""

    where: str
    most_steps: Mapping[str, int]
    exact: bool
    shards: NDArray[np.int64]
    digests: NDArray[np.int64]
    first: FirstDigests

    def check(self, epoch: int, shard: int, ordinal: int, flat: Mapping[str, NDArray[np.generic]]) -> None:
        """Raise a DataError if this element may not be sent."""
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
        known = self._digest_in_index(shard, ordinal) if epoch == 0 else 0
        return (known or self.first.first(epoch, shard, ordinal, digest)) == digest

    def _digest_in_index(self, shard: int, ordinal: int) -> int:
        start, stop = np.searchsorted(self.shards, [shard, shard + 1])
        return int(self.digests[start + ordinal]) if start + ordinal < stop else 0
