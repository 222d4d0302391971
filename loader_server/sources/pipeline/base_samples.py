"""The samples of another stream of the job, as `context.base_dataset` gives them: read, decoded and transformed.

Rules: shard s of S has the samples whose number is s modulo S, in their order; what a transform draws depends on epoch
and sample, as in the stream itself. A sample that cannot be used is left out, with a line in the log.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from loader_server.job_file import JobFile
from loader_server.sources.files.patience import read_patiently
from loader_server.stream import Stream
from shared.errors import SampleError, SettingsError
from shared.logs import Log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.sources.source import OfJob
    from shared.wire.layout import Field

__all__ = ["BaseSamples"]


class BaseSamples:
    """The samples of the stream called `name`."""

    def __init__(self, of_job: OfJob, name: str) -> None:
        assert of_job.path is not None
        job = JobFile(of_job.path)
        if name not in job.recipes or job.recipes[name].whole:
            raise SettingsError(
                expected="another stream of the job, one of samples",
                got=f'base = "{name}"',
                where=of_job.table,
                remedy="Name a stream that has a source of its own, such as lines or tfrecord.",
            )
        self._stream = Stream(job, name)
        #: Several shards may run side by side, but only one thread at a time decodes.
        self._decoding = threading.Lock()

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of each sample."""
        return self._stream.chain.fields

    @property
    def opened(self) -> str:
        """A text that changes whenever the samples may have changed."""
        return self._stream.opened

    def of_shard(self, epoch: int, shard: int, shards: int) -> Iterator[Mapping[str, NDArray[np.generic]]]:
        """Yield the samples of one shard."""
        for sample in range(shard, self._stream.samples, shards):
            values = self._values(epoch, sample)
            if values is not None:
                yield values

    def _values(self, epoch: int, sample: int) -> Mapping[str, NDArray[np.generic]] | None:
        (raw,) = read_patiently(self._stream.source.read, [sample], bool)
        try:
            with self._decoding:
                return self._stream.values(epoch, sample, raw)
        except SampleError as error:
            Log("worker").warning("sample left out", stream=self._stream.name, error=str(error))
            return None

    def close(self) -> None:
        """Give back what is open."""
        self._stream.close()
