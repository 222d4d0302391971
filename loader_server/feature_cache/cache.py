"""A cache of one stream's samples as they are before the first transform that draws random numbers, across epochs.

Rules: a sample is found only under the key of everything that shaped it (the source and its index, the transforms so
far with their settings and files, versions, the processor's loops), and only while its identity is the one it was kept
under. What cannot be kept is made anew, which is always right. A stream whose first transform draws keeps nothing. The
values that come back equal those that went in, with the same types, and arrays are writable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

from loader_server.feature_cache.store import SampleStore
from shared.logs import Log
from shared.stores.own_files import CLOSED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.job_file import JobFile
    from loader_server.stream import Stream

__all__ = ["FeatureCache", "as_bytes", "from_bytes"]

#: Arrays start at multiples of this many bytes, so that views of them are aligned.
_ALIGNMENT = 16
#: Exact types: a value of a subclass would come back as its base class, and so is not kept.
_PLAIN = (str, bytes, bool, int, float, type(None))


class FeatureCache:
    """The kept samples of a stream; `SampleStore` says which threads may call which method."""

    def __init__(self, stream: Stream, store: SampleStore) -> None:
        self._stream = stream
        self._store = store

    @staticmethod
    def open(job: JobFile, stream: Stream) -> FeatureCache | None:
        """Return the cache of a stream, or None.

        None if the job has no cache, the stream has nothing to keep, or the cache's folder is closed to this user.
        Other errors of the disk are raised, and a MachineError if there are links in the place of the cache's files.
        """
        settings = job.feature_cache
        if not settings.bytes or not stream.chain.steady_steps:
            return None
        try:
            store = SampleStore(settings.folder, stream.steady, stream.samples, settings.bytes)
        except OSError as error:
            # A closed folder costs only the cache; a disk that fails in another way is for the operator to see.
            if error.errno not in CLOSED:
                raise
            Log("worker", stream=stream.name).warning(
                "feature cache is closed: samples are made anew", folder=settings.folder, error=str(error)
            )
            return None
        return FeatureCache(stream, store)

    def find(self, samples: Sequence[int]) -> dict[int, bytearray]:
        """Return the cache hits among these samples, as blobs by sample number, maybe none.

        Raise an OSError if the disk fails; errors of the source's `identity` pass through.
        """
        blobs = ((sample, self._store.get(sample, self._stream.identity(sample))) for sample in samples)
        return {sample: blob for sample, blob in blobs if blob is not None}

    def unkept(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples that have no entry; nothing is read, so others may still turn out to be misses."""
        return samples[~self._store.seem_kept(samples)]

    def keep(self, sample: int, values: Mapping[str, Any]) -> None:
        """Keep a sample's values, unless they cannot be kept as bytes or there is no room.

        Raise a MachineError if there is a link in the place of the cache's files, and an OSError if the disk fails.
        Errors of the source's `identity` pass through.
        """
        blob = as_bytes(values)
        if blob is not None:
            self._store.put(sample, self._stream.identity(sample), blob)

    def close(self) -> None:
        """Close the store's files in this process; kept samples stay for others, and closing again does nothing."""
        self._store.close()


def as_bytes(values: Mapping[str, Any]) -> bytes | None:
    """Return the values as bytes; None if one cannot be kept.

    Kept are arrays and numpy's scalars without objects, texts that are valid Unicode, bytes, bools, floats, None and
    integers of up to 64 bits, all of exactly these types.
    """
    header: list[tuple[str, Any]] = []
    parts: list[bytes] = []
    for key, value in values.items():
        if isinstance(value, np.ndarray | np.generic):
            if value.dtype.hasobject or type(value) not in (np.ndarray, value.dtype.type):
                return None
            raw = value.tobytes()
            header.append((key, [value.dtype.str, list(value.shape), isinstance(value, np.generic)]))
            parts += (raw, bytes(-len(raw) % _ALIGNMENT))
        elif type(value) in _PLAIN:
            header.append((key, value))
        else:
            return None
    try:
        packed: bytes = msgpack.packb(header)
    except (OverflowError, ValueError):  # an integer of more than 64 bits, a lone surrogate
        return None
    size = len(packed).to_bytes(4, "little")
    return b"".join((size, packed, bytes(-(4 + len(packed)) % _ALIGNMENT), *parts))


def from_bytes(raw: bytearray) -> dict[str, Any]:
    """Return the values that `as_bytes` gave these bytes for, by key; arrays are writable views of `raw`."""
    size = int.from_bytes(raw[:4], "little")
    at = 4 + size
    at += -at % _ALIGNMENT
    values: dict[str, Any] = {}
    for key, fact in msgpack.unpackb(memoryview(raw)[4 : 4 + size]):
        if not isinstance(fact, list):  # a plain value; no list is kept, so a list describes an array
            values[key] = fact
            continue
        dtype, shape, is_single = fact
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(raw, dtype, count, at).reshape(shape)
        values[key] = array[()] if is_single else array
        at += array.nbytes + -array.nbytes % _ALIGNMENT
    return values
