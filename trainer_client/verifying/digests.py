"""Digests of an epoch's batches, the parts in which they are read again, and the differences of two readings.

Rules: pure; the caller brings the randomness. The digest of an epoch is xxh3-128 over each batch's number and the
xxh3-64 of its payload, in order, as pairs of 8 bytes, little-endian. Who built, carried or read a batch does not enter,
so it is a property of the plan and the data alone. The digest of several epochs is the digest of their digests.

An epoch is read again cut at random places. A part ends where a round of its world ends, so the next one resumes where
a trainer of that world could have saved its cursor. Together the parts have every batch exactly once.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

import xxhash

from shared.rounds import rounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

__all__ = ["DIGEST_CHARACTERS", "CutPart", "Difference", "EpochDigests", "cut_plan", "differences", "digest_of"]

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
        """Return the digest over all batches' numbers and digests, 128 bits in hexadecimal."""
        state = xxhash.xxh3_128()
        for number, digest in enumerate(self.batches):
            state.update(number.to_bytes(8, "little"))
            state.update(digest.to_bytes(8, "little"))
        return state.hexdigest()


def digest_of(epochs: Sequence[EpochDigests]) -> str:
    """Return the digest of a single epoch, or the digest of the digests of several epochs, in hexadecimal."""
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
    """Return all batches that differ between two readings of the same epochs, in order; empty if they are equal.

    Raise ValueError if the readings have different numbers of epochs.
    """
    return [
        Difference(ours.epoch, number, our_digest, their_digest)
        for ours, theirs in zip(here, there, strict=True)
        for number, (our_digest, their_digest) in enumerate(zip_longest(ours.batches, theirs.batches))
        if our_digest != their_digest
    ]


@dataclass(frozen=True, slots=True)
class CutPart:
    """Batches `start` to `stop` (excluded), read in rounds by a world of `world` ranks."""

    start: int
    stop: int
    world: int


def cut_plan(batches: int, group: int, cuts: int, draws: Random) -> list[CutPart]:
    """Return the parts of the first `batches` batches, each with a random world; none if there are no batches.

    There are `cuts` cuts, or fewer where rounds leave no room for them. ValueError of `rounds` passes through.
    """
    inner = range(1, batches)
    stops = [*sorted(draws.sample(inner, min(cuts, len(inner)))), batches]
    parts: list[CutPart] = []
    start = 0
    for wanted in stops:
        if wanted <= start:  # the round that an earlier cut fell into reaches past this one
            continue
        world = draws.randint(1, group)
        # The last batches of a limited reading may end within a group, and rounds go by whole groups.
        end = -(-batches // group) * group
        stop = next(each.stop for each in rounds(start, end, group, world) if each.stop >= wanted)
        parts.append(CutPart(start, min(stop, batches), world))
        start = stop
        if start >= batches:
            break
    return parts
