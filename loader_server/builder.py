"""Builds a batch into a buffer: the one place where samples become rows.

Rules: the same want gives the same bytes, whoever builds it, however often; each value is written once, into its
place; a sample that cannot be used keeps its row, masked; reading errors are retried, then raised, and never mask. A
source that can write whole batches at once does so, where nothing has to be done to single samples. No sockets here.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.source import Gathering
from shared.errors import DataError, ReadError, SampleError
from shared.hashing import digest64
from shared.layout import Layout, layout_of
from shared.packing import round_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from loader_server.planning import EpochPlan, PlannedBatch
    from loader_server.quarantine import Quarantine
    from loader_server.stream import Stream
    from shared.layout import BucketShape
    from shared.messages import Want

__all__ = ["Builder", "Built", "Prepared", "key_of", "read_patiently"]

#: Pauses between tries to read a file: disks and network mounts hiccup for about so long.
_READ_PAUSES_S = (0.05, 0.2, 0.8)

#: Epochs whose plans are kept open; training and evaluation of a few trainers alternate.
_EPOCHS_KEPT = 8

#: Layouts that are kept: as many as a stream has buckets, and more where batches are padded to their longest row.
_LAYOUTS_KEPT = 1024


@dataclass(frozen=True, slots=True)
class Prepared:
    """A want looked up in the plan, and the bytes of its samples, or what failed while reading them."""

    planned: PlannedBatch
    shape: BucketShape
    layout: Layout
    raw: Sequence[bytes]
    read_us: int


@dataclass(frozen=True, slots=True)
class Built:
    """What is to be said of a built batch."""

    rows: int
    masked: int
    #: 0 where none was wanted.
    digest: int
    build_us: int
    #: Name of the first sample that was masked, and why; empty: none was.
    reason: str = ""
    #: Of these, spent on decoding and transforming; reading went before them.
    decode_us: int = 0
    read_us: int = 0
    #: Rows times padded length of the bucketed key: all, those of samples, those of rows without a sample.
    cells: int = 0
    sample_cells: int = 0
    masked_cells: int = 0


class Builder:
    """Builds batches of one stream."""

    def __init__(self, stream: Stream, quarantine: Quarantine) -> None:
        self._stream = stream
        self._quarantine = quarantine
        self._lock = threading.Lock()
        self._epochs: dict[tuple[int, int], EpochPlan] = {}
        #: By identity, for shapes are unhashable; the shape itself is kept, so that nobody else gets its identity.
        self._layouts: dict[int, tuple[BucketShape, BucketShape, Layout]] = {}
        #: Digests of the identities of samples that kill the process that decodes them: masked unread.
        self.culprits: frozenset[int] = frozenset()
        gathers = isinstance(stream.source, Gathering) and not stream.chain.steps
        self._gathering: Gathering | None = stream.source if gathers else None  # type: ignore[assignment]

    @property
    def reads(self) -> bool:
        """Whether preparing a want waits for a disk."""
        return self._gathering is None

    def batches(self, epoch: int, group: int) -> int:
        """How many batches an epoch has."""
        return self._epoch(epoch, group).batches

    def _epoch(self, epoch: int, group: int) -> EpochPlan:
        key = (epoch, group)
        with self._lock:
            plan = self._epochs.get(key)
            if plan is None:
                while len(self._epochs) >= _EPOCHS_KEPT:
                    del self._epochs[next(iter(self._epochs))]
                plan = self._epochs[key] = self._stream.plan.epoch(epoch, group)
            return plan

    def prepare(self, want: Want) -> Prepared:
        """Look the want up and read its samples; for a thread that reads ahead."""
        began_ns = time.perf_counter_ns()
        epoch = self._epoch(want.epoch, want.group)
        if want.number >= epoch.batches:
            raise DataError(
                expected=f"a batch number below {epoch.batches}",
                got=str(want.number),
                where=f"epoch {want.epoch} of {self._stream.name}",
                remedy="Trainer and worker disagree on the plan: report this.",
            )
        planned = epoch.batch(want.number)
        shape, layout = self._laid_out(planned.shape)
        samples = [] if want.empty else planned.samples.tolist()
        raw = self._read(samples) if self.reads else [b""] * len(samples)
        return Prepared(planned, shape, layout, raw, (time.perf_counter_ns() - began_ns) // 1000)

    def _laid_out(self, planned: BucketShape) -> tuple[BucketShape, Layout]:
        """The whole shape of a batch, and its layout: worked out once for each of a bucket's own shapes."""
        known = self._layouts.get(id(planned))
        if known is None or known[0] is not planned:
            if len(self._layouts) >= _LAYOUTS_KEPT:
                self._layouts.clear()
            shape = self._stream.shape(planned)
            known = self._layouts[id(planned)] = (planned, shape, layout_of(self._stream.fields, shape))
        return known[1:]

    def _read(self, samples: Sequence[int]) -> list[bytes]:
        read = self._stream.source.read
        return [b"" if self.is_culprit(sample) else read_patiently(read, sample) for sample in samples]

    def is_culprit(self, sample: int) -> bool:
        """Whether the sample is known to kill decoders."""
        return bool(self.culprits) and key_of(sample) in self.culprits

    def build(self, want: Want, prepared: Prepared, payload: NDArray[np.uint8], *, digest: bool = True) -> Built:
        """Write the batch into `payload`, all of it."""
        began_ns = time.perf_counter_ns()
        arrays: Any = prepared.layout.arrays(payload)
        samples = prepared.planned.samples[:0] if want.empty else prepared.planned.samples
        if self._stream.packed:
            rows, masked, decode_ns = self._pack(want, prepared, arrays)
        elif self._gathering is not None and not (self.culprits and any(map(self.is_culprit, samples.tolist()))):
            masked, decode_ns = self._gather(self._gathering, samples, arrays), 0
            rows = self._leave_empty(arrays, len(samples)) - masked
        else:
            masked, decode_ns = self._fill(want.epoch, samples, prepared.raw, arrays)
            rows = self._leave_empty(arrays, len(samples)) - masked
        self._clear_gaps(prepared.layout, payload)
        round_in_place(payload, prepared.layout, self._stream.float32)
        key = self._stream.settings.length
        space, length = arrays[key].shape[:2]
        return Built(
            rows=rows,
            masked=masked,
            digest=digest64(payload.data) if digest else 0,
            build_us=(time.perf_counter_ns() - began_ns) // 1000,
            decode_us=decode_ns // 1000,
            read_us=prepared.read_us,
            cells=space * length,
            sample_cells=int(arrays[f"{key}_length"].sum()),
            masked_cells=(space - rows) * length,
        )

    @staticmethod
    def _gather(source: Gathering, samples: NDArray[np.int64], arrays: Any) -> int:  # noqa: ANN401 - arrays by key
        """Let the source write all rows at once; how many of them are masked: none."""
        source.gather(samples, {key: array[: len(samples)] for key, array in arrays.items()})
        arrays["weight"][: len(samples)] = 1
        arrays["tag"][: len(samples)] = samples
        return 0

    def _fill(
        self,
        epoch: int,
        samples: NDArray[np.int64],
        raws: Sequence[bytes],
        arrays: Any,  # noqa: ANN401 - arrays by key
    ) -> tuple[int, int]:
        """Write row after row; how many of them are masked, and the nanoseconds of decoding and transforming."""
        masked = decode_ns = 0
        for row, (sample, raw) in enumerate(zip(samples.tolist(), raws, strict=True)):
            began_ns = time.perf_counter_ns()
            values = self._values(epoch, sample, raw, arrays)
            decode_ns += time.perf_counter_ns() - began_ns
            if values is None:
                masked += 1
                self._mask(arrays, row, sample)
            else:
                self._write(arrays, row, sample, values)
        return masked, decode_ns

    @staticmethod
    def _leave_empty(arrays: Any, rows: int) -> int:  # noqa: ANN401 - arrays by key
        """No sample belongs into the rows after these."""
        for array in arrays.values():
            array[rows:] = 0
        arrays["tag"][rows:] = -1
        return rows

    def _pack(self, want: Want, prepared: Prepared, arrays: Any) -> tuple[int, int, int]:  # noqa: ANN401 - arrays by key
        """Write several samples into each row; valid rows, masked samples, nanoseconds of decoding and transforming.

        A masked sample leaves its place in the row empty; `tag` is the row's first sample.
        """
        planned, key = prepared.planned, self._stream.settings.length
        self._leave_empty(arrays, 0)
        masked = decode_ns = 0
        if want.empty or planned.rows is None or planned.offsets is None:
            return 0, 0, 0
        places = zip(planned.samples.tolist(), planned.rows.tolist(), planned.offsets.tolist(), strict=True)
        segments: dict[int, int] = {}
        for (sample, row, offset), raw in zip(places, prepared.raw, strict=True):
            began_ns = time.perf_counter_ns()
            values = self._values(want.epoch, sample, raw, arrays)
            decode_ns += time.perf_counter_ns() - began_ns
            if row not in segments:
                arrays["tag"][row] = sample
            segments[row] = segments.get(row, 0) + 1
            if values is None:
                masked += 1
                continue
            stop = offset + len(values[key])
            arrays[key][row, offset:stop] = values[key]
            arrays[f"{key}_segment"][row, offset:stop] = segments[row]
            arrays[f"{key}_position"][row, offset:stop] = np.arange(stop - offset)
            arrays[f"{key}_length"][row] = stop
            arrays["weight"][row] = 1
        return int(arrays["weight"].sum()), masked, decode_ns

    def _values(self, epoch: int, sample: int, raw: bytes, arrays: Any) -> dict[str, NDArray[np.generic]] | None:  # noqa: ANN401
        """The values of one sample; None where it has to be masked."""
        try:
            if self.is_culprit(sample):
                raise _kills(self._stream.source.name(sample))
            decoded = self._stream.source.decode(sample, raw)
            values = self._stream.chain.apply(decoded, self._stream.chain.generator(self._stream.seed, epoch, sample))
            self._refuse_too_long(values, arrays, sample)
        except SampleError as error:
            self._quarantine.note(self._stream.name, sample, self._stream.source.name(sample), error)
            return None
        return values

    def _refuse_too_long(self, values: dict[str, NDArray[np.generic]], arrays: Any, sample: int) -> None:  # noqa: ANN401
        for field in self._stream.chain.fields:
            if field.padded and len(values[field.key]) > arrays[field.key].shape[1]:
                raise SampleError(
                    reason="longer_than_planned",
                    expected=f'at most {arrays[field.key].shape[1]} steps of "{field.key}", as planned',
                    got=str(len(values[field.key])),
                    where=self._stream.source.name(sample),
                    remedy="A transform makes samples longer than it declares: mend its lengths, or index again.",
                )

    def _write(self, arrays: Any, row: int, sample: int, values: dict[str, NDArray[np.generic]]) -> None:  # noqa: ANN401
        for field in self._stream.chain.fields:
            value, place = values[field.key], arrays[field.key][row]
            if field.padded:
                place[: len(value)] = value
                place[len(value) :] = 0
                arrays[f"{field.key}_length"][row] = len(value)
            else:
                arrays[field.key][row] = value
        arrays["weight"][row] = 1
        arrays["tag"][row] = sample

    @staticmethod
    def _mask(arrays: Any, row: int, sample: int) -> None:  # noqa: ANN401
        for array in arrays.values():
            array[row] = 0
        arrays["tag"][row] = sample

    @staticmethod
    def _clear_gaps(layout: Layout, payload: NDArray[np.uint8]) -> None:
        """The bytes between tensors are part of the payload, and of its digest."""
        ends = [*(tensor.offset for tensor in layout.tensors[1:]), layout.nbytes]
        for tensor, end in zip(layout.tensors, ends, strict=True):
            payload[tensor.offset + tensor.nbytes : end] = 0


def read_patiently(read: Callable[[int], bytes], sample: int) -> bytes:
    """Read a sample, again after pauses if the disk fails; a file that is not the indexed one fails at once."""
    for pause_s in (*_READ_PAUSES_S, None):
        try:
            return read(sample)
        except ReadError:
            raise
        except OSError as error:
            if pause_s is None:
                raise ReadError(
                    expected="to read the sample",
                    got=f"{type(error).__name__}: {error}",
                    where=str(error.filename or f"sample {sample}"),
                    remedy="Check the disk or mount on every loader machine; the job goes on from its checkpoint.",
                ) from error
            time.sleep(pause_s)
    raise AssertionError("unreachable")


def key_of(sample: int) -> int:
    """What a culprit is known by."""
    return digest64(str(sample).encode())


def _kills(name: str) -> SampleError:
    return SampleError(
        reason="kills_decoder",
        expected="a sample that can be decoded",
        got="one that ended the process that decoded it, twice",
        where=name,
        remedy="Remove it from the manifest, or mend the file.",
    )
