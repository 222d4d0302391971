"""PendingRead ahead: what hangs is given up and its thread replaced, what fails is told, nothing waits without end."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.building import read_ahead
from loader_server.building.read_ahead import LookAhead, ReadAhead
from shared.errors import ReadError
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_LAST_MOMENT_S", 0.01)
    wait_until(lambda: threads() == 0, "the readers of tests before have ended")


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hanging reads wait for."""
    gate = threading.Event()
    yield gate
    gate.set()
    wait_until(lambda: threads() == 0, "all readers have ended")


@pytest.fixture
def readers(gate: threading.Event) -> Iterator[ReadAhead]:
    """They find at once that something hangs."""
    readers = ReadAhead(timeout_s=0.05)
    yield readers
    readers.close()


@pytest.fixture
def patient(gate: threading.Event) -> Iterator[ReadAhead]:
    """They never do."""
    readers = ReadAhead(timeout_s=600.0)
    yield readers
    readers.close()


def name(sample: int) -> str:
    return f"sample-{sample}"


def threads() -> int:
    return sum(thread.name == "stoker-read" for thread in threading.enumerate())


def hanging(gate: threading.Event, sample: int = 3) -> Callable[[Callable[[int], None]], str]:
    def work(begin: Callable[[int], None]) -> str:
        begin(sample)
        gate.wait()
        return "late"

    return work


def test_what_was_read_comes_back(patient: ReadAhead) -> None:
    reads = [patient.submit(lambda begin, n=n: begin(n) or n * n, name) for n in range(20)]
    assert [patient.wait_for(pending) for pending in reads] == [n * n for n in range(20)]
    assert patient.hanging == 0


@pytest.mark.parametrize("error", [ReadError(expected="a", got="b", where="c", remedy="d"), SystemExit(3)])
def test_what_was_raised_is_raised_where_it_is_waited_for(readers: ReadAhead, error: BaseException) -> None:
    def work(begin: Callable[[int], None]) -> None:
        raise error

    pending = readers.submit(work, name)
    with pytest.raises(type(error)) as caught:
        readers.wait_for(pending)
    assert caught.value is error
    assert readers.wait_for(readers.submit(lambda begin: "next", name)) == "next"


def test_a_read_past_its_deadline_is_an_error_that_names_the_sample(readers: ReadAhead, gate: threading.Event) -> None:
    pending = readers.submit(hanging(gate), name)
    with pytest.raises(ReadError, match=r"sample-3: expected to read the sample within 0.05 s \(build_timeout\)"):
        readers.wait_for(pending)


def test_each_sample_has_the_whole_time(patient: ReadAhead, gate: threading.Event) -> None:
    second = threading.Event()

    def work(begin: Callable[[int], None]) -> None:
        begin(1)
        second.wait()
        begin(2)
        gate.wait()

    pending = patient.submit(work, name)
    wait_until(pending.since_s, "the first is being read")
    began_s = pending.since_s()
    assert patient._give_up_late(began_s + 599.0) == pytest.approx(1.0)
    second.set()
    wait_until(lambda: pending.since_s() > began_s, "the second is being read")
    patient._give_up_late(began_s + 600.0)
    assert not pending.given_up
    patient._give_up_late(pending.since_s() + 600.0)
    assert pending.given_up


def test_what_comes_late_but_before_anybody_looked_is_taken(readers: ReadAhead, gate: threading.Event) -> None:
    late, other = (readers.submit(hanging(gate, sample), name) for sample in (1, 2))
    with pytest.raises(ReadError, match="sample-2"):
        readers.wait_for(other)
    gate.set()
    concurrent.futures.wait((late.future,), 60)
    assert readers.wait_for(late) == "late"


def test_hanging_threads_are_replaced_also_if_nobody_waits_for_them_and_end_when_they_come_back(
    readers: ReadAhead, gate: threading.Event
) -> None:
    before = threads()
    for _ in range(before):  # of jobs that were cancelled
        readers.submit(hanging(gate), name)
    assert readers.wait_for(readers.submit(lambda begin: "read", name)) == "read"
    wait_until(lambda: readers._give_up_late(time.monotonic()) and readers.hanging == before, "all are given up")
    assert threads() == 2 * before
    gate.set()
    wait_until(lambda: readers.hanging == 0 and threads() == before, "the spare threads have ended")
    assert readers.wait_for(readers.submit(lambda begin: "read", name)) == "read"


