"""The building thread alone: every build ends as one outcome, whatever happens, and nothing holds it up for ever."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from loader_server.building.crash_trial import Conviction
from shared.errors import MachineError, ReadError
from shared.stations.service_times import READ_AT_A_TIME
from shared.wire.sealing import Sealer
from tests.support.in_memory import GatheringSource, MemorySource
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from tests.support.build_bench import Bench


def raising(error: BaseException) -> Callable[[], object]:
    def raise_it() -> None:
        raise error

    return raise_it


# --- outcomes ---


@pytest.mark.parametrize("source", [MemorySource, GatheringSource])
def test_jobs_end_in_their_order_built_into_their_places(
    bench: Callable[..., Bench], source: type[MemorySource]
) -> None:
    made = bench(source())
    for number, outcome in enumerate(made.outcomes(*(made.build(number) for number in range(4)))):
        assert outcome.built.rows == 4
        assert outcome.payload is made.buffers[number]
        assert outcome.shape.rows == 5
        assert (outcome.sent, outcome.sealed, outcome.error, outcome.convictions) == (None, None, None, ())
        tags = made.builder.prepare(outcome.build.want).layout.arrays(outcome.payload)["tag"]
        assert tags.tolist() == [4 * number, 4 * number + 1, 4 * number + 2, 4 * number + 3, -1]


def _bound(monkeypatch: pytest.MonkeyPatch, soon_s: float, later_s: float) -> None:
    """Say how long builds take that are quick, and how long outcomes of others wait for each other."""
    monkeypatch.setattr("loader_server.building.build_thread._QUICK_S", soon_s)
    monkeypatch.setattr("loader_server.building.build_thread._SOON_S", soon_s)
    monkeypatch.setattr("loader_server.building.build_thread._LATER_S", later_s)


@pytest.mark.parametrize(
    ("bounds_s", "urgent", "woken"),
    [((1e9, 1e9), -1, 4), ((-1.0, 1e9), -1, 2), ((-1.0, 1e9), 1, 3), ((-1.0, -1.0), -1, 6)],
    ids=["of quick builds", "of slow ones", "but one that somebody waits for", "and not for long"],
)
def test_outcomes_are_told_together(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, bounds_s: tuple[float, float], urgent: int, woken: int
) -> None:
    _bound(monkeypatch, *bounds_s)
    gate, begun = threading.Event(), threading.Event()
    made = bench(GatheringSource(on_decode={0: lambda: (begun.set(), gate.wait(60))}))
    for number in range(6):
        made.thread.submit(made.build(number % 4, urgent=number == urgent))
    assert begun.wait(60)
    gate.set()
    while len(made.thread.outcomes) < 6:
        assert made.woken.acquire(timeout=60)
        woken -= 1
    assert made.thread.close(60.0)
    while made.woken.acquire(blocking=False):
        woken -= 1
    assert woken == 0


@pytest.mark.parametrize("attempt", [0, 1], ids=["read", "tried"])
def test_no_outcome_waits_until_the_next_samples_are_read_or_tried(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    _bound(monkeypatch, 1e9, 1e9)
    submitted, gate = threading.Event(), threading.Event()
    hang = {} if attempt else {5: lambda: gate.wait(60)}
    made = bench(MemorySource(on_decode={1: lambda: submitted.wait(60)}, on_read=hang))
    made.trial.after_each = lambda _: gate.wait(60)
    for number in range(4):
        made.thread.submit(made.build(number, attempt=attempt * (number == 1)))
    submitted.set()
    assert made.woken.acquire(timeout=60)
    assert len(made.thread.outcomes) == 1
    gate.set()


@pytest.mark.parametrize(
    ("bounds_s", "before", "after"),
    [((10.0, 10.0), 4, 32), ((1e-9, 10.0), 4, 32), ((1e-9, 1e-9), 4, 4)],
    ids=["quick", "so that some wait for each other", "slow"],
)
def test_it_is_given_more_at_a_time_of_builds_that_are_quick(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, bounds_s: tuple[float, float], before: int, after: int
) -> None:
    _bound(monkeypatch, *bounds_s)
    gate = threading.Event()
    made = bench(GatheringSource(on_decode={0: lambda: gate.wait(60)}))
    made.outcomes(*[made.build(1)] * (3 if before == after else 0))
    assert _given(made, gate) == before
    made.outcomes(*[made.build(1) for _ in range(40)])
    assert _given(made, gate) == after


def _given(made: Bench, gate: threading.Event) -> int:
    """How many builds it takes before the first of them is done."""
    given = []
    while made.thread.has_room:
        given.append(made.build(1 if given else 0))
        made.thread.submit(given[-1])
    gate.set()
    while made.thread.load:
        assert made.woken.acquire(timeout=60)
        made.thread.take_outcomes()
    gate.clear()
    return len(given)


def test_what_goes_by_tcp_is_packed_and_sealed(bench: Callable[..., Bench]) -> None:
    made = bench()
    plain, sealed = made.outcomes(made.build(in_slot=False), made.build(in_slot=False, sealer=Sealer(bytes(32))))
    assert bytes(plain.sent) == plain.payload.tobytes()
    assert plain.sealed is None
    number, buffer = sealed.sealed
    assert number == 1
    assert buffer.nbytes == sealed.payload.nbytes + 16


def _busy() -> None:
    """Use 10 ms of the thread's CPU time."""
    end_s = time.thread_time() + 0.01
    while time.thread_time() < end_s:
        pass


