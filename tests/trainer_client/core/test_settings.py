"""How many batches are asked for ahead, and how many slots there are for them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trainer_client.core.settings import CoreSettings, SlotNumbers, slots_for
from trainer_client.core.upcoming import Ranks

MB = 2**20


def numbers(nbytes, *, replicas=1, producers=0, **how):
    ranks = Ranks(rank=0, replicas=replicas, world=replicas)
    settings = CoreSettings(job="j", stream="s", ranks=ranks, incarnation=1, name="t", boot_id="", **how)
    return slots_for(settings, SimpleNamespace(largest_bytes=lambda: nbytes, producers=producers))


@pytest.mark.parametrize(("nbytes", "start"), [(2 * MB, 8), (MB, 8), (MB // 2, 16), (MB // 4, 32), (1, 32), (0, 32)])
def test_small_batches_are_asked_for_further_ahead(nbytes, start):
    assert numbers(nbytes) == SlotNumbers(8 * start + 6, start, 8 * start, 6)


def test_each_replica_has_its_own_and_a_given_start_counts():
    assert numbers(MB, replicas=2) == SlotNumbers(128 + 10, 16, 128, 10)
    assert numbers(1, prefetch=3) == SlotNumbers(24 + 6, 3, 24, 6)


def test_a_large_start_grows_less_and_is_never_cut_by_the_bound_of_growth():
    assert numbers(1, prefetch=200) == SlotNumbers(1024 + 6, 200, 1024, 6)
    assert numbers(1, prefetch=1024, replicas=2) == SlotNumbers(2048 + 10, 2048, 2048, 10)


def test_no_more_slots_than_memory_affords():
    assert numbers(10 * MB, prefetch_bytes=60 * MB) == SlotNumbers(5, 4, 4, 6)
    assert numbers(10 * MB, prefetch_bytes=1) == SlotNumbers(2, 1, 1, 6)
    assert numbers(10 * MB, prefetch_bytes=310 * MB) == SlotNumbers(30, 8, 24, 6)


@pytest.mark.parametrize("replicas", [1, 4])
def test_a_verifier_has_two_wants_open_whatever_is_given(replicas):
    assert numbers(1, replicas=replicas, prefetch=9, work="verify") == SlotNumbers(
        4 * replicas + 4, 2, 2, 4 * replicas + 2
    )


def test_where_batches_are_made_whole_it_does_not_grow():
    assert numbers(MB, producers=4) == SlotNumbers(14, 8, 8, 6)
