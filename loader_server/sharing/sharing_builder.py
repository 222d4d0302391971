"""A builder of a stream's batches that first looks whether a worker of another job has built the same batch.

Rules: as for any builder: a batch has the same bytes wherever it comes from. So its key covers everything that these
depend on, down to the present identity of each sample; and a batch with a suspect or a known culprit is built alone,
because these are the job's own. A worker claims a batch before building it, and a claim ends with its holder. A built
batch is kept before the claim is given up, so the next worker looks there first. Facts beside the payload let a worker
that takes a batch report all that its builder could, including masked samples and reasons.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgpack
import xxhash

from loader_server.building.build_counts import Built
from loader_server.building.builder import Builder
from loader_server.building.culprits import KILLS
from loader_server.building.read_ahead import Prepared, UnreadError, unwatched
from shared.errors import SampleError
from shared.hashing import digest64

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.building.deadline import Deadline
    from loader_server.building.quarantine import MaskedLog
    from loader_server.feature_cache.cache import FeatureCache
    from loader_server.planning import PlannedBatch
    from loader_server.sharing.shelf import Shelf
    from loader_server.stream import Stream
    from shared.wire.messages import Want

__all__ = ["MaskedSample", "SharingBuilder", "as_facts", "from_facts"]


@dataclass(frozen=True, slots=True)
class MaskedSample:
    """A sample whose row was masked, and the error."""

    sample: int
    error: SampleError


class SharingBuilder(Builder):
    """A builder that takes batches from the shelf if they are there, and puts those that it builds on it."""

    def __init__(
        self,
        stream: Stream,
        quarantine: MaskedLog,
        deadline: Deadline,
        features: FeatureCache | None,
        shelf: Shelf,
    ) -> None:
        super().__init__(stream, quarantine, deadline, features)
        self._shelf = shelf
        self._shared = stream.shared.encode()
        #: The masked samples of the batch that is being built.
        self._masked: list[MaskedSample] = []

    def prepare(self, want: Want, begin: Callable[[int], None] = unwatched) -> Prepared:
        """Plan the wanted batch, and read its samples unless the batch is on the shelf.

        `begin` is called before each sample that is read. Raise DataError if the batch is beyond the epoch's end, and
        ReadError if reading fails. Other errors of plan and source, and an OSError of the shelf or the feature cache,
        pass through.
        """
        began_ns = time.perf_counter_ns()
        planned = self.planned(want)
        key = self._key(want, planned)
        # What is on the shelf is not even read: the samples' files were, by another job's worker.
        if not key or self._shelf.find(key) is None:
            return replace(super().prepare(want, begin), key=key)
        laid_out = self._layouts.of(planned, planned.samples)
        read_us = (time.perf_counter_ns() - began_ns) // 1000
        return Prepared(planned, planned.samples, *laid_out, None, read_us, {}, key=key, is_read=False)

    def _key(self, want: Want, planned: PlannedBatch) -> bytes:
        """Return the key of the batch; empty if the batch must not be shared.

        That is so for a batch suspected of killing a worker (`want.attempt`), an empty one, and one with a known
        culprit: their bytes depend on this job's own history. What the source raises for an identity passes through.
        """
        samples = planned.samples.tolist()
        if want.attempt or want.empty or self._has_culprits(samples):
            return b""
        # All that the bytes depend on: settings of the stream, the batch's number, and what each sample's file is now.
        state = xxhash.xxh3_128(self._shared)
        state.update(f" {want.epoch} {want.group} {want.number}".encode())
        # An identity has the file's name, which need not be UTF-8.
        for sample in samples:
            state.update(b"\0" + self.stream.identity(sample).encode("utf-8", "surrogatepass"))
        return state.digest()

    def _has_culprits(self, samples: Sequence[int]) -> bool:
        """Return whether a sample is known to kill decoders; what the source raises for an identity passes through."""
        return bool(self.culprits.keys) and any(map(self.is_culprit, samples))

    def claim(self, prepared: Prepared) -> bool:
        """Claim the batch before it is built and return True; return False if another worker is building it.

        A batch that needs no claim, because it is not shared or is on the shelf already, counts as claimed. An OSError
        of the shelf passes through.
        """
        # The claim is the kernel's lock, so it ends with a builder that is killed. One that is stopped keeps it:
        # callers wait for some builds' time at most, and then build the batch a second time.
        return not prepared.key or self._shelf.claim(prepared.key) or self._shelf.find(prepared.key) is not None

    def release(self) -> None:
        """Give the claim back, if there is one."""
        self._shelf.release()

    def build(
        self,
        want: Want,
        prepared: Prepared,
        payload: NDArray[np.uint8],
        *,
        digest: bool = True,
        convicted: AbstractSet[int] = frozenset(),
    ) -> Built:
        """Write every byte of `payload`, from the shelf or built as `Builder.build` does, and return the batch's facts.

        What is built goes on the shelf, if it may be shared and no sample in it is masked for killing a worker. Raise
        an UnreadError if `prepare` found the batch on the shelf, so that its samples were not read, and it cannot be
        taken from there any more. Raise ExhaustedError or MemoryError if memory or descriptors ran out while it was
        built, and ReadError if the machine failed otherwise; other errors of the source and the feature cache, and an
        OSError of the shelf, pass.
        """
        # Look again: another worker may have put the batch there since `prepare`.
        taken = self._take(prepared, payload, digest=digest) if prepared.key else None
        if taken is not None:
            return taken
        # It was on the shelf in `prepare`, so nothing was read. This runs in the building thread, which must not read
        # files: the error carries what a reading thread has to do.
        if not prepared.is_read:
            raise UnreadError(lambda begin: replace(Builder.prepare(self, want, begin), key=prepared.key))
        # `_note_masked` fills this while the batch is built: the shelf's facts have to name each masked row.
        self._masked = []
        built = super().build(want, prepared, payload, digest=digest, convicted=convicted)
        # A batch in which a sample was masked for killing a worker is not shared: convictions stay the job's own.
        if prepared.key and all(row.error.reason != KILLS for row in self._masked):
            self._shelf.put(
                prepared.key, as_facts(built, self._masked), payload, built.digest or digest64(payload.data)
            )
        return built

    def _take(self, prepared: Prepared, payload: NDArray[np.uint8], *, digest: bool) -> Built | None:
        """Copy the batch from the shelf, noting its masked samples in the quarantine; return its facts.

        Return None if it has left the shelf, also while it was copied, or one of its samples is a culprit by now. What
        the source raises for a name or an identity, and an OSError of the shelf, pass through.
        """
        began_ns = time.perf_counter_ns()
        kept = self._shelf.find(prepared.key)
        # A sample may have been convicted here since `prepare`, and the batch on the shelf has its row.
        if kept is None or self._has_culprits(prepared.samples.tolist()) or not self._shelf.copy(kept, payload):
            return None
        build_us = (time.perf_counter_ns() - began_ns) // 1000
        built, masked = from_facts(kept.facts, digest=kept.digest if digest else 0, build_us=build_us)
        # In the quarantine of this job as well, as if the sample had been masked here.
        for row in masked:
            self._quarantine.note(self.stream.name, row.sample, self.stream.source.name(row.sample), row.error)
        return replace(built, read_us=prepared.read_us)

    def _note_masked(self, sample: int, error: SampleError, batch: Any) -> None:
        super()._note_masked(sample, error, batch)
        self._masked.append(MaskedSample(sample, error))


def as_facts(built: Built, masked: Sequence[MaskedSample]) -> bytes:
    """Return the facts of a batch that was built, with its masked samples and their errors, as bytes."""
    # Texts of errors may quote names of files that are not UTF-8, which Python has as surrogates.
    packed: bytes = msgpack.packb(
        [
            [built.rows, built.masked, built.reason, list(built.reasons)],
            [built.cells, built.sample_cells, built.masked_cells, list(built.not_finite)],
            [[row.sample, row.error.reason, row.error.words()] for row in masked],
        ],
        unicode_errors="surrogatepass",
    )
    return packed


def from_facts(facts: bytes, *, digest: int, build_us: int) -> tuple[Built, list[MaskedSample]]:
    """Return the facts and masked samples from bytes of `as_facts`, with this digest and time of taking the batch.

    Other bytes raise what unpacking them raises, such as a ValueError or TypeError.
    """
    (rows, masked, reason, reasons), (cells, sample_cells, masked_cells, not_finite), noted = msgpack.unpackb(
        facts, unicode_errors="surrogatepass"
    )
    built = Built(
        rows=rows,
        masked=masked,
        digest=digest,
        build_us=build_us,
        reason=reason,
        reasons=tuple((name, count) for name, count in reasons),
        cells=cells,
        sample_cells=sample_cells,
        masked_cells=masked_cells,
        taken=True,
        not_finite=tuple((key, count) for key, count in not_finite),
    )
    return built, [MaskedSample(sample, SampleError(reason=why, **words)) for sample, why, words in noted]
