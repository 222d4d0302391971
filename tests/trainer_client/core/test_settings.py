"""How many batches are asked for ahead, and how many slots there are for them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trainer_client.core.settings import CoreSettings, slots_for
from trainer_client.core.upcoming import Ranks

MB = 2**20


def slots(nbytes, *, replicas=1, at_a_time=1, **how):
    ranks = Ranks(rank=0, replicas=replicas, world=replicas)
    settings = CoreSettings(job="j", stream="s", ranks=ranks, incarnation=1, name="t", boot_id="", **how)
    return slots_for(settings, SimpleNamespace(largest_bytes=lambda: nbytes, at_a_time=at_a_time))


@pytest.mark.parametrize(("at_a_time", "prefetch"), [(1, 8), (4, 8), (16, 32)])
def test_what_enters_several_at_a_time_is_asked_for_further_ahead(at_a_time, prefetch):
    assert slots(1, at_a_time=at_a_time) == (prefetch + 6, prefetch)


def test_each_replica_has_its_own_and_what_is_said_counts():
    assert slots(MB, replicas=2) == (16 + 10, 16)
    assert slots(1, prefetch=3) == (9, 3)


def test_no_more_slots_than_memory_affords():
    assert slots(10 * MB, prefetch_bytes=60 * MB) == (5, 4)
    assert slots(10 * MB, prefetch_bytes=1) == (2, 1)


@pytest.mark.parametrize("replicas", [1, 4])
def test_a_verifier_has_two_wants_open_whatever_is_said(replicas):
    assert slots(1, replicas=replicas, at_a_time=16, prefetch=9, work="verify") == (2 + 4 * replicas + 2, 2)
