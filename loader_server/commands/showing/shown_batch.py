"""One batch of a plan, built here as a worker builds it, with details of its samples.

Rules: the bytes are the builder's own, so what is shown is what is trained on. Texts and draws come from decoding and
transforming each sample once more, with the same random numbers, which are recorded. A sample that the job convicted is
not decoded. Nothing is written: no quarantine log, no journal.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.building.builder import Builder
from loader_server.building.culprits import culprit_key
from loader_server.building.deadline import Deadline
from loader_server.sources.files.retried_reads import read_patiently
from loader_server.transforms.generators import RecordingGenerator
from shared.errors import SampleError, SettingsError
from shared.wire.message_parts import Ticket
from shared.wire.messages import Want
from shared.wire.strings import arrays_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.building.read_ahead import Prepared
    from loader_server.stream import Stream
    from loader_server.transforms.generators import Drawn

__all__ = ["BatchNumber", "ShownBatch", "ShownBatches", "ShownSample", "Sound"]

#: A key with a lower rate than this is not a sound.
_LOWEST_RATE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumber:
    """The number of a batch, and the size of groups that it is counted in."""

    epoch: int
    number: int
    group: int


@dataclass(frozen=True, slots=True)
class Sound:
    """The sound of a sample; `when` says after which transform."""

    values: NDArray[Any]
    rate: int
    when: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSample:
    """A sample of a batch: its row and offset there, its texts, draws and sound.

    `texts` are the strings of the raw sample and those that come with batches, `drawn` the transforms' random draws
    with the transforms' names, and `sound` is its last value that is a sound. A masked sample has what there was before
    the error.
    """

    row: int
    offset: int
    number: int
    name: str
    place: str
    error: SampleError | None
    texts: Mapping[str, str]
    drawn: Sequence[tuple[str, Drawn]]
    sound: Sound | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBatch:
    """A batch with its samples in the order of their rows, and the digest of its bytes; `batch[key]` is an array."""

    stream: Stream
    position: BatchNumber
    batches: int
    bucket: int
    arrays: Mapping[str, NDArray[Any]]
    samples: tuple[ShownSample, ...]
    rows: int
    digest: int

    def __getitem__(self, key: str) -> NDArray[Any]:
        """Return the array of a key; raise a KeyError if the batch has no such key."""
        return self.arrays[key]


class _Masked:
    """The masked samples, and why they were masked."""

    def __init__(self) -> None:
        self.errors: dict[int, SampleError] = {}

    def note(self, _stream: str, sample: int, _name: str, error: SampleError) -> None:
        self.errors[sample] = error


class ShownBatches:
    """The batches of a stream, built with their samples' details, by any thread, one after another.

    Samples that cannot be used, and `culprits`, are masked. The windows of an epoch that were planned last are kept:
    planning one sorts all of its samples, which takes many times longer than building a batch of it.
    """

    def __init__(self, stream: Stream, culprits: Iterable[tuple[str, str]]) -> None:
        self._stream = stream
        self._masked = _Masked()
        self._builder = Builder(stream, self._masked, Deadline(1.0, lambda _: None))
        self._builder.culprits.hear(culprit_key(name, identity) for name, identity in culprits)
        #: Held while a batch is built: the masked samples are those of one batch.
        self._building = threading.Lock()

    def count(self, epoch: int, group: int) -> int:
        """Return how many batches an epoch has in groups of this size; errors of the plan pass through."""
        return self._builder.batches(epoch, group)

    def build(self, position: BatchNumber) -> ShownBatch:
        """Build a batch with its samples' details.

        Raise SettingsError if the epoch has no batch of this number, ReadError if a sample cannot be read, and
        ExhaustedError or MemoryError if memory or descriptors ran out. The number must not be negative, which nothing
        checks. Other errors of plan and source, and OSError of `prepare`, pass through.
        """
        batches, stream = self.count(position.epoch, position.group), self._stream
        if position.number >= batches:
            in_groups = f"what epoch {position.epoch} has in groups of {position.group}"
            raise SettingsError(
                expected=f"a batch from 0 to {batches - 1}: {in_groups}",
                got=str(position.number),
                where=f"stream {stream.name}, batch",
                remedy="`loader-server plan` shows how many batches there are.",
            )
        with self._building:
            self._masked.errors = {}
            want = _want(stream, position)
            prepared = self._builder.prepare(want)
            payload = np.zeros(prepared.layout.nbytes, np.uint8)
            built = self._builder.build(want, prepared, payload)
            errors = self._masked.errors
        return ShownBatch(
            stream=stream,
            position=position,
            batches=batches,
            bucket=prepared.planned.bucket,
            arrays={key: np.asarray(value) for key, value in arrays_of(prepared.layout, payload).items()},
            samples=tuple(_samples(stream, position, prepared, errors)),
            rows=built.rows,
            digest=built.digest,
        )


def _want(stream: Stream, position: BatchNumber) -> Want:
    return Want(
        job="",
        stream=stream.name,
        epoch=position.epoch,
        number=position.number,
        empty=False,
        group=position.group,
        plan_digest=stream.digest,
        attempt=0,
        trainer=0,
        worker=0,
        ticket=Ticket(0, 1),
        in_slot=False,
        urgent=False,
    )


def _samples(
    stream: Stream, position: BatchNumber, prepared: Prepared, errors: Mapping[int, SampleError]
) -> Iterable[ShownSample]:
    """Yield the samples of a batch, in the order of their rows, each decoded once more unless that may kill us.

    Raise ReadError if one cannot be read. Other errors of the source pass through.
    """
    planned = prepared.planned
    samples = prepared.samples.tolist()
    rows = range(len(samples)) if planned.rows is None else planned.rows.tolist()
    offsets = [0] * len(samples) if planned.offsets is None else planned.offsets.tolist()
    for at, (row, offset, number) in enumerate(zip(rows, offsets, samples, strict=True)):
        inner = _InsideSample(stream, position.epoch, number)
        error = errors.get(number)
        if error is None or error.reason != "kills_decoder":
            inner.look()
        where, line = stream.source.place(number)
        yield ShownSample(
            row=row,
            offset=offset,
            number=number,
            name=stream.source.name(number),
            place=f"{where}, line {line}",
            error=error,
            texts=inner.texts | (prepared.strings.of(at) if prepared.strings is not None else {}),
            drawn=inner.drawn,
            sound=inner.sound,
        )


class _InsideSample:
    """The values of one sample on its way through decoding and transforms, as far as it gets."""

    def __init__(self, stream: Stream, epoch: int, number: int) -> None:
        self._stream = stream
        self._key = (stream.seed, epoch, number)
        self.texts: dict[str, str] = {}
        self.drawn: list[tuple[str, Drawn]] = []
        self.sound: Sound | None = None

    def look(self) -> None:
        """Decode and transform the sample, and record its texts, draws and sound, up to an error, which is dropped.

        Raise ReadError if it cannot be read. Other errors of the source's `read` pass through.
        """
        source, number = self._stream.source, self._key[2]
        (raw,) = read_patiently(source.read, [number], bool)
        with contextlib.suppress(Exception):  # the build has recorded why the sample is masked
            sample = source.decode(number, raw)
            self.texts = {key: value for key, value in sample.items() if isinstance(value, str)}
            self.sound = _sound_in(sample, "as the source has it")
            self._transform(sample)

    def _transform(self, sample: dict[str, Any]) -> None:
        rng, steps = RecordingGenerator(*self._key), self._stream.chain.steps
        stages = self._stream.chain.stages(sample, self._key, rng)
        for step in steps:
            try:
                _, made = next(stages)
            finally:
                self.drawn += [(step.name, drawn) for drawn in rng.drawn[len(self.drawn) :]]
            self.sound = _sound_in(made, f"after {step.name}") or self.sound


def _sound_in(sample: Mapping[str, Any], when: str) -> Sound | None:
    """Return a copy of the first value with one axis and a rate of at least `_LOWEST_RATE`; None if there is none.

    A copy, because transforms may change the value in place. A rate that is no number raises what `int` raises.
    """
    for key, value in sample.items():
        rate = int(sample.get(f"{key}_rate", 0))
        if rate >= _LOWEST_RATE and np.ndim(value) == 1:
            return Sound(np.array(value), rate, f'"{key}" {when}')
    return None
