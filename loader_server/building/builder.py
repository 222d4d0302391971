"""Builds a batch into a buffer: the one place where samples become rows.

Rules: the same want gives the same bytes, whoever builds it, however often; each value is written once, into its
place; a sample that cannot be used keeps its row, masked; reading errors are retried, then raised, and never mask. A
source that can write whole batches at once does so, as long as nothing has to be done to single samples and none is
suspected to kill its decoder. Each step has the deadline that is handed in. No sockets here.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from loader_server.building.batch_in_hand import BatchInHand
from loader_server.building.build_counts import Built
from loader_server.building.culprits import KnownCulprits, kills
from loader_server.building.exhaustion import exhausted
from loader_server.building.fallbacks import Fallbacks
from loader_server.building.finite_check import FiniteCheck
from loader_server.building.look_ahead import LookAhead
from loader_server.building.not_finite import mask_row
from loader_server.building.packed_rows import PackedPlaces, places_in_rows, write_marks
from loader_server.building.prepared import Prepared, unwatched
from loader_server.sources.decoding import decoded
from loader_server.sources.files.patience import read_patiently
from loader_server.sources.source import gather_rows
from loader_server.transforms.blame import find_exhaustion
from loader_server.transforms.columns import ColumnsOfBatch
from loader_server.transforms.overrun import blame_for_length
from shared.errors import DataError, SampleError
from shared.hashing import digest64
from shared.wire.layout import RESET, Layout, layout_of
from shared.wire.payload import round_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from loader_server.building.quarantine import MaskedLog
    from loader_server.feature_cache.cache import FeatureCache
    from loader_server.machine.deadline import Deadline
    from loader_server.planning import EpochPlan, PlannedBatch
    from loader_server.sources.source import Gathers, Source
    from loader_server.stream import Stream
    from shared.wire.layout import BucketShape
    from shared.wire.messages import Want

__all__ = ["Builder"]

#: Epochs whose plans are kept open; training and evaluation of a few trainers alternate.
_EPOCHS_KEPT = 8

#: Layouts that are kept: a stream has one for each bucket, and more if batches are padded to their longest row.
_LAYOUTS_KEPT = 1024

#: Bytes that are written and then checked at a time.
_PIECE_BYTES = 2**20

_MOST_REASONS = 16


_NOTHING: Mapping[int, bytearray] = {}


class Builder:
    """Builds batches of one stream."""

    def __init__(
        self, stream: Stream, quarantine: MaskedLog, deadline: Deadline, features: FeatureCache | None = None
    ) -> None:
        self.stream = stream
        self._features = features
        #: Samples that kill the process that decodes them: masked unread.
        self.culprits = KnownCulprits(stream.name)
        #: Batches that could not be written at once, though they should have been.
        self.fallbacks = Fallbacks(stream.name)
        self._quarantine = quarantine
        self._deadline = deadline
        self._lock = threading.Lock()
        self._epochs: dict[tuple[int, int], EpochPlan] = {}
        #: By `id`, because shapes are unhashable; the shape is kept, so that its id is not reused.
        self._layouts: dict[int, tuple[BucketShape, BucketShape, Layout, tuple[slice, ...]]] = {}
        self._ahead = LookAhead(stream.source, features.unkept if features is not None else None)
        gathers = stream.source.gathers and not stream.chain.steps
        self._gathering: Source | None = stream.source if gathers else None
        #: Whether samples that were read may be decoded and transformed all at once.
        self._together = features is None and stream.chain.takes_columns
        self._finite_check = FiniteCheck(stream)
        #: What it writes.
        self._gathered = [key for field in stream.chain.fields for key in (field.key, f"{field.key}_length")]

    def reads(self, want: Want) -> bool:
        """Whether preparing this want may wait for a disk."""
        return self._gathering is None or self._gathering.reads_ahead or want.attempt > 0

    def batches(self, epoch: int, group: int) -> int:
        """How many batches an epoch has."""
        return self._get_epoch(epoch, group).batches

    def _get_epoch(self, epoch: int, group: int) -> EpochPlan:
        key = (epoch, group)
        with self._lock:
            plan = self._epochs.get(key)
            if plan is None:
                while len(self._epochs) >= _EPOCHS_KEPT:
                    del self._epochs[next(iter(self._epochs))]
                plan = self._epochs[key] = self.stream.plan.epoch(epoch, group)
            return plan

    def planned(self, want: Want) -> PlannedBatch:
        """The batch that is wanted, as the plan has it."""
        epoch = self._get_epoch(want.epoch, want.group)
        if want.number >= epoch.batches:
            raise DataError(
                expected=f"a batch number below {epoch.batches}",
                got=str(want.number),
                where=f"epoch {want.epoch} of {self.stream.name}",
                remedy="Trainer and worker disagree on the plan: report this.",
            )
        return epoch.batch(want.number)

    def prepare(self, want: Want, begin: Callable[[int], None] = unwatched) -> Prepared:
        """Look the want up and read its samples, saying which before each; for a thread that reads ahead."""
        began_ns = time.perf_counter_ns()
        planned = self.planned(want)
        shape, layout, gaps = self._laid_out(planned.shape)
        samples = planned.samples[:0] if want.empty else planned.samples
        kept = self._find_kept(samples, want)
        self.stream.source.expect(
            np.array([sample for sample in samples if sample not in kept], np.int64) if kept else samples
        )
        raw, culprits = None, list[int]()
        if self._gathering is None or want.attempt > 0:  # a suspect has to be tried alone
            raw = self._read(samples.tolist(), begin, kept)
        else:
            culprits = self._read_around(self._gathering, samples, begin)
        self._ahead.after(self._get_epoch(want.epoch, want.group), (want.epoch, want.group), want.number)
        read_us = (time.perf_counter_ns() - began_ns) // 1000
        return Prepared(planned, samples, shape, layout, gaps, raw, read_us, kept, culprits)

    def _find_kept(self, samples: NDArray[np.int64], want: Want) -> Mapping[int, bytearray]:
        """The samples that the feature cache has; a suspect has to be tried from its bytes."""
        return self._features.find(samples.tolist()) if self._features is not None and not want.attempt else _NOTHING

    def _read_around(self, source: Source, samples: NDArray[np.int64], begin: Callable[[int], None]) -> list[int]:
        """Read what is missing for gathering all but the culprits, whose rows are returned."""
        culprits = list[int]()
        if self.culprits.keys:
            culprits = [row for row, sample in enumerate(samples.tolist()) if self.is_culprit(sample)]
        if source.reads_ahead:
            missing = source.unread(np.delete(samples, culprits) if culprits else samples)
            read_patiently(source.read, missing.tolist(), begin)
        return culprits

    def _laid_out(self, planned: BucketShape) -> tuple[BucketShape, Layout, tuple[slice, ...]]:
        """The complete shape of a batch, and its layout with the gaps: worked out once for each shape of the plan."""
        known = self._layouts.get(id(planned))
        if known is None or known[0] is not planned:
            if len(self._layouts) >= _LAYOUTS_KEPT:
                self._layouts.clear()
            shape = self.stream.shape(planned)
            layout = layout_of(self.stream.fields, shape)
            known = self._layouts[id(planned)] = (planned, shape, layout, tuple(layout.gaps()))
        return known[1:]

    def _read(
        self, samples: Sequence[int], begin: Callable[[int], None], kept: Mapping[int, bytearray] = _NOTHING
    ) -> list[bytes | None]:
        culprits = {sample for sample in samples if self.is_culprit(sample)} if self.culprits.keys else set[int]()
        absent = culprits | kept.keys()
        wanted = [sample for sample in samples if sample not in absent] if absent else samples
        raw = iter(read_patiently(self.stream.source.read, wanted, begin))
        if not absent:
            return list(raw)
        return [(None if sample in culprits else b"") if sample in absent else next(raw) for sample in samples]

    def is_culprit(self, sample: int) -> bool:
        """Whether the sample is known to kill decoders."""
        return bool(self.culprits.keys) and self.stream.identity(sample) in self.culprits

    def claim(self, prepared: Prepared) -> bool:  # noqa: ARG002 - batches that are shared have others to ask
        """Whether to go on; if not, another worker is building this very batch. Then `release` it in any case."""
        return True

    def release(self) -> None:
        """It is built, or will not be."""

    def build(
        self,
        want: Want,
        prepared: Prepared,
        payload: NDArray[np.uint8],
        *,
        digest: bool = True,
        convicted: AbstractSet[int] = frozenset(),
    ) -> Built:
        """Write every byte of `payload`; samples that were `convicted` just now are masked like known culprits."""
        began_ns = time.perf_counter_ns()
        self._deadline.begin(began_ns)
        arrays: Mapping[str, NDArray[Any]] = prepared.layout.arrays(payload)
        batch = BatchInHand(want.epoch, convicted, Counter(), prepared.kept)
        rows = self._write_rows(want, prepared, arrays, batch)
        if (resets := prepared.planned.resets) is not None:
            # Masked rows too: their state is what the next chunk of the recording would go on with.
            arrays[RESET.key][: len(prepared.samples)] = resets[: len(prepared.samples)]
        self._deadline.begin(time.perf_counter_ns())
        for gap in prepared.gaps:
            payload[gap] = 0
        round_in_place(payload, prepared.layout, self.stream.float32)
        suspects = batch.suspects
        if suspects is None or self.stream.float32 != "float32":  # rounding can make values infinite
            suspects = self._finite_check.suspects(arrays)
        unfit: tuple[tuple[str, int], ...] = ()
        if suspects:
            unfit = self._finite_check.look(
                suspects, prepared, arrays, lambda sample, error: self._note_masked(sample, error, batch)
            )
        if unfit and self.stream.masks_not_finite:
            rows = int(arrays["weight"].sum())
        key = self.stream.settings.length
        space, length = arrays[key].shape[:2]
        return Built(
            rows=rows,
            masked=batch.masked,
            digest=digest64(payload.data) if digest else 0,
            build_us=(time.perf_counter_ns() - began_ns) // 1000,
            reason=batch.reason,
            reasons=tuple(batch.reasons.most_common(_MOST_REASONS)),
            decode_us=batch.decode_ns // 1000,
            read_us=prepared.read_us,
            cells=space * length,
            sample_cells=int(arrays[f"{key}_length"].sum()),
            masked_cells=(space - rows) * length,
            kept=len(prepared.kept),
            decoded=batch.decoded,
            not_finite=unfit,
        )

    def _write_rows(
        self, want: Want, prepared: Prepared, arrays: Mapping[str, NDArray[Any]], batch: BatchInHand
    ) -> int:
        """Write all samples in the quickest way that there is; returns how many rows are valid."""
        if self._gathering is not None and prepared.raw is None:
            return self._at_once(self._gathering, prepared, arrays, batch)
        if not self._together or not len(prepared.samples) or want.attempt or batch.convicted or self.culprits.keys:
            return self._write_each(prepared, arrays, batch)
        try:
            rows = self._write_together(prepared, arrays, batch)
        except BaseException as error:  # a panic, say, which must not end the building thread
            return self._fall_back(error, prepared, arrays, batch)
        return self._write_each(prepared, arrays, batch) if rows is None else rows

    def _write_together(self, prepared: Prepared, arrays: Mapping[str, NDArray[Any]], batch: BatchInHand) -> int | None:
        """Decode, transform and write all samples at once; None where that is no faster than one by one."""
        began_ns = time.perf_counter_ns()
        raw = cast("Sequence[bytes]", prepared.raw)
        columns = self.stream.source.decode_all(prepared.samples.tolist(), raw)
        if columns is None:
            return None
        rows = self._at_once(ColumnsOfBatch(self.stream.chain.on_columns(columns)), prepared, arrays, batch)
        batch.decoded = len(prepared.samples)
        batch.decode_ns = time.perf_counter_ns() - began_ns
        return rows

    def _fall_back(
        self, error: BaseException, prepared: Prepared, arrays: Mapping[str, NDArray[Any]], batch: BatchInHand
    ) -> int:
        """Write sample by sample what could not be written at once: that finds the bad one, or shows a defect of ours.

        If memory or descriptors ran out, nobody knows of which sample, and trials have to find out.
        """
        if find_exhaustion(error) is not None:
            self.fallbacks.count("exhausted")
            raise error
        try:
            rows = self._write_each(prepared, arrays, batch)
        except BaseException:
            self.fallbacks.count("failed")
            raise
        if batch.masked:
            self.fallbacks.count("bad_sample")
        else:
            self.fallbacks.note_defect(error)
        return rows

    def _write_each(self, prepared: Prepared, arrays: Mapping[str, NDArray[Any]], batch: BatchInHand) -> int:
        """Write sample by sample."""
        return (self._pack if self.stream.packed else self._fill)(prepared, arrays, batch)

    def _at_once(
        self, source: Gathers, prepared: Prepared, arrays: Mapping[str, NDArray[Any]], batch: BatchInHand
    ) -> int:
        """Let the source write all samples."""
        return (self._gather_packed if self.stream.packed else self._gather)(source, prepared, arrays, batch)

    def _gather(
        self, source: Gathers, prepared: Prepared, arrays: Mapping[str, NDArray[Any]], batch: BatchInHand
    ) -> int:
        """Let the source write all rows at once, except those of culprits; returns how many are valid."""
        samples, end = prepared.samples, len(prepared.samples)
        own = {key: arrays[key][:end] for key in self._gathered if key in arrays}
        arrays["weight"][:end] = 1
        arrays["tag"][:end] = samples
        if prepared.culprits:
            rows = np.delete(np.arange(end), prepared.culprits)
            gather_rows(source, samples[rows], rows, own)
            for row in prepared.culprits:
                sample = int(samples[row])
                self._note_masked(sample, kills(self.stream.source.name(sample)), batch)
                mask_row(arrays, row, sample)
        elif end and source is self._gathering:
            self._gather_in_pieces(source, samples, own, batch)
        elif end:
            source.gather(samples, own)
        self._leave_empty(arrays, end)
        return end - batch.masked

    def _gather_in_pieces(
        self,
        source: Gathers,
        samples: NDArray[np.int64],
        own: Mapping[str, NDArray[Any]],
        batch: BatchInHand,
    ) -> None:
        """Let the source write all rows, and check each piece of them for values that are not finite.

        A piece is still in the processor's cache when it is checked. Reading 10 MB of a finished batch again took as
        long as writing it: the batches a second were half of what they are without a check.
        """
        row_bytes = sum(array[:1].nbytes for array in own.values())
        rows = max(1, _PIECE_BYTES // max(1, row_bytes))
        batch.suspects = set()
        for start in range(0, len(samples), rows):
            piece = {key: array[start : start + rows] for key, array in own.items()}
            source.gather(samples[start : start + rows], piece)
            batch.suspects |= self._finite_check.suspects(piece)

    def _gather_packed(
        self, source: Gathers, prepared: Prepared, arrays: Mapping[str, NDArray[Any]], batch: BatchInHand
    ) -> int:
        """Let the source write all samples at once, and move each into its place, as `_pack` does one by one."""
        planned, key = prepared.planned, self.stream.settings.length
        self._leave_empty(arrays, 0)
        if not len(prepared.samples) or planned.rows is None or planned.offsets is None:
            return 0
        places = PackedPlaces(planned.rows, planned.offsets, arrays[key].shape[1])
        arrays["tag"][planned.rows[places.firsts]] = prepared.samples[places.firsts]
        for at in prepared.culprits:
            sample = int(prepared.samples[at])
            self._note_masked(sample, kills(self.stream.source.name(sample)), batch)
        kept = np.delete(np.arange(len(prepared.samples)), prepared.culprits)
        values = np.empty((len(kept), places.most_room, *arrays[key].shape[2:]), arrays[key].dtype)
        lengths = np.zeros(len(kept), np.int64)
        source.gather(prepared.samples[kept], {key: values, f"{key}_length": lengths})
        places.write(kept, lengths, values, (arrays[key], arrays[f"{key}_segment"], arrays[f"{key}_position"]))
        rows = planned.rows[kept]
        np.maximum.at(arrays[f"{key}_length"], rows, (planned.offsets[kept] + lengths).astype(np.int32))
        arrays["weight"][rows] = 1
        return int(arrays["weight"].sum())

    def _fill(self, prepared: Prepared, arrays: Mapping[str, NDArray[Any]], batch: BatchInHand) -> int:
        """Write row after row; returns how many are valid."""
        assert prepared.raw is not None
        samples = prepared.samples.tolist()
        room = {field.key: arrays[field.key].shape[1] for field in self.stream.chain.fields if field.padded}
        for row, (sample, raw) in enumerate(zip(samples, prepared.raw, strict=True)):
            values = self._decode_or_mask(sample, raw, room, batch)
            if values is None:
                mask_row(arrays, row, sample)
            else:
                self._write(arrays, row, sample, values)
        self._leave_empty(arrays, len(samples))
        return len(samples) - batch.masked

    @staticmethod
    def _leave_empty(arrays: Mapping[str, NDArray[Any]], rows: int) -> None:
        """Clear the rows from here on, which hold no sample."""
        if rows == len(arrays["tag"]):
            return
        for array in arrays.values():
            array[rows:] = 0
        arrays["tag"][rows:] = -1

    def _pack(self, prepared: Prepared, arrays: Mapping[str, NDArray[Any]], batch: BatchInHand) -> int:
        """Write several samples into each row; returns how many rows are valid.

        A masked sample leaves its place in the row empty; `tag` is the row's first sample.
        """
        planned, key = prepared.planned, self.stream.settings.length
        self._leave_empty(arrays, 0)
        if not len(prepared.samples) or planned.rows is None or planned.offsets is None:
            return 0
        assert prepared.raw is not None
        segments, positions = arrays[f"{key}_segment"], arrays[f"{key}_position"]
        places = places_in_rows(planned.rows, planned.offsets, arrays[key].shape[1])
        for sample, place, raw in zip(prepared.samples.tolist(), places, prepared.raw, strict=True):
            values = self._decode_or_mask(sample, raw, {key: place.room}, batch)
            if place.segment == 1:
                arrays["tag"][place.row] = sample
            if values is None:
                continue
            stop = place.offset + len(values[key])
            arrays[key][place.row, place.offset : stop] = values[key]
            write_marks(segments, positions, place, len(values[key]))
            arrays[f"{key}_length"][place.row] = stop
            arrays["weight"][place.row] = 1
        return int(arrays["weight"].sum())

    def _decode_or_mask(
        self, sample: int, raw: bytes | None, room: Mapping[str, int], batch: BatchInHand
    ) -> dict[str, NDArray[np.generic]] | None:
        """The values of one sample; None if it has to be masked, which is noted."""
        began_ns = time.perf_counter_ns()
        self._deadline.begin(began_ns)
        values = None
        try:
            if raw is None or sample in batch.convicted or self.is_culprit(sample):
                raise kills(self.stream.source.name(sample))
            values = self._values(sample, raw, batch)
            for key, most in room.items():
                if len(values[key]) > most:
                    raise self._too_long(key, most, len(values[key]), (batch.epoch, sample, raw))
        except SampleError as error:
            self._note_masked(sample, error, batch)
            values = None
        except BaseException as error:
            named = exhausted(error, self.stream.source.name(sample), f"stream {self.stream.name}")
            if named is None:
                raise
            raise named from error
        batch.decode_ns += time.perf_counter_ns() - began_ns
        return values

    def _values(self, sample: int, raw: bytes, batch: BatchInHand) -> dict[str, NDArray[np.generic]]:
        """What the transforms make of it, starting from the cached values if there are any."""
        stream, features = self.stream, self._features
        blob = batch.kept.get(sample)
        batch.decoded += blob is None
        if features is None:
            return stream.values(batch.epoch, sample, raw)
        if blob is None:
            made = stream.chain.begin(decoded(stream.source, sample, raw))
            features.keep(sample, made)
        else:
            made = features.values(blob)
        return stream.chain.finish(made, (stream.seed, batch.epoch, sample), stream.chain.steady_steps)

    def _note_masked(self, sample: int, error: SampleError, batch: BatchInHand) -> None:
        name = self.stream.source.name(sample)
        self._quarantine.note(self.stream.name, sample, name, error)
        batch.mask(name, error)

    def _too_long(self, key: str, most: int, got: int, built: tuple[int, int, bytes]) -> SampleError:
        """The error of a value that is too long; transforming once more tells which transform it was."""
        stream, (epoch, sample, raw) = self.stream, built
        (whole,) = (raw,) if raw else stream.source.read([sample])
        again, lengths = decoded(stream.source, sample, whole), stream.raw_lengths(sample)
        return SampleError(
            reason="longer_than_planned",
            expected=f'at most {most} steps of "{key}", as planned',
            got=str(got),
            where=stream.source.name(sample),
            remedy=blame_for_length(stream.chain, again, lengths, (stream.seed, epoch, sample)),
        )

    def _write(
        self, arrays: Mapping[str, NDArray[Any]], row: int, sample: int, values: dict[str, NDArray[np.generic]]
    ) -> None:
        for field in self.stream.chain.fields:
            value, place = values[field.key], arrays[field.key][row]
            if field.padded:
                place[: len(value)] = value
                place[len(value) :] = 0
                arrays[f"{field.key}_length"][row] = len(value)
            else:
                arrays[field.key][row] = value
        arrays["weight"][row] = 1
        arrays["tag"][row] = sample
