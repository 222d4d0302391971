"""The samples of another stream of the job, as `context.base_dataset` gives them: read, decoded and transformed.

Rules: shard s of S has the samples whose number is s modulo S, in their order. What a transform draws depends on epoch
and sample, as in the stream itself. A sample that cannot be used is left out, with a line in the log.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from loader_server.sources.files.retried_reads import read_patiently
from shared.errors import SampleError
from shared.logs import Log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from shared.wire.batch_layout import Field

__all__ = ["BaseSamples", "SampleStream"]


class SampleStream(Protocol):
    """The part of an open stream that gives its samples.

    A protocol, because the module of streams imports sources, and so cannot be imported here.
    """

    @property
    def name(self) -> str:
        """Return the name that the stream has in the job file."""

    @property
    def samples(self) -> int:
        """Return how many samples an open stream has."""

    @property
    def source(self) -> Any:
        """Return the open source that reads the stream's samples, by `Source.read`."""

    @property
    def padding(self) -> Mapping[str, np.generic]:
        """Return what fills the cells of each key that hold no sample, without keys that have 0 there."""

    @property
    def opened(self) -> str:
        """Return a text that changes whenever the samples may have changed."""

    def values(self, epoch: int, sample: int, raw: bytes) -> Mapping[str, NDArray[np.generic]]:
        """Return a sample decoded and transformed; raise a SampleError if it cannot be used.

        Errors that say nothing about the sample, such as a ReadError, pass.
        """

    def close(self) -> None:
        """Close the files that the stream's source holds open; each opens again when it is next read."""


class BaseSamples:
    """The samples of another stream of the job, with these fields."""

    def __init__(self, stream: SampleStream, fields: tuple[Field, ...]) -> None:
        self._stream = stream
        self.fields = fields
        #: What the stream pads its keys with, if it is not 0.
        self.padding = stream.padding
        #: Several shards may run side by side, but only one thread at a time decodes.
        self._decoding = threading.Lock()

    @property
    def opened(self) -> str:
        """Return a text that changes whenever the samples may have changed."""
        return self._stream.opened

    def of_shard(self, epoch: int, shard: int, shards: int) -> Iterator[Mapping[str, NDArray[np.generic]]]:
        """Yield the samples of one shard, without those that cannot be used.

        Raise a ReadError if reading keeps failing; other errors of reading, decoding and the transforms pass.
        """
        for sample in range(shard, self._stream.samples, shards):
            values = self._values(epoch, sample)
            if values is not None:
                yield values

    def _values(self, epoch: int, sample: int) -> Mapping[str, NDArray[np.generic]] | None:
        """Return a sample's values, or log a warning and return None if it cannot be used.

        Raise a ReadError if reading keeps failing; other errors of reading, decoding and the transforms pass.
        """
        (raw,) = read_patiently(self._stream.source.read, [sample], bool)
        # Reading was done without the lock: any thread may read, but only one decodes.
        try:
            with self._decoding:
                return self._stream.values(epoch, sample, raw)
        except SampleError as error:
            Log("worker").warning("sample left out", stream=self._stream.name, error=str(error))
            return None

    def close(self) -> None:
        """Close the stream of samples; what it raises passes through."""
        self._stream.close()