def test_the_cpu_time_of_each_phase_is_that_of_the_thread_that_did_it(bench: Callable[..., Bench]) -> None:
    made = bench(MemorySource(on_read={4: _busy, 5: _busy}, on_decode={6: _busy}))
    in_slot, sent = made.outcomes(made.build(1), made.build(2, in_slot=False))
    effort = in_slot.build.effort
    assert effort.read_cpu_s >= 0.02
    assert effort.build_cpu_s >= 0.01
    assert effort.send_cpu_s == 0
    assert sent.build.effort.read_cpu_s < 0.01, "its own samples' alone"
    assert sent.build.effort.send_cpu_s > 0


def test_the_cpu_time_of_a_read_that_fails_counts_too(bench: Callable[..., Bench]) -> None:
    error = ReadError(expected="a", got="b", where="c", remedy="d")
    made = bench(MemorySource(on_read={9: _busy, 10: raising(error)}))
    (unread,) = made.outcomes(made.build(2))
    assert unread.error is error
    assert unread.build.effort.read_cpu_s >= 0.01
    assert unread.build.effort.build_cpu_s == 0


@pytest.mark.parametrize("source", [MemorySource, GatheringSource])
def test_a_want_is_queued_until_its_samples_are_read_or_it_is_built(
    bench: Callable[..., Bench], source: type[MemorySource]
) -> None:
    made = bench(source())
    build = made.build()
    build.accepted_s -= 5
    assert build.effort.queued_s is None
    (outcome,) = made.outcomes(build)
    assert outcome.build.effort.queued_s is not None
    assert 5 <= outcome.build.effort.queued_s < 65
    assert outcome.build.effort.read_cpu_s > 0


def test_a_cancelled_job_ends_as_neither_and_nobody_waits_for_its_bytes(bench: Callable[..., Bench]) -> None:
    gate = threading.Event()
    made = bench(MemorySource(on_read={5: gate.wait}))
    build = made.build()
    build.cancelled = True
    (outcome,) = made.outcomes(build)
    gate.set()
    assert (outcome.built, outcome.error, outcome.build.effort.queued_s) == (None, None, None)
    assert made.buffers == []


@pytest.mark.parametrize("error", [ReadError(expected="a", got="b", where="c", remedy="d"), SystemExit(3)])
def test_whatever_is_raised_is_an_outcome_and_the_next_job_is_built(
    bench: Callable[..., Bench], error: BaseException
) -> None:
    made = bench(MemorySource(on_read={5: raising(error)}))
    failed, built = made.outcomes(made.build(1), made.build(2))
    assert (failed.error, failed.built) == (error, None)
    assert built.built.rows == 4


