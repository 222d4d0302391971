"""The digest over an epoch's batches, and where two readings differ."""

from __future__ import annotations

import itertools
from array import array

import pytest
import xxhash

from trainer_client.verifying.digests import Difference, EpochDigests, differences, digest_of


def epoch(*digests: int, number: int = 0, group: int = 1) -> EpochDigests:
    return EpochDigests(number, group, "plan-1", array("Q", digests))


def test_it_is_that_of_the_pairs_in_order():
    pairs = b"".join(number.to_bytes(8, "little") + digest.to_bytes(8, "little") for number, digest in [(0, 7), (1, 9)])
    assert epoch(7, 9).digest == xxhash.xxh3_128_hexdigest(pairs)


def test_it_is_pinned_because_people_write_it_down():
    assert epoch(1, 2, 2**64 - 1).digest == "ca895ff1868b120d67a70ba3d8d3e12e"
    assert digest_of([epoch(1, 2), epoch(3, number=1)]) == "f278d643265a54ff4800ef59e95b99cb"


def test_whatever_differs_makes_another_digest():
    readings = [some for count in range(4) for some in itertools.product((0, 1, 2), repeat=count)]
    assert len({epoch(*some).digest for some in readings}) == len(readings)


def test_of_one_epoch_it_is_the_epochs_own_and_of_several_their_order_counts():
    one, other = epoch(1), epoch(2, number=1)
    assert digest_of([one]) == one.digest
    assert len({digest_of([one, other]), digest_of([other, one]), one.digest, other.digest}) == 4


@pytest.mark.parametrize("place", range(4))
def test_each_batch_that_differs_is_named(place):
    here = [1, 2, 3, 4]
    there = [*here[:place], 9, *here[place + 1 :]]
    found = differences([epoch(5, number=2), epoch(*here, number=3)], [epoch(5, number=2), epoch(*there, number=3)])
    assert found == [Difference(3, place, here[place], 9)]


def test_a_batch_that_only_one_has_differs():
    assert differences([epoch(1)], [epoch(1, 2)]) == [Difference(0, 1, None, 2)]
    assert differences([epoch(1, 2)], [epoch(1)]) == [Difference(0, 1, 2, None)]
    assert differences([epoch(1, 2)], [epoch(1, 2)]) == []
