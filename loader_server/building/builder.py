"""The builder of batches: the one place where samples become rows of a buffer.

Samples are written all at once or one by one, each into its place, whichever kind of places the stream has (`places`).
Rules: the same want gives the same bytes, on any worker, however often; a sample that cannot be used keeps its row,
masked; read errors are retried, then raised, and never mask. A source that can write whole batches at once does so,
unless single samples have to be transformed or one is suspected of killing its decoder. Each step has the deadline that
is handed in. No sockets here.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from loader_server.building.build_counts import Built
from loader_server.building.cells import count_cells, write_padding
from loader_server.building.culprits import KnownCulprits, kills
from loader_server.building.fallbacks import Fallbacks
from loader_server.building.finite_check import FiniteCheck
from loader_server.building.places import places_of
from loader_server.building.read_ahead import LookAhead, Prepared, unwatched
from loader_server.building.trial_rule import exhausted
from loader_server.feature_cache.cache import from_bytes
from loader_server.sources.blame import find_exhaustion
from loader_server.sources.files.retried_reads import read_patiently
from loader_server.sources.source import decoded
from loader_server.transforms.on_columns import ColumnsOfBatch
from loader_server.transforms.overrun import blame_for_length
from shared.errors import DataError, SampleError
from shared.hashing import digest64
from shared.wire.batch_layout import RESET, Layout, layout_of
from shared.wire.payload import round_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from loader_server.building.deadline import Deadline
    from loader_server.building.places import Places
    from loader_server.building.quarantine import MaskedLog
    from loader_server.feature_cache.cache import FeatureCache
    from loader_server.planning import EpochPlan, PlannedBatch
    from loader_server.sources.batch_columns import Gathers
    from loader_server.sources.source import Source
    from loader_server.stream import Stream
    from shared.wire.batch_layout import BucketShape
    from shared.wire.messages import Want

__all__ = ["Builder"]

#: Epoch plans kept open: a few trainers alternate between training and evaluation.
_EPOCHS_KEPT = 8

#: Layouts kept: a stream has one for each bucket, and more if batches are padded to their longest row.
_LAYOUTS_KEPT = 1024

#: Most reasons, and most characters of a sample's name or of a reason, and of both together.
_MOST_REASONS, _MOST_NAME, _MOST_REASON = 16, 100, 200

_NOTHING: Mapping[int, bytearray] = {}


@dataclass(slots=True)
class _BatchInHand:
    """The batch being written, and its counts so far."""

    want: Want
    prepared: Prepared
    places: Places
    #: Samples that the trial for this batch convicted.
    convicted: AbstractSet[int]
    #: Masked rows by reason.
    reasons: Counter[str] = field(default_factory=Counter)
    decoded: int = 0
    masked: int = 0
    reason: str = ""
    decode_ns: int = 0
    #: Keys whose values may not all be finite; None if they have not been checked yet.
    suspects: set[str] | None = None

    def mask(self, name: str, error: SampleError) -> None:
        """Count a masked row, also by its reason, and keep the first one's name, reason and fault, shortened."""
        self.masked += 1
        self.reasons[error.reason[:_MOST_NAME]] += 1
        if not self.reason:
            self.reason = f"{name[-_MOST_NAME:]}: {error.reason}: {error.got}"[:_MOST_REASON]


