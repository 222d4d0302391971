"""Builds a batch into a buffer: the one place where samples become rows.

Rules: the same want gives the same bytes, whoever builds it, however often; each value is written once, into its
place; a sample that cannot be used keeps its row, masked; reading errors are retried, then raised, and never mask. No
sockets here.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader_server.transforms.chain import generator_for
from shared.errors import DataError, ReadError, SampleError
from shared.hashing import digest64
from shared.layout import Layout, layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.planning import EpochPlan, PlannedBatch
    from loader_server.quarantine import Quarantine
    from loader_server.stream import Stream
    from shared.messages import Want

__all__ = ["Builder", "Built", "Prepared", "read_patiently"]

#: Pauses between tries to read a file: disks and network mounts hiccup for about so long.
_READ_PAUSES_S = (0.05, 0.2, 0.8)

#: Epochs whose plans are kept open; training and evaluation of a few trainers alternate.
_EPOCHS_KEPT = 8


@dataclass(frozen=True, slots=True)
class Prepared:
    """A want looked up in the plan, and the bytes of its samples, or what failed while reading them."""

    planned: PlannedBatch
    layout: Layout
    raw: Sequence[bytes]
    read_us: int


@dataclass(frozen=True, slots=True)
class Built:
    """What is to be said of a built batch."""

    rows: int
    masked: int
    digest: int
    build_us: int


class Builder:
    """Builds batches of one stream."""

    def __init__(self, stream: Stream, quarantine: Quarantine) -> None:
        self._stream = stream
        self._quarantine = quarantine
        self._lock = threading.Lock()
        self._epochs: dict[tuple[int, int], EpochPlan] = {}
        #: Samples that kill the process that decodes them: masked unread.
        self.culprits: frozenset[int] = frozenset()

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
        layout = layout_of(self._stream.fields, planned.shape)
        samples = [] if want.empty else planned.samples.tolist()
        raw = [
            b"" if sample in self.culprits else read_patiently(self._stream.source.read, sample) for sample in samples
        ]
        return Prepared(planned, layout, raw, (time.perf_counter_ns() - began_ns) // 1000)

    def build(self, want: Want, prepared: Prepared, payload: NDArray[np.uint8]) -> Built:
        """Write the batch into `payload`, all of it."""
        began_ns = time.perf_counter_ns()
        arrays: Any = prepared.layout.arrays(payload)
        samples = [] if want.empty else prepared.planned.samples.tolist()
        masked = 0
        for row, (sample, raw) in enumerate(zip(samples, prepared.raw, strict=True)):
            values = self._values(want.epoch, sample, raw, arrays)
            if values is None:
                masked += 1
                self._mask(arrays, row, sample)
            else:
                self._write(arrays, row, sample, values)
        for row in range(len(samples), prepared.planned.shape.rows):
            self._mask(arrays, row, -1)
        self._clear_gaps(prepared.layout, payload)
        digest = digest64(payload.data)
        return Built(len(samples) - masked, masked, digest, (time.perf_counter_ns() - began_ns) // 1000)

    def _values(self, epoch: int, sample: int, raw: bytes, arrays: Any) -> dict[str, NDArray[np.generic]] | None:  # noqa: ANN401
        """The values of one sample; None where it has to be masked."""
        try:
            if sample in self.culprits:
                raise _kills(self._stream.source.name(sample))
            decoded = self._stream.source.decode(sample, raw)
            values = self._stream.chain.apply(decoded, generator_for(self._stream.seed, epoch, sample))
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


def _kills(name: str) -> SampleError:
    return SampleError(
        reason="kills_decoder",
        expected="a sample that can be decoded",
        got="one that ended the process that decoded it, twice",
        where=name,
        remedy="Remove it from the manifest, or mend the file.",
    )
