"""Stamps as they come, and clocks compared by Pings."""

from __future__ import annotations

from loader_server.tracing.process_stamps import ClockOffset, ProcessStamps, joined_clocks
from shared.tracing.ring import StampKind
from shared.wire.message_parts import TraceProcess
from shared.wire.messages import TracePage
from tests.support.stamped_jobs import MS, StampedProcess


def pinged(trainer: StampedProcess, worker: StampedProcess, number: int, sent_ms: float, *, there: float, back: float):
    trainer.ping(StampKind.PINGED, sent_ms, number)
    worker.ping(StampKind.PING_CAME, sent_ms + there, number, peer=trainer.process.incarnation)
    trainer.ping(StampKind.PONGED, sent_ms + there + back, number)


def test_pages_that_overlap_count_once_and_come_by_time():
    process = StampedProcess("t", 1, "train")
    for number in range(2000):
        process.at(StampKind.ASKED, 5000 - number, number)
    stamps = process.gathered()
    twice = process.gathered()
    for page in stamps._pages:
        twice._pages.append(page)
    assert len(twice.rows()) == len(stamps.rows()) == process.ring.rows
    assert (stamps.rows()["time_ns"][1:] >= stamps.rows()["time_ns"][:-1]).all()


def test_a_page_of_a_process_that_is_gone_says_so():
    stamps = ProcessStamps(TraceProcess("w", 2, "", 0, 0, 0))
    page = TracePage(
        serial=1, process=2, gone=True, boot_id="", now_ns=0, oldest_ns=0, streams=(), stamps=b"", next_row=None,
        overwritten=0,
    )  # fmt: skip
    stamps.add(page)
    assert stamps.problem == "gone"
    assert len(stamps.rows()) == 0


def test_half_a_stamp_is_dropped():
    stamps = ProcessStamps(TraceProcess("w", 2, "", 0, 0, 0))
    page = TracePage(
        serial=1, process=2, gone=False, boot_id="", now_ns=0, oldest_ns=0, streams=(), stamps=bytes(71), next_row=None,
        overwritten=0,
    )  # fmt: skip
    stamps.add(page)
    assert len(stamps.rows()) == 1


def test_one_host_has_one_clock():
    processes = [StampedProcess("t", 1, "train").gathered(), StampedProcess("w", 2).gathered()]
    assert joined_clocks(processes, "boot") == {"boot": ClockOffset(0, 0)}


def test_the_quickest_ping_counts_and_its_half_is_the_error():
    trainer, worker = StampedProcess("t", 1, "train"), StampedProcess("w", 2, boot="other", ahead_ms=5000)
    pinged(trainer, worker, 1, 1000, there=9, back=1)
    pinged(trainer, worker, 2, 2000, there=0.5, back=0.3)
    pinged(trainer, worker, 3, 3000, there=4, back=4)
    clock = joined_clocks([trainer.gathered(), worker.gathered()], "boot")["other"]
    assert clock.error_ns == int(0.4 * MS)
    assert abs(clock.offset_ns + 5000 * MS) <= clock.error_ns


def test_a_ping_without_a_pong_says_nothing():
    trainer, worker = StampedProcess("t", 1, "train"), StampedProcess("w", 2, boot="other")
    trainer.ping(StampKind.PINGED, 1000, 1)
    worker.ping(StampKind.PING_CAME, 1001, 1, peer=1)
    assert joined_clocks([trainer.gathered(), worker.gathered()], "boot").keys() == {"boot"}


def test_a_clock_is_reached_by_way_of_others():
    first, second = StampedProcess("a", 1, "train"), StampedProcess("b", 3, "train", boot="second", ahead_ms=-900)
    worker = StampedProcess("w", 2, boot="other", ahead_ms=5000)
    pinged(first, worker, 1, 1000, there=1, back=1)
    pinged(second, worker, 1, 1100, there=3, back=3)
    clocks = joined_clocks([first.gathered(), second.gathered(), worker.gathered()], "boot")
    assert clocks["second"] == ClockOffset(900 * MS, 4 * MS)
    assert joined_clocks([first.gathered(), second.gathered(), worker.gathered()], "second")["boot"].offset_ns == (
        -900 * MS
    )


def test_a_process_whose_host_is_not_known_has_a_clock_of_its_own():
    trainer, worker = StampedProcess("t", 1, "train", boot=""), StampedProcess("w", 2, boot="")
    assert trainer.gathered().clock != worker.gathered().clock