def test_what_a_place_to_build_in_raises_is_an_outcome_too(bench: Callable[..., Bench]) -> None:
    def no_place(_nbytes: int) -> np.ndarray:
        raise KeyboardInterrupt

    made = bench()
    build = made.build()
    build.buffer = no_place
    failed, built = made.outcomes(build, made.build(2))
    assert isinstance(failed.error, KeyboardInterrupt)
    assert built.built.rows == 4


def test_a_read_that_hangs_is_an_error_and_the_next_job_is_built(bench: Callable[..., Bench]) -> None:
    gate = threading.Event()
    made = bench(MemorySource(on_read={5: gate.wait}), read_timeout_s=0.5)
    failed, built = made.outcomes(made.build(1), made.build(2))
    gate.set()
    assert isinstance(failed.error, ReadError)
    assert failed.error.where == "sample-5"
    assert built.built.rows == 4


# --- the deadline ---


def test_the_deadline_ends_with_each_batch_also_with_one_that_fails(bench: Callable[..., Bench]) -> None:
    made = bench(MemorySource(on_decode={5: raising(MemoryError())}))
    made.outcomes(made.build(1), made.build(2))
    assert made.steps.of_batches == [0, 1]  # packing and sealing is a step


def test_it_does_not_run_while_samples_are_tried(bench: Callable[..., Bench]) -> None:
    made = bench()
    made.trial.after_each = lambda sample: made.steps.of_batches.append(f"tried {sample}")
    made.outcomes(made.build(2), made.build(1, attempt=1))
    assert made.steps.of_batches == [1, "tried 4", "tried 5", "tried 6", "tried 7", 1]


# --- trials ---


def test_a_first_attempt_tries_nobody(bench: Callable[..., Bench]) -> None:
    made = bench()
    made.outcomes(made.build())
    assert made.trial.tried == []


@pytest.mark.parametrize("source", [MemorySource, GatheringSource])
def test_after_a_death_the_samples_are_tried_with_their_bytes_and_the_convicted_masked(
    bench: Callable[..., Bench], source: type[MemorySource]
) -> None:
    made = bench(source(on_decode={5: raising(AssertionError("it was decoded"))}))
    made.trial.kill = {5}
    (outcome,) = made.outcomes(made.build(attempt=1, epoch=3))
    assert made.trial.tried == [(3, 4, b"\5"), (3, 5, b"\6"), (3, 6, b"\7"), (3, 7, b"\x08")]
    assert outcome.convictions == (Conviction(5, "file-5", "signal SIGSEGV, signal SIGSEGV"),)
    assert (outcome.built.rows, outcome.built.masked) == (3, 1)
    assert outcome.built.reason.startswith("sample-5: kills_decoder")


def test_an_empty_place_has_nobody_to_try(bench: Callable[..., Bench]) -> None:
    made = bench()
    (outcome,) = made.outcomes(made.build(attempt=1, empty=True))
    assert outcome.built.rows == 0
    assert made.trial.tried == []


def test_known_culprits_are_not_tried_nor_those_that_become_known_meanwhile(bench: Callable[..., Bench]) -> None:
    made = bench()
    made.builder.culprits.find("file-4")
    made.trial.after_each = lambda sample: made.builder.culprits.find("file-6")
    (outcome,) = made.outcomes(made.build(attempt=1))
    assert [sample for _, sample, _ in made.trial.tried] == [5, 7]
    assert outcome.built.masked == 2


def test_a_job_that_is_cancelled_while_it_is_tried_ends_soon_and_what_was_found_counts(
    bench: Callable[..., Bench],
) -> None:
    made = bench()
    made.trial.kill = {5}
    build = made.build(attempt=1)
    made.trial.after_each = lambda sample: setattr(build, "cancelled", sample == 5)
    (outcome,) = made.outcomes(build)
    assert [sample for _, sample, _ in made.trial.tried] == [4, 5]
    assert (outcome.built, outcome.error, len(outcome.convictions)) == (None, None, 1)
    assert made.buffers == []


