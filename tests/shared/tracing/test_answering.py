"""The page that answers a question for stamps."""

from __future__ import annotations

import numpy as np

from shared.tracing.answering import page_of
from shared.tracing.ring import ROW, StampKind, StampRing, bare_key, stamp_key
from shared.wire.codec import encode
from shared.wire.message_parts import Ticket
from shared.wire.messages import TraceWanted


def wanted(**more):
    fields = {"serial": 9, "first_row": 0, "last_ms": 0, "stream": "", "epoch": None, "number": None}
    return TraceWanted(**(fields | more))


def ring_of(rows: int) -> StampRing:
    ring = StampRing()
    ring.stream_number("train")
    for number in range(rows):
        ring.stamp(StampKind.ASKED, 10**9 + number, stamp_key(number, 0, Ticket(1, 1)))
    return ring


def ask(ring, **more):
    return page_of(ring, wanted(**more), process=2**63, boot_id="boot", now_ns=2 * 10**9)


def test_a_page_fits_in_a_request_to_the_coordinator():
    page = ask(ring_of(5000))
    assert len(encode(page)) < 60 * 1024
    assert len(page.stamps) % ROW.itemsize == 0
    assert page.next_row == len(page.stamps) // ROW.itemsize


def test_it_says_whose_stamps_they_are_and_how_far_they_go_back():
    page = ask(ring_of(3))
    assert (page.serial, page.process, page.gone, page.boot_id) == (9, 2**63, False, "boot")
    assert (page.now_ns, page.oldest_ns, page.streams, page.next_row) == (2 * 10**9, 10**9, ("train",), None)
    assert np.frombuffer(page.stamps, ROW)["number"].tolist() == [0, 1, 2]


def test_of_the_last_time_or_of_one_batch():
    assert ask(ring_of(3), last_ms=1).stamps == b""
    assert len(ask(ring_of(3), last_ms=1000).stamps) == 3 * ROW.itemsize
    page = ask(ring_of(3), stream="train", number=1)
    assert np.frombuffer(page.stamps, ROW)["number"].tolist() == [1]


def test_an_empty_ring_answers_too():
    page = page_of(StampRing(), wanted(), process=1, boot_id="", now_ns=5)
    assert (page.stamps, page.next_row, page.oldest_ns) == (b"", None, 0)
    assert bare_key(1) == bare_key(1, 0, 0)
