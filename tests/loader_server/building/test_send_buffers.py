"""Buffers for what goes by TCP: used again once they were given back, and only then."""

from __future__ import annotations

import numpy as np
import pytest

from loader_server.building.send_buffers import SendBuffers
from shared.huge_pages import HUGE_PAGE
from shared.wire.batch_layout import BucketShape, Field, fields_of_batch, layout_of
from shared.wire.payload import PayloadEncoding, decode_payload
from shared.wire.sealing import Opener, Sealer

LAYOUT = layout_of(
    fields_of_batch((Field(key="audio", dtype="float32", shape=(None, 2)),)), BucketShape(rows=3, lengths={"audio": 50})
)


@pytest.fixture
def buffers():
    return SendBuffers(PayloadEncoding(), 8 * HUGE_PAGE)


def kept_bytes(buffers):
    """Of all that are free."""
    return sum(one.nbytes for one in buffers._free)


def test_a_buffer_is_used_again_after_it_was_given_back(buffers):
    first = buffers.take(HUGE_PAGE + 5)
    assert first.nbytes == HUGE_PAGE + 5
    assert first.ctypes.data % HUGE_PAGE == 0
    second = buffers.take(HUGE_PAGE + 5)
    assert not np.shares_memory(first, second)
    buffers.give_back(first)
    third = buffers.take(HUGE_PAGE + 900)  # as large in whole pages
    assert third.nbytes == HUGE_PAGE + 900
    assert np.shares_memory(first, third)
    assert not np.shares_memory(buffers.take(HUGE_PAGE + 5), third)


def test_the_one_that_came_back_last_is_used_first(buffers):
    first, second = (buffers.take(HUGE_PAGE) for _ in range(2))
    buffers.give_back(first)
    buffers.give_back(second)
    assert np.shares_memory(buffers.take(HUGE_PAGE), second)


def test_small_ones_are_not_kept(buffers):
    small = buffers.take(1000)
    buffers.give_back(small)
    assert not np.shares_memory(buffers.take(1000), small)
    assert kept_bytes(buffers) == 0


def give_back_all(buffers, used):
    while used:
        buffers.give_back(used.pop(0))


def test_what_nobody_asked_for_the_longest_is_given_up(buffers):
    give_back_all(buffers, [buffers.take(size * HUGE_PAGE) for size in (1, 2, 3, 4)])
    assert kept_bytes(buffers) == buffers.mapped_bytes == (3 + 4) * HUGE_PAGE
    buffers.give_back(buffers.take(3 * HUGE_PAGE))
    buffers.give_back(buffers.take(2 * HUGE_PAGE))  # 3 was asked for since
    assert sorted(one.nbytes // HUGE_PAGE for one in buffers._free) == [2, 3]


def test_one_that_is_too_large_is_not_kept(buffers):
    buffers.give_back(buffers.take(9 * HUGE_PAGE))
    assert kept_bytes(buffers) == 0


@pytest.mark.fault(42)
def test_what_is_in_use_leaves_so_much_less_to_keep(buffers):
    used = [buffers.take(2 * HUGE_PAGE) for _ in range(3)]
    buffers.give_back(buffers.take(2 * HUGE_PAGE))
    assert buffers.mapped_bytes == 8 * HUGE_PAGE
    buffers.give_back(buffers.take(1 * HUGE_PAGE))  # another size: the free one has to go for it
    assert buffers.mapped_bytes == 7 * HUGE_PAGE
    used.append(buffers.take(2 * HUGE_PAGE))
    assert (buffers.mapped_bytes, kept_bytes(buffers)) == (8 * HUGE_PAGE, 0)
    give_back_all(buffers, used)
    assert kept_bytes(buffers) == buffers.mapped_bytes == 8 * HUGE_PAGE


def test_what_is_lost_on_the_way_is_not_counted_for_ever(buffers):
    buffers.take(3 * HUGE_PAGE)
    assert buffers.mapped_bytes == 0


@pytest.mark.parametrize(
    "encoding", [PayloadEncoding(), PayloadEncoding(float32="bfloat16"), PayloadEncoding(compression="zstd")]
)
def test_what_is_sealed_is_what_is_encoded(encoding):
    buffers, opener = SendBuffers(encoding, 0), Opener()
    sealer = Sealer(opener.key)
    payload = np.zeros(LAYOUT.nbytes, np.uint8)
    LAYOUT.arrays(payload)["audio"][...] = 1.5
    number, sealed = buffers.seal(sealer, buffers.encode(payload, LAYOUT))
    assert opener.open_header(sealer.seal_header(number, b"header")) == b"header"
    place = np.ones_like(payload)
    decode_payload(opener.open_payload(number, sealed.data), LAYOUT, encoding, place)
    assert (place == payload).all()
