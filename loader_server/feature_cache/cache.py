"""A cache of one stream's samples as they are before the first transform that draws random numbers, across epochs.

Rules: a sample is found only under the key of everything that shaped it (the source and its index, the transforms so
far with their settings and files, versions, the processor's loops), and only while its identity is the one it was kept
under. What cannot be kept is made anew, which is always right. A stream whose first transform draws keeps nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.feature_cache.store import SampleStore
from loader_server.feature_cache.values import as_bytes, from_bytes
from shared.logs import Log
from shared.system.own_files import CLOSED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.job_file import JobFile
    from loader_server.stream import Stream

__all__ = ["FeatureCache"]


class FeatureCache:
    """The kept samples of a stream; `SampleStore` says which threads may call which method."""

    def __init__(self, stream: Stream, store: SampleStore) -> None:
        self._stream = stream
        self._store = store

    @staticmethod
    def open(job: JobFile, stream: Stream) -> FeatureCache | None:
        """Return the cache of a stream, or None.

        None if the job has no cache, the stream has nothing to keep, or the cache's folder is closed to this user.
        """
        settings = job.feature_cache
        if not settings.bytes or not stream.chain.steady_steps:
            return None
        try:
            store = SampleStore(settings.folder, stream.steady, stream.samples, settings.bytes)
        except OSError as error:
            if error.errno not in CLOSED:
                raise
            Log("worker", stream=stream.name).warning(
                "feature cache is closed: samples are made anew", folder=settings.folder, error=str(error)
            )
            return None
        return FeatureCache(stream, store)

    def find(self, samples: Sequence[int]) -> dict[int, bytearray]:
        """Return the cache hits among these samples, as blobs by sample number."""
        found = ((sample, self._store.get(sample, self._stream.identity(sample))) for sample in samples)
        return {sample: blob for sample, blob in found if blob is not None}

    def unkept(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples that have no entry; nothing is read, so others may still turn out to be misses."""
        return samples[~self._store.seem_kept(samples)]

    def keep(self, sample: int, values: Mapping[str, Any]) -> None:
        """Keep a sample's values, unless they are of a type that cannot be kept or there is no room."""
        blob = as_bytes(values)
        if blob is not None:
            self._store.put(sample, self._stream.identity(sample), blob)

    @staticmethod
    def values(blob: bytearray) -> dict[str, Any]:
        """Return the values in a blob."""
        return from_bytes(blob)

    def close(self) -> None:
        """Close the store."""
        self._store.close()
