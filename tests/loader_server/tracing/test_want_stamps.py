"""A worker's stamps of wants and Pings."""

from __future__ import annotations

import threading
import time

from loader_server.tracing.want_stamps import WantStamps
from shared.tracing.ring import StampKind, lending_of
from shared.wire.message_parts import Ticket
from shared.wire.messages import Want

WANT = Want(
    job="digits", stream="dev", epoch=3, number=4217, empty=False, group=8, plan_digest="p", attempt=2,
    trainer=2**62, worker=2**61, ticket=Ticket(3, 17), in_slot=True, urgent=False,
)  # fmt: skip


def test_a_stamp_says_whose_want_it_was_and_when():
    stamps = WantStamps()
    stamps.ring.stream_number("train")
    before_ns = time.monotonic_ns()
    stamps.stamp(StampKind.RECEIVED, time.monotonic_ns(), stamps.key(WANT))
    (row,) = stamps.ring.page(0, 9).rows
    assert before_ns <= row["time_ns"] <= time.monotonic_ns()
    assert (row["kind"], row["number"], row["epoch"], row["attempt"]) == (StampKind.RECEIVED, 4217, 3, 2)
    assert (int(row["peer"]), int(row["lending"])) == (2**62, lending_of(Ticket(3, 17)))
    assert stamps.ring.streams[row["stream"]] == "dev"


def test_a_ping_has_its_number_and_its_trainer():
    stamps = WantStamps()
    stamps.note_ping(2**62, 12)
    (row,) = stamps.ring.page(0, 9).rows
    assert (row["kind"], row["number"], int(row["peer"])) == (StampKind.PING_CAME, 12, 2**62)


def test_threads_stamp_at_the_same_time():
    stamps = WantStamps()
    key = stamps.key(WANT)

    def stamp() -> None:
        for _ in range(5000):
            stamps.stamp(StampKind.READ, time.monotonic_ns(), key)

    threads = [threading.Thread(target=stamp) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 20_000 - 8 <= stamps.ring.rows <= 20_000
    assert (stamps.ring.page(0, 30_000).rows["kind"] == StampKind.READ).sum() >= 20_000 - 8