def test_so_many_hang_and_no_more(readers: ReadAhead, gate: threading.Event) -> None:
    before = threads()
    for _ in range(16):
        with pytest.raises(ReadError, match="still going on"):
            readers.wait_for(readers.submit(hanging(gate), name))
    refused = readers.submit(hanging(gate), name)
    with pytest.raises(ReadError, match="expected fewer than 16 reads that hang, got 16"):
        readers.wait_for(refused)
    assert threads() == before + 16
    gate.set()
    wait_until(lambda: readers.hanging == 0, "they came back")
    assert readers.wait_for(readers.submit(lambda begin: "read", name)) == "read"


def test_close_ends_the_threads(gate: threading.Event) -> None:
    readers = ReadAhead(timeout_s=1.0)
    assert threads() == 4
    readers.close()
    wait_until(lambda: threads() == 0, "they have ended")


# --- reads that end at once ---


def test_a_read_that_is_busy_to_its_end_ends_at_once(patient: ReadAhead) -> None:
    def busy(_: object) -> None:
        began_s = time.thread_time()
        while time.thread_time() - began_s < 0.002:
            pass

    assert any(patient.submit(busy, name).ends_at_once(60.0) for _ in range(20)), "others may hold the processor"


def test_one_that_waits_for_a_disk_does_not_nor_one_that_goes_on(patient: ReadAhead, gate: threading.Event) -> None:
    assert not patient.submit(lambda _: time.sleep(0.01), name).ends_at_once(60.0)
    assert not patient.submit(hanging(gate), name).ends_at_once(0.001)


# --- hints about what comes next ---


class Listening:
    """A source that wants so much."""

    def __init__(self, wants: int) -> None:
        self.wants = wants
        self.told: list[int] = []

    def looks_ahead(self) -> bool:
        return len(self.told) < self.wants

    def expect(self, samples: Any) -> None:
        self.told += samples.tolist()


#: Ten batches, whose samples are their numbers.
EPOCH: Any = SimpleNamespace(batches=10, batch=lambda number: SimpleNamespace(samples=np.array([number])))


def test_what_comes_behind_is_told_once_as_far_as_is_wanted() -> None:
    source = Listening(3)
    ahead = LookAhead(source)  # type: ignore[arg-type]
    ahead.after(EPOCH, (0, 1), 1)
    assert source.told == [2, 3, 4]
    source.wants = 4
    ahead.after(EPOCH, (0, 1), 2)
    assert source.told == [2, 3, 4, 5]
    source.wants = 100
    ahead.after(EPOCH, (0, 1), 7)
    assert source.told == [2, 3, 4, 5, 8, 9], "what was passed meanwhile is no news, and an epoch ends"
    ahead.after(EPOCH, (1, 1), 6)
    assert source.told[-3:] == [7, 8, 9], "another epoch has other batches"


def test_what_the_feature_cache_holds_is_not_told() -> None:
    source = Listening(100)
    LookAhead(source, lambda samples: samples[samples % 3 != 0]).after(EPOCH, (0, 1), 1)  # type: ignore[arg-type]
    assert source.told == [2, 4, 5, 7, 8]


def test_no_further_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_MOST_BATCHES_AHEAD", 4)
    source = Listening(100)
    LookAhead(source).after(EPOCH, (0, 1), 1)  # type: ignore[arg-type]
    assert source.told == [2, 3, 4]


def test_one_thread_is_at_it() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Listening):
        def expect(self, samples: Any) -> None:
            super().expect(samples)
            begun.set()
            assert go_on.wait(60)

    source = Slow(100)
    ahead = LookAhead(source)  # type: ignore[arg-type]
    other = threading.Thread(target=ahead.after, args=(EPOCH, (0, 1), 7))
    other.start()
    assert begun.wait(60)
    ahead.after(EPOCH, (0, 1), 0)
    go_on.set()
    other.join(60)
    assert source.told == [8, 9]