def test_a_machine_that_fails_while_it_is_tried_builds_nothing_and_what_was_found_counts(
    bench: Callable[..., Bench],
) -> None:
    made = bench()
    made.trial.kill = {5}
    made.trial.error = MachineError(expected="a", got="b", where="c", remedy="d")
    (outcome,) = made.outcomes(made.build(attempt=1))
    assert outcome.error is made.trial.error
    assert [one.sample for one in outcome.convictions] == [5]
    assert made.buffers == []


# --- how busy it is ---


def test_it_is_busy_while_it_has_a_build_in_hand_and_idle_while_it_waits_for_one(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that a test moves: 3 s without a build, 5 s with one that is not done yet, 7 s without one again."""
    gate = threading.Event()
    began = threading.Event()
    made = bench(MemorySource(on_decode={5: lambda: began.set() or gate.wait(60)}))
    wait_until(lambda: made.thread._idle[1] is not None, "it waits")
    moved_s, clock = [0.0], time.monotonic
    monkeypatch.setattr("loader_server.building.build_thread.time.monotonic", lambda: clock() + moved_s[0])
    before_s = made.thread.busy_s()
    moved_s[0] = 3.0
    assert made.thread.busy_s() - before_s < 2
    made.thread.submit(made.build())
    assert began.wait(60)
    moved_s[0] = 8.0
    assert 5 <= made.thread.busy_s() - before_s < 7.5
    gate.set()
    wait_until(lambda: made.thread.outcomes and made.thread._idle[1] is not None, "it waits again")
    moved_s[0] = 15.0
    assert 5 <= made.thread.busy_s() - before_s < 11


def test_it_is_given_enough_for_all_readers_while_reads_are_slow(bench: Callable[..., Bench]) -> None:
    """Six reads for four readers; with the builds that are read it has no more than ten in all."""
    gate = threading.Event()
    made = bench(MemorySource(on_read=dict.fromkeys(range(200), lambda: gate.wait(60))))
    made.thread.submit(made.build(0))
    wait_until(lambda: made.thread._awaited[1] is not None and made.thread._readers.unread, "it waits for a read")
    given = 1
    while made.thread.has_room:
        made.thread.submit(made.build(given % 2))
        given += 1
    assert given == READ_AT_A_TIME + 2 == made.thread._readers.unread
    gate.set()
    wait_until(lambda: len(made.thread.outcomes) == given, "all are built")
    assert made.thread._readers.unread == 0
    assert not made.thread.has_room, "outcomes that nobody has taken count, as before"
    made.thread.take_outcomes()
    assert made.thread.has_room


def test_reads_begin_while_an_earlier_one_is_waited_for(bench: Callable[..., Bench]) -> None:
    gate, began = threading.Event(), threading.Event()
    made = bench(MemorySource(on_read={1: lambda: gate.wait(60), 5: began.set}))
    made.thread.submit(made.build(0))
    wait_until(lambda: made.thread.awaited_s() > 0.1, "it waits for the first read")
    assert made.thread._awaited[1] is not None
    made.thread.submit(made.build(1))
    assert began.wait(60), "the second is read although the thread waits"
    gate.set()
    wait_until(lambda: len(made.thread.outcomes) == 2, "both are built")
    assert [outcome.build.want.number for outcome in made.thread.take_outcomes()] == [0, 1]
    assert made.thread._awaited[1] is None, "it waits for none any more"
    assert 0.1 < made.thread.awaited_s() <= made.thread.busy_s()


# --- its end ---


def test_close_waits_for_the_job_in_hand_and_says_whether_it_ended(bench: Callable[..., Bench]) -> None:
    gate = threading.Event()
    made = bench(MemorySource(on_decode={5: gate.wait}))
    made.thread.submit(made.build())
    assert not made.thread.close(0.01)
    assert made.trial.closed == 0  # it may be in use
    gate.set()
    assert made.thread.close(60.0)
    assert made.trial.closed == 1
    assert len(made.thread.take_outcomes()) == 1
