"""The ring of stamps: what it keeps, what it overwrites, and what a page of it holds."""

from __future__ import annotations

import pytest

from shared.tracing.ring import ROW, BatchKey, StampKind, StampRing, bare_key, lending_of, stamp_key
from shared.wire.message_parts import Ticket

SECOND = 10**9
TICKET = Ticket(3, 17)


def numbers(page):
    return page.rows["number"].tolist()


def filled(rows: int, *, every_ns: int = 1, **settings: int) -> StampRing:
    ring = StampRing(**settings)
    for number in range(rows):
        ring.stamp(StampKind.ASKED, 5 + number * every_ns, bare_key(number))
    return ring


def test_a_row_has_all_fields_of_its_stamp():
    ring = StampRing()
    ring.stamp(StampKind.TAKEN, 123, stamp_key(4217, 3, TICKET, 2, 2**64 - 1, 1), 99)
    (row,) = ring.page(0, 10).rows
    assert {name: int(row[name]) for name in ROW.names} == {
        "time_ns": 123, "extra": 99, "number": 4217, "peer": 2**64 - 1, "lending": lending_of(TICKET), "epoch": 3,
        "attempt": 2, "stream": 1, "kind": StampKind.TAKEN,
    }  # fmt: skip


def test_all_lendings_of_a_slot_differ():
    lendings = {lending_of(Ticket(slot, generation)) for slot in (0, 1, 2**16) for generation in (1, 2, 2**40 - 1)}
    assert len(lendings) == 9
    assert max(lendings) < 2**64


def test_an_empty_ring_has_nothing():
    ring = StampRing()
    page = ring.page(0, 10)
    assert (len(page.rows), page.next_row, page.overwritten, ring.rows, ring.oldest_ns()) == (0, None, 0, 0, 0)


def test_a_mebibyte_is_kept_however_old_it_is():
    ring = filled(100_000, every_ns=SECOND)
    assert ring.nbytes <= 1.5 * 2**20
    assert ring.rows * ROW.itemsize >= 2**20 - 4 * ROW.itemsize
    assert ring.written == 100_000
    assert numbers(ring.page(99_990, 20)) == list(range(99_990, 100_000))


def test_a_minute_is_kept_even_if_it_takes_more_than_a_mebibyte():
    ring = filled(120_000, every_ns=SECOND // 1000)
    assert ring.rows >= 60_000
    assert 119_999 * SECOND // 1000 + 5 - ring.oldest_ns() >= 60 * SECOND
    assert ring.nbytes < 5 * 2**20


def test_memory_has_an_end():
    ring = filled(2000, chunk_rows=10, most_bytes=60 * ROW.itemsize)
    assert ring.nbytes == 60 * ROW.itemsize
    assert numbers(ring.page(0, 3000))[-1] == 1999
    assert 50 <= ring.rows <= 60


@pytest.mark.parametrize("count", [*range(38, 75)])
def test_rows_come_in_order_wherever_the_ring_is(count):
    ring = filled(count, chunk_rows=4, most_bytes=1)
    page = ring.page(0, 1000)
    assert numbers(page) == list(range(count - ring.rows, count))
    assert page.overwritten == count - ring.rows
    assert ring.oldest_ns() == 5 + count - ring.rows


def test_pages_follow_each_other():
    ring = filled(25)
    found, first = [], 0
    while first is not None:
        page = ring.page(first, 10)
        assert len(page.rows) <= 10
        found += numbers(page)
        first = page.next_row
    assert found == list(range(25))


def test_what_is_overwritten_between_two_pages_is_counted():
    ring = filled(16, chunk_rows=4, most_bytes=1)
    page = ring.page(0, 4)
    assert page.next_row == 4
    for number in range(16, 36):
        ring.stamp(StampKind.ASKED, 5 + number, bare_key(number))
    oldest = 36 - ring.rows
    page = ring.page(4, 100)
    assert page.overwritten == oldest - 4 > 0
    assert numbers(page) == list(range(oldest, 36))


def test_only_stamps_since_then_are_on_the_page():
    assert numbers(filled(10).page(0, 10, since_ns=12)) == [7, 8, 9]


def key_ring() -> StampRing:
    ring = StampRing()
    train, dev = ring.stream_number("train"), ring.stream_number("dev")
    for stream in (train, dev):
        for epoch in (0, 1):
            for number in (6, 7, 8):
                ring.stamp(StampKind.ASKED, 10, stamp_key(number, epoch, TICKET, 0, 0, stream))
    return ring


def test_a_batch_is_found_by_stream_number_and_epoch():
    rows = key_ring().page(0, 99, key=BatchKey("dev", 7)).rows
    assert [tuple(row) for row in rows[["stream", "epoch", "number"]].tolist()] == [(1, 0, 7), (1, 1, 7)]
    rows = key_ring().page(0, 99, key=BatchKey("dev", 7, 1)).rows
    assert [tuple(row) for row in rows[["stream", "epoch", "number"]].tolist()] == [(1, 1, 7)]
    assert len(key_ring().page(0, 99, key=BatchKey("other", 7)).rows) == 0


@pytest.mark.parametrize(("number", "is_found"), [(7, False), (8, True), (11, True), (12, False)])
def test_a_batch_is_trained_on_with_its_round(number, is_found):
    ring = StampRing()
    ring.stream_number("train")
    ring.stamp(StampKind.TRAINED, 10, bare_key(8, 2), 12)
    assert bool(len(ring.page(0, 9, key=BatchKey("train", number, 2)).rows)) == is_found


def test_the_last_pings_go_with_a_batch_and_a_ping_of_its_number_is_not_taken_for_it():
    ring = key_ring()
    for number in range(100):
        ring.stamp(StampKind.PINGED, 20 + number, bare_key(number))
    rows = ring.page(0, 999, key=BatchKey("train", 7, 0)).rows
    assert (rows["kind"] == StampKind.PINGED).sum() == 64
    assert rows["number"][rows["kind"] == StampKind.PINGED].tolist() == list(range(36, 100))
    assert (rows["kind"] == StampKind.ASKED).sum() == 1


def test_streams_beyond_the_last_share_one_number():
    ring = StampRing()
    given = [ring.stream_number(f"s{number}") for number in range(70)]
    assert given == [*range(64), *[63] * 6]
    assert ring.stream_number("s5") == 5
    assert len(ring.streams) == 64
