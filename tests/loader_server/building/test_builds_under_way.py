"""The building thread, while other workers build what it is to build, and while samples are read."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from loader_server.building import build_thread
from loader_server.building.builder import Builder
from loader_server.building.read_ahead import PendingRead, Prepared, UnreadError, unwatched
from shared.errors import ReadError
from tests.support.in_memory import GatheringSource, MemorySource

if TYPE_CHECKING:
    from collections.abc import Callable

    from loader_server.building.build_counts import Built
    from loader_server.building.build_thread import Outcome
    from shared.wire import messages as m
    from tests.support.build_bench import Bench

# --- samples that are read between builds ---


def test_samples_are_read_between_builds(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes while a batch is built is read after it, and before the next."""
    for name, value in (("_MOMENT_S", 60.0), ("_LONGEST_MOMENT_S", 60.0), ("_UNWAITED", 0)):
        monkeypatch.setattr(build_thread, name, value)
    submitted, order = threading.Event(), list[str]()
    noted = {first: lambda first=first: order.append(f"read {first // 4}") for first in range(4, 16, 4)}
    built = {first: lambda first=first: order.append(f"build {first // 4}") for first in range(4, 16, 4)}
    made = bench(MemorySource(on_read=noted, on_decode={0: lambda: submitted.wait(60), **built}))
    made.thread.submit(made.build(0))
    for number in range(1, 4):
        made.thread.submit(made.build(number))
    submitted.set()
    assert finished(made, 4) == [0, 1, 2, 3]
    assert order == ["read 1", "read 2", "read 3", "build 1", "build 2", "build 3"]


def test_a_build_that_is_cancelled_before_its_turn_is_not_read(bench: Callable[..., Bench]) -> None:
    begun, cancelled, read = threading.Event(), threading.Event(), list[int]()
    first = {0: lambda: (begun.set(), cancelled.wait(60))}
    made = bench(MemorySource(on_read={4: lambda: read.append(4)}, on_decode=first))
    made.thread.submit(made.build(0))
    assert begun.wait(60)
    made.thread.submit(late := made.build(1))
    late.cancelled = True
    cancelled.set()
    assert finished(made, 2) == [0, 1]
    assert read == []


@pytest.mark.parametrize(("at_once", "asked"), [(True, {16}), (False, {2, 3, 4})])
def test_after_a_read_that_took_long_a_few_are_not_waited_for(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, *, at_once: bool, asked: set[int]
) -> None:
    monkeypatch.setattr(build_thread, "_UNWAITED", 4)
    moments_s = list[float]()
    monkeypatch.setattr(PendingRead, "ends_at_once", lambda _, time_s: moments_s.append(time_s) or at_once)
    made = bench()
    for start in range(0, 16, 4):
        made.outcomes(*(made.build(number % 4) for number in range(start, start + 4)))
    # Those that are begun as they come, while reads are slow, are not waited for either.
    assert len(moments_s) in asked
    assert all(0 < one_s <= 0.02 for one_s in moments_s)


# --- batches that another worker is building ---


class Elsewhere(Builder):
    """Its batches with these numbers are being built by another worker; every claim is given back."""

    numbers: frozenset[int] = frozenset()
    claims = releases = 0
    looked: Callable[[], object] = bool

    def claim(self, prepared: Prepared) -> bool:
        self.claims += 1
        self.looked()
        return int(prepared.samples[0]) // 4 not in self.numbers

    def release(self) -> None:
        self.releases += 1


def elsewhere(made: Bench, *numbers: int) -> Elsewhere:
    made.builder.__class__ = Elsewhere
    assert isinstance(made.builder, Elsewhere)
    made.builder.numbers = frozenset(numbers)
    return made.builder


def finished(made: Bench, count: int) -> list[int]:
    """The numbers of so many outcomes, in the order in which they come."""
    done: list[Outcome] = []
    while len(done) < count:
        assert made.woken.acquire(timeout=60)
        done += made.thread.take_outcomes()
    assert [outcome.error for outcome in done] == [None] * count
    return [outcome.build.want.number for outcome in done]


@pytest.mark.parametrize("source", [MemorySource, GatheringSource])
def test_others_go_before_a_batch_that_another_worker_builds(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, source: type[MemorySource]
) -> None:
    monkeypatch.setattr("loader_server.building.build_thread._PATIENCE_S", 1e9)
    made = bench(source())
    builder = elsewhere(made, 0, 2)
    for number in range(4):
        made.thread.submit(made.build(number))
    assert finished(made, 2) == [1, 3], "they are told at once, too"
    assert made.thread.load == 2
    builder.numbers = frozenset([0])
    assert finished(made, 1) == [2]
    builder.numbers = frozenset()
    assert finished(made, 1) == [0]
    assert builder.releases == builder.claims


def test_nobody_waits_for_ever_for_another_worker(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loader_server.building.build_thread._PATIENCE_S", 0.05)
    made = bench()
    elsewhere(made, 0)
    made.thread.submit(made.build(0))
    assert finished(made, 1) == [0]
    assert made.thread.load == 0


def test_a_batch_that_is_wanted_no_longer_is_not_waited_for(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loader_server.building.build_thread._PATIENCE_S", 1e9)
    made = bench()
    elsewhere(made, 0)
    build = made.build(0)
    made.thread.submit(build)
    made.thread.submit(made.build(1))
    assert finished(made, 1) == [1]
    build.cancelled = True
    assert finished(made, 1) == [0]


def test_the_thread_ends_though_another_worker_does_not(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loader_server.building.build_thread._PATIENCE_S", 1e9)
    made = bench()
    looked = threading.Event()
    elsewhere(made, 0).looked = looked.set
    made.thread.submit(made.build(0))
    assert looked.wait(60)
    assert made.thread.close(60.0)


class LeftUnread(Builder):
    """Its batches seem to be there as a whole, and are not when they are to be built."""

    def prepare(self, want: m.Want, begin: Callable[[int], None] = unwatched) -> Prepared:
        return replace(super().prepare(want, begin), is_read=False)

    def build(self, want: m.Want, prepared: Prepared, *args: Any, **how: Any) -> Built:
        if not prepared.is_read:
            raise UnreadError(lambda begin: Builder.prepare(self, want, begin))
        return super().build(want, prepared, *args, **how)


def test_what_has_to_be_read_after_all_is_read_by_those_who_read_and_others_are_built_meanwhile(
    bench: Callable[..., Bench],
) -> None:
    made = bench()
    made.builder.__class__ = LeftUnread
    for number in range(3):
        made.thread.submit(made.build(number))
    assert sorted(finished(made, 3)) == [0, 1, 2]


def test_a_read_that_hangs_after_all_is_an_error_of_its_batch(bench: Callable[..., Bench]) -> None:
    """Were it done by the building thread, it would end the worker, or last for ever."""
    gate, reads = threading.Event(), list[str]()

    def read() -> None:
        reads.append(threading.current_thread().name)
        if len(reads) == 2:
            gate.wait()

    made = bench(MemorySource(on_read={4: read}), read_timeout_s=0.5)
    made.builder.__class__ = LeftUnread
    try:
        (outcome,) = made.outcomes(made.build(1))
    finally:
        gate.set()
    assert isinstance(outcome.error, ReadError)
    assert reads == ["stoker-read"] * 2
