"""Buffers for what goes by TCP: used again once they were given back, and only then."""

from __future__ import annotations

import numpy as np
import pytest

from loader_server.building.send_buffers import Outgoing
from shared.huge_pages import HUGE_PAGE
from shared.wire.layout import BucketShape, Field, fields_of_batch, layout_of
from shared.wire.payload import Packing, unpack
from shared.wire.sealing import Opener, Sealer

LAYOUT = layout_of(
    fields_of_batch((Field(key="audio", dtype="float32", shape=(None, 2)),)), BucketShape(rows=3, lengths={"audio": 50})
)


@pytest.fixture
def outgoing():
    return Outgoing(Packing(), 8 * HUGE_PAGE)


def test_a_buffer_is_used_again_after_it_was_given_back(outgoing):
    first = outgoing.take(HUGE_PAGE + 5)
    assert first.nbytes == HUGE_PAGE + 5
    assert first.ctypes.data % HUGE_PAGE == 0
    second = outgoing.take(HUGE_PAGE + 5)
    assert not np.shares_memory(first, second)
    outgoing.give_back(first)
    third = outgoing.take(HUGE_PAGE + 900)  # as large in whole pages
    assert third.nbytes == HUGE_PAGE + 900
    assert np.shares_memory(first, third)
    assert not np.shares_memory(outgoing.take(HUGE_PAGE + 5), third)


def test_the_one_that_came_back_last_is_used_first(outgoing):
    first, second = (outgoing.take(HUGE_PAGE) for _ in range(2))
    outgoing.give_back(first)
    outgoing.give_back(second)
    assert np.shares_memory(outgoing.take(HUGE_PAGE), second)


def test_small_ones_are_not_kept(outgoing):
    small = outgoing.take(1000)
    outgoing.give_back(small)
    assert not np.shares_memory(outgoing.take(1000), small)


def give_back_all(outgoing, buffers):
    while buffers:
        outgoing.give_back(buffers.pop(0))


def test_what_nobody_asked_for_the_longest_is_given_up(outgoing):
    give_back_all(outgoing, [outgoing.take(size * HUGE_PAGE) for size in (1, 2, 3, 4)])
    assert outgoing.kept_bytes == outgoing.mapped_bytes == (3 + 4) * HUGE_PAGE
    outgoing.give_back(outgoing.take(3 * HUGE_PAGE))
    outgoing.give_back(outgoing.take(2 * HUGE_PAGE))  # 3 was asked for since
    assert sorted(one.nbytes // HUGE_PAGE for one in outgoing._free) == [2, 3]


def test_one_that_is_too_large_is_not_kept(outgoing):
    outgoing.give_back(outgoing.take(9 * HUGE_PAGE))
    assert outgoing.kept_bytes == 0


@pytest.mark.fault(42)
def test_what_is_in_use_leaves_so_much_less_to_keep(outgoing):
    used = [outgoing.take(2 * HUGE_PAGE) for _ in range(3)]
    outgoing.give_back(outgoing.take(2 * HUGE_PAGE))
    assert outgoing.mapped_bytes == 8 * HUGE_PAGE
    outgoing.give_back(outgoing.take(1 * HUGE_PAGE))  # another size: the free one has to go for it
    assert outgoing.mapped_bytes == 7 * HUGE_PAGE
    used.append(outgoing.take(2 * HUGE_PAGE))
    assert (outgoing.mapped_bytes, outgoing.kept_bytes) == (8 * HUGE_PAGE, 0)
    give_back_all(outgoing, used)
    assert outgoing.kept_bytes == outgoing.mapped_bytes == 8 * HUGE_PAGE


def test_what_is_lost_on_the_way_is_not_counted_for_ever(outgoing):
    outgoing.take(3 * HUGE_PAGE)
    assert outgoing.mapped_bytes == 0


@pytest.mark.parametrize("packing", [Packing(), Packing(float32="bfloat16"), Packing(compression="zstd")])
def test_what_is_sealed_is_what_is_packed(packing):
    outgoing, opener = Outgoing(packing, 0), Opener()
    sealer = Sealer(opener.key)
    payload = np.zeros(LAYOUT.nbytes, np.uint8)
    LAYOUT.arrays(payload)["audio"][...] = 1.5
    number, sealed = outgoing.sealed(sealer, outgoing.packed(payload, LAYOUT))
    assert opener.header(sealer.header(number, b"header")) == b"header"
    place = np.ones_like(payload)
    unpack(opener.payload(number, sealed.data), LAYOUT, packing, place)
    assert (place == payload).all()
