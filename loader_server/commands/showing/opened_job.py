"""A job as a notebook or a test looks at it: any batch, any sample, as numpy arrays.

Rules: no process is started, no socket listens, and nothing is written but the plan's cache. Batches are built by the
worker's own builder, so what is seen is what is trained on. As in `loader-server show`, a stream has the group of the
job that ran, and samples that it convicted are not decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.building.culprits import kills
from loader_server.commands.plan_command import open_stream, sample_named
from loader_server.commands.remembered import recall
from loader_server.commands.showing.shown_batch import BatchNumber, ShownBatches
from loader_server.job_file import read_job
from loader_server.sources.files.retried_reads import read_patiently
from loader_server.sources.source import decoded
from shared.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray
    from typing_extensions import Self

    from loader_server.commands.showing.shown_batch import ShownBatch
    from loader_server.job_file import JobFile
    from loader_server.stream import Stream

__all__ = ["OpenJob", "OpenStream", "open_job"]


def open_job(path: str | Path) -> OpenJob:
    """Open a job whose data are indexed, to look at its batches and samples without servers.

        >>> with loader_server.open("job.toml") as job:
        ...     batch = job.stream("train").batch(41, epoch=3)
        >>> batch["audio"].shape, batch.samples[0].name

    Raises SettingsError for a mistake in the job file, or for a package of it that is not installed.
    """
    return OpenJob(read_job(path))


class OpenJob:
    """A job file that was read; its streams are opened when they are asked for, and closed with it."""

    def __init__(self, job: JobFile) -> None:
        self._job = job
        self._opened: dict[str, OpenStream] = {}

    @property
    def streams(self) -> tuple[str, ...]:
        """Return the names of the job's streams, in the order of the job file."""
        return tuple(self._job.recipes)

    def stream(self, name: str) -> OpenStream:
        """Return a stream, opened; the same one each time until the job is closed.

        Raises SettingsError if the job has no such stream, if its source makes whole batches, or if its settings do not
        fit its data; DataError if it is not indexed or was indexed from other data; and what `recall` raises.
        """
        if name not in self._opened:
            stream = open_stream(self._job, name)
            groups, culprits = recall(self._job)
            group = self._job.settings.group or groups.get(name, 1)
            self._opened[name] = OpenStream(stream, group, culprits)
        return self._opened[name]

    def close(self) -> None:
        """Close all streams; one that is asked for later is opened anew. What a source raises passes through."""
        while self._opened:
            self._opened.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class OpenStream:
    """One stream of a job: its batches and samples by number, as numpy arrays."""

    def __init__(self, stream: Stream, group: int, culprits: frozenset[tuple[str, str]]) -> None:
        self._stream = stream
        self._culprits = culprits
        self._shown = ShownBatches(stream, culprits)
        #: How many consecutive batches have one shape: the ranks of the job, unless the job file says otherwise.
        self.group = group
        #: The plan's digest, as cursors have it: two jobs of equal digest have the same batches.
        self.digest = stream.digest
        #: How many samples are indexed; their numbers are below it.
        self.samples = stream.samples

    def batches(self, epoch: int = 0) -> int:
        """Return how many batches an epoch has. Errors of the plan pass through."""
        return self._shown.count(epoch, self.group)

    def batch(self, number: int, *, epoch: int = 0) -> ShownBatch:
        """Build a batch as a worker builds it: `batch["tokens"]` is an array, `batch.digest` is that of the served one.

        `batch.samples` has the samples with name, row, text and, if a row is masked, the error. Raises SettingsError if
        the epoch has no such batch, ReadError if a sample cannot be read, and what `ShownBatches.build` raises besides.
        """
        position = BatchNumber(epoch=_natural(epoch, "epoch"), number=_natural(number, "batch"), group=self.group)
        return self._shown.build(position)

    def sample(self, which: int | str, *, epoch: int = 0, raw: bool = False) -> dict[str, NDArray[Any] | Any]:
        """Return one sample, by its number or name: its arrays after the transforms, as they are in this epoch.

        With `raw` it is what the source decodes, before any transform. Raises SettingsError if there is no such sample,
        SampleError if it cannot be used or is known to kill decoders, and ReadError if it cannot be read. Other errors
        of source and transforms pass through.
        """
        stream = self._stream
        number = sample_named(stream, which) if isinstance(which, str) else _natural(which, "sample", stream.samples)
        if (stream.name, stream.identity(number)) in self._culprits:
            raise kills(stream.source.name(number))
        (read,) = read_patiently(stream.source.read, [number], bool)
        if raw:
            return decoded(stream.source, number, read)
        return stream.values(_natural(epoch, "epoch"), number, read)

    def close(self) -> None:
        """Close the sources. What a source raises passes through."""
        self._stream.close()


def _natural(number: int, name: str, end: int | None = None) -> int:
    """Return the number; raise a SettingsError unless it is an integer from 0 to before `end`."""
    if isinstance(number, int) and number >= 0 and (end is None or number < end):
        return number
    below = "" if end is None else f" and below {end}"
    raise SettingsError(
        expected=f"an integer of at least 0{below}",
        got=repr(number),
        where=name,
        remedy="Epochs, batches and samples are counted from 0.",
    )