class Builder:
    """Builder of one stream's batches."""

    def __init__(
        self, stream: Stream, quarantine: MaskedLog, deadline: Deadline, features: FeatureCache | None = None
    ) -> None:
        self.stream = stream
        self._features = features
        #: Samples known to kill the process that decodes them; they are masked without being read.
        self.culprits = KnownCulprits(stream.name)
        #: Counts of batches that fell back from writing at once to writing sample by sample.
        self.fallbacks = Fallbacks(stream.name)
        self._quarantine = quarantine
        self._deadline = deadline
        self._lock = threading.Lock()
        #: Opened epochs by number and group, in the order of opening.
        self._epochs: dict[tuple[int, int], EpochPlan] = {}
        #: By `id`, because shapes are unhashable; the shape is kept, so that its id is not reused.
        self._layouts: dict[int, tuple[BucketShape, BucketShape, Layout, tuple[slice, ...]]] = {}
        self._ahead = LookAhead(stream.source, features.unkept if features is not None else None)
        #: The source, if it writes whole batches and no sample has to be transformed; otherwise None.
        self._gathering = stream.source if stream.source.gathers and not stream.chain.steps else None
        #: Whether a batch's samples may be decoded and transformed at once; not with a feature cache, whose hits and
        #: misses differ from sample to sample.
        self._together = features is None and stream.chain.takes_columns
        self._finite_check = FiniteCheck(stream)
        self._padded = [field for field in stream.chain.fields if field.padded]
        self._counts_pixels = stream.settings.length in [field.key for field in self._padded if field.is_wide]

    def reads(self, want: Want) -> bool:
        """Return whether preparing this want may wait for a disk.

        It cannot at the first attempt if the source writes whole batches without reading ahead, or has all in memory.
        """
        # A retried want always does: its samples are tried one by one, also those that are otherwise written at once.
        if want.attempt > 0:
            return True
        source = self.stream.source
        if self._gathering is not None:
            return source.reads_ahead
        return self._features is not None or not source.reads_at_once

    def batches(self, epoch: int, group: int) -> int:
        """Return the number of batches of an epoch in groups of this size; errors of opening it, maybe slow, pass."""
        return self._get_epoch(epoch, group).batches

    def _get_epoch(self, epoch: int, group: int) -> EpochPlan:
        """Return the epoch's plan, opened on first use, whose errors pass; beyond `_EPOCHS_KEPT` the oldest goes."""
        key = (epoch, group)
        # Several readers prepare wants at once: the lock makes them open an epoch, which may take seconds, only once.
        with self._lock:
            plan = self._epochs.get(key)
            if plan is None:
                while len(self._epochs) >= _EPOCHS_KEPT:
                    del self._epochs[next(iter(self._epochs))]
                plan = self._epochs[key] = self.stream.plan.epoch(epoch, group)
            return plan

    def planned(self, want: Want) -> PlannedBatch:
        """Return the wanted batch from the plan; raise DataError if its number is beyond the epoch's end.

        Errors of the plan pass through, such as an IndexError for a negative number.
        """
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
        """Look the want up in the plan and read its samples, calling `begin` before each; safe in a reader thread.

        Culprits and cache hits are not read, nor what a source that writes batches at once has. Raise DataError if the
        batch is beyond the epoch's end, and ReadError if reading fails. Other errors of the plan, the source and the
        feature cache, such as an OSError of its disk, pass through.
        """
        began_ns = time.perf_counter_ns()
        planned = self.planned(want)
        shape, layout, gaps = self._laid_out(planned.shape)
        samples = planned.samples[:0] if want.empty else planned.samples
        # A retried want starts from the samples' bytes, because these are what a trial decodes.
        kept = self._features.find(samples.tolist()) if self._features is not None and not want.attempt else _NOTHING
        # Announce the batch before its first read, so that a source of remote files knows early which bytes it needs.
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

    def _read_around(self, source: Source, samples: NDArray[np.int64], begin: Callable[[int], None]) -> list[int]:
        """Read what the source lacks for writing the batch at once; return the rows of culprits, which are skipped.

        Nothing is read if the source does not read ahead. Raise ReadError if reading fails; other errors of the source
        pass through.
        """
        culprits = list[int]()
        if self.culprits.keys:
            culprits = [row for row, sample in enumerate(samples.tolist()) if self.is_culprit(sample)]
        if source.reads_ahead:
            missing = source.unread(np.delete(samples, culprits) if culprits else samples)
            read_patiently(source.read, missing.tolist(), begin)
        return culprits

    def _laid_out(self, planned: BucketShape) -> tuple[BucketShape, Layout, tuple[slice, ...]]:
        """Return the complete shape, the layout and the gaps of a planned shape, computed once for each."""
        # Without a lock: readers that come at the same time compute the same layout, and the last one is kept.
        known = self._layouts.get(id(planned))
        if known is None or known[0] is not planned:
            if len(self._layouts) >= _LAYOUTS_KEPT:
                self._layouts.clear()
            shape = self.stream.shape(planned)
            layout = layout_of(self.stream.fields, shape)
            known = self._layouts[id(planned)] = (planned, shape, layout, tuple(layout.gaps()))
        return known[1:]

    def _read(
        self, samples: Sequence[int], begin: Callable[[int], None], kept: Mapping[int, bytearray]
    ) -> list[bytes | None]:
        """Return the samples' bytes: None for a culprit, b"" for a cache hit; the others are read.

        Raise ReadError if reading fails; other errors of the source pass through.
        """
        unread: dict[int, bytes | None] = dict.fromkeys(kept, b"")
        # Most jobs have no culprits: then no sample's identity has to be computed.
        if self.culprits.keys:
            unread |= dict.fromkeys(filter(self.is_culprit, samples))
        if not unread:
            return list(read_patiently(self.stream.source.read, samples, begin))
        wanted = [sample for sample in samples if sample not in unread]
        raw = iter(read_patiently(self.stream.source.read, wanted, begin))
        return [unread[sample] if sample in unread else next(raw) for sample in samples]

    def is_culprit(self, sample: int) -> bool:
        """Return whether the sample is known to kill decoders; errors of the source's `identity` pass through."""
        return bool(self.culprits.keys) and self.stream.identity(sample) in self.culprits

    def claim(self, prepared: Prepared) -> bool:
        """Return whether to build this batch: always here; False in a subclass if another worker is building it.

        Call `release` in either case. A subclass may raise an OSError.
        """
        return True

    def release(self) -> None:
        """Do nothing; a subclass ends its claim here: the batch is built, or will not be built here."""

    def build(
        self,
        want: Want,
        prepared: Prepared,
        payload: NDArray[np.uint8],
        *,
        digest: bool = True,
        convicted: AbstractSet[int] = frozenset(),
    ) -> Built:
        """Write every byte of `payload` and return the facts; hash it if `digest`, otherwise the digest is 0.

        Samples that cannot be used are masked, as are known culprits and `convicted` samples, and samples with NaN or
        infinite values if the job masks these. Raise ExhaustedError or MemoryError if memory or descriptors ran out,
        and ReadError if the machine failed otherwise. Errors of writing whole batches at once, of names and
        identities, of `_values` and of the feature cache pass through.
        """
        began_ns = time.perf_counter_ns()
        self._deadline.begin(began_ns)
        arrays: Mapping[str, NDArray[Any]] = prepared.layout.arrays(payload)
        batch = _BatchInHand(want, prepared, places_of(self.stream, prepared, arrays), convicted)
        rows = self._write(batch)
        if (resets := prepared.planned.resets) is not None:
            # Masked rows too: the next chunk of the recording continues from the state of this row.
            arrays[RESET.key][: len(prepared.samples)] = resets[: len(prepared.samples)]
        self._deadline.begin(time.perf_counter_ns())
        # A buffer has arbitrary content, and the hash covers the whole payload: gaps must be the same for all workers.
        for gap in prepared.gaps:
            payload[gap] = 0
        round_in_place(payload, prepared.layout, self.stream.float32)
        not_finite = self._check_finite(batch, arrays)
        # Masking cleared places after the valid rows were counted.
        if not_finite and self.stream.masks_not_finite:
            rows = int(arrays["weight"].sum())
        # Last, because masking clears places to 0; the values themselves are finite and rounded already.
        write_padding(arrays, self.stream)
        space, length, filled = count_cells(arrays, self.stream.settings.length, wide=self._counts_pixels)
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
            sample_cells=filled,
            masked_cells=(space - rows) * length,
            kept=len(prepared.kept),
            decoded=batch.decoded,
            not_finite=not_finite,
        )

    def _check_finite(self, batch: _BatchInHand, arrays: Mapping[str, NDArray[Any]]) -> tuple[tuple[str, int], ...]:
        """Return how many samples of a rounded batch have NaN or infinite values, by key; mask them if the job does.

        Return () if none has. Errors of the source's `name` pass through.
        """
        suspects = batch.suspects
        # Rounding to a narrower type can overflow to infinity, so what was seen before rounding does not count then.
        if suspects is None or self.stream.float32 != "float32":
            suspects = self._finite_check.suspects(arrays)
        if not suspects:
            return ()
        note = partial(self._note_masked, batch=batch)
        return self._finite_check.look(suspects, batch.prepared.samples, batch.places, note)

    def _write(self, batch: _BatchInHand) -> int:
        """Write all samples in the quickest way possible; return the number of valid rows.

        Samples that cannot be used are masked. Raise ExhaustedError or another error if memory or descriptors ran out,
        and ReadError if the machine failed otherwise. Errors of writing whole batches at once, of names and
        identities, of `_values` and of the feature cache pass through.
        """
        prepared = batch.prepared
        if self._gathering is not None and prepared.raw is None:
            return self._write_at_once(self._gathering, batch)
        # Suspects go sample by sample: written together, a bad sample could not be told from the others.
        is_suspect = batch.want.attempt or batch.convicted or self.culprits.keys
        if not self._together or not len(prepared.samples) or is_suspect:
            return self._write_each(batch)
        try:
            rows = self._write_together(batch)
        except BaseException as error:  # a panic, say, which must not end the building thread
            return self._fall_back(error, batch)
        return self._write_each(batch) if rows is None else rows

    def _write_together(self, batch: _BatchInHand) -> int | None:
        """Decode, transform and write all samples at once; return the number of valid rows.

        Return None if the source has no faster way to decode them together; the caller then writes sample by sample.
        Pass on any error, also that of one bad sample: nothing is masked here.
        """
        # No deadline for each sample here: only quick sources and built-in transforms take a batch at once.
        began_ns = time.perf_counter_ns()
        samples, raw = batch.prepared.samples, cast("Sequence[bytes]", batch.prepared.raw)
        columns = self.stream.source.decode_all(samples.tolist(), raw)
        if columns is None:
            return None
        rows = self._write_at_once(ColumnsOfBatch(self.stream.chain.on_columns(columns)), batch)
        batch.decoded = len(samples)
        batch.decode_ns = time.perf_counter_ns() - began_ns
        return rows

    def _fall_back(self, error: BaseException, batch: _BatchInHand) -> int:
        """Write sample by sample a batch that could not be written at once, and count why.

        Either a sample turns out to be bad, or the fast way has a defect, which is logged; return the number of valid
        rows. If memory or descriptors ran out, re-raise: nobody knows through which sample, and trials have to find
        out. An error of writing sample by sample is counted and raised again.
        """
        if find_exhaustion(error) is not None:
            self.fallbacks.count("exhausted")
            raise error
        try:
            rows = self._write_each(batch)
        except BaseException:  # counted, whatever it is
            self.fallbacks.count("failed")
            raise
        # A masked sample explains why the fast way failed; otherwise both ways should have given the same batch.
        if batch.masked:
            self.fallbacks.count("bad_sample")
        else:
            self.fallbacks.note_defect(error)
        return rows

    def _write_at_once(self, source: Gathers, batch: _BatchInHand) -> int:
        """Let the source write all samples but culprits, which are masked; return the number of valid rows.

        Pass on any error of the source, and ValueError if a sample of a packed batch is longer than its place.
        """
        places, prepared = batch.places, batch.prepared
        places.begin()
        look = None
        # Only then is the batch written in pieces, and each checked for NaN and infinity while it is in the cache.
        if source is self._gathering and not prepared.culprits and not self.stream.packed:
            batch.suspects, look = set(), partial(self._suspect, batch)
        places.gather(source, prepared.culprits, look)
        for at in prepared.culprits:
            sample = int(prepared.samples[at])
            self._note_masked(sample, kills(self.stream.source.name(sample)), batch)
            places.mask(at)
        return places.finish(batch.masked)

    def _suspect(self, batch: _BatchInHand, rows: Mapping[str, NDArray[Any]]) -> None:
        """Add the keys of these rows that may have NaN or infinite values to the suspects."""
        assert batch.suspects is not None
        batch.suspects |= self._finite_check.suspects(rows)

    def _write_each(self, batch: _BatchInHand) -> int:
        """Write sample by sample, masking those that cannot be used; return the number of valid rows.

        Raise ExhaustedError if memory or descriptors ran out, and ReadError if the machine failed otherwise. Errors of
        names and identities, of `_values` and of the feature cache pass through.
        """
        places, prepared = batch.places, batch.prepared
        assert prepared.raw is not None
        places.begin()
        for at, (sample, raw) in enumerate(zip(prepared.samples.tolist(), prepared.raw, strict=True)):
            values = self._decode_or_mask(sample, raw, places.room(at), batch)
            if values is None:
                places.mask(at)
            else:
                places.write(at, values)
        return places.finish(batch.masked)

    def _decode_or_mask(
        self, sample: int, raw: bytes | None, room: Mapping[str, int], batch: _BatchInHand
    ) -> dict[str, NDArray[np.generic]] | None:
        """Return the values of one sample, or None if it is masked, which is logged and counted.

        A culprit is masked, a sample that cannot be used, and one that is longer than `room`. Raise ExhaustedError if
        memory or descriptors ran out: a shortage does not mask a sample. Any other error, such as ReadError, is raised
        again.
        """
        began_ns = time.perf_counter_ns()
        self._deadline.begin(began_ns)
        try:
            # The coordinator's list may have grown since the sample was read, so it is checked again.
            if raw is None or sample in batch.convicted or self.is_culprit(sample):
                raise kills(self.stream.source.name(sample))
            values = self._values(sample, raw, batch)
            for field in self._padded:
                for key, got in zip(field.length_keys, values[field.key].shape, strict=False):
                    if got > room[key]:
                        raise self._too_long(key, room[key], got, (batch.want.epoch, sample, raw))
        except SampleError as error:
            self._note_masked(sample, error, batch)
            values = None
        except BaseException as error:  # whatever memory that ran out has led to
            shortage = exhausted(error, self.stream.source.name(sample), f"stream {self.stream.name}")
            if shortage is None:
                raise
            raise shortage from error
        batch.decode_ns += time.perf_counter_ns() - began_ns
        return values

    def _values(self, sample: int, raw: bytes, batch: _BatchInHand) -> dict[str, NDArray[np.generic]]:
        """Return the sample's transformed values, starting from cached features if there are any.

        With a feature cache, a sample that was not in it is kept there. Raise SampleError if the sample cannot be used,
        ReadError if the machine failed, and MemoryError if memory ran out. Other errors of `Stream.values`, and of the
        feature cache, pass through.
        """
        stream, features = self.stream, self._features
        blob = batch.prepared.kept.get(sample)
        batch.decoded += blob is None
        if features is None:
            return stream.values(batch.want.epoch, sample, raw)
        # Kept are the values before the first transform that draws, which is the same in all epochs up to there.
        if blob is None:
            steady = stream.chain.begin(decoded(stream.source, sample, raw))
            features.keep(sample, steady)
        else:
            steady = from_bytes(blob)
        return stream.chain.finish(steady, (stream.seed, batch.want.epoch, sample), stream.chain.steady_steps)

    def _note_masked(self, sample: int, error: SampleError, batch: _BatchInHand) -> None:
        # Never silent: the row is counted in the batch's facts, and its sample goes to the quarantine log.
        name = self.stream.source.name(sample)
        self._quarantine.note(self.stream.name, sample, name, error)
        batch.mask(name, error)

    def _too_long(self, key: str, most: int, got: int, built: tuple[int, int, bytes]) -> SampleError:
        """Return the error for a value longer than planned.

        The sample is transformed once more, this time step by step, to name the transform that made it too long; a
        cache hit is read again. Errors of reading, decoding and transforming pass through.
        """
        stream, (epoch, sample, raw) = self.stream, built
        # The bytes of a cache hit were never read.
        (whole,) = (raw,) if raw else stream.source.read([sample])
        values, lengths = decoded(stream.source, sample, whole), stream.raw_lengths(sample)
        return SampleError(
            reason="longer_than_planned",
            expected=f'at most {most} steps of "{key}", as planned',
            got=str(got),
            where=stream.source.name(sample),
            remedy=blame_for_length(stream.chain, values, lengths, (stream.seed, epoch, sample)),
        )
