"""Digests of an epoch's batches, the one digest over all of them, and the differences of two readings.

Rules: pure. The digest of an epoch is xxh3-128 over each batch's number and the xxh3-64 of its payload, in order, as
pairs of 8 bytes, little-endian. Who built, carried or read a batch does not enter, so it is a property of the plan and
the data alone. The digest of several epochs is the digest of their digests.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["DIGEST_CHARACTERS", "Difference", "EpochDigests", "differences", "digest_of"]

#: Length of a digest in hexadecimal.
DIGEST_CHARACTERS = 32


@dataclass(slots=True)
class EpochDigests:
    """Digest of each batch of an epoch, from number 0 on, with the group and plan that the numbers belong to."""

    epoch: int
    group: int
    plan_digest: str
    #: Digests by batch number.
    batches: array[int] = field(default_factory=lambda: array("Q"))

    @property
    def digest(self) -> str:
        """Return the digest over all batches, in hexadecimal."""
        state = xxhash.xxh3_128()
        for number, digest in enumerate(self.batches):
            state.update(number.to_bytes(8, "little"))
            state.update(digest.to_bytes(8, "little"))
        return state.hexdigest()


def digest_of(epochs: Sequence[EpochDigests]) -> str:
    """Return the digest of one epoch, or the digest of several epochs' digests."""
    if len(epochs) == 1:
        return epochs[0].digest
    return xxhash.xxh3_128_hexdigest("".join(epoch.digest for epoch in epochs).encode())


@dataclass(frozen=True, slots=True)
class Difference:
    """Batch that differs between two readings; None: one of them has no batch of this number."""

    epoch: int
    number: int
    here: int | None
    there: int | None


def differences(here: Iterable[EpochDigests], there: Iterable[EpochDigests]) -> list[Difference]:
    """Return all batches that differ between two readings of the same epochs, in order."""
    return [
        Difference(ours.epoch, number, our_digest, their_digest)
        for ours, theirs in zip(here, there, strict=True)
        for number, (our_digest, their_digest) in enumerate(zip_longest(ours.batches, theirs.batches))
        if our_digest != their_digest
    ]
