"""What limits a job, from a coordinator's report."""

from __future__ import annotations

import pytest

from shared.stations.limit import sentence
from shared.stations.reported import limit_of_report, limits_of_streams, queued_s_of_report


def worker(name="w0", *, built=100, build_s=0.045, read_s=0.001, over=("5", "30"), held_up_s=0.0, throttled_s=0.0):
    sums = {
        "over_s": 5.0, "built": built, "busy_us": 1e6 * built * (build_s + 0.001), "awaited_us": 1e3 * built,
        "read_us": 1e6 * built * read_s, "held_up_us": 1e6 * built * held_up_s,
        "throttled_us": 1e6 * throttled_s, "queued_us": 2e4 * built,
    }  # fmt: skip
    return {"name": name, "lately": dict.fromkeys(over, sums)}


def trainer(name="t0", *, batches=100, waited_s=0.0, computed_s=0.0, prefetch=8):
    sums = {
        "over_s": 5.0, "batches": batches, "waited_us": 1e6 * waited_s, "wire_us": 0.0,
        "computed_us": 1e6 * computed_s * batches,
    }  # fmt: skip
    return {"name": name, "prefetch": prefetch, "lately": {"5": sums, "30": sums}}


def report(workers, trainers, *, queue=None):
    return {"workers": workers, "streams": {"train": {"trainers": trainers, "queue": queue}}}


def test_a_trainer_that_never_waits_is_the_limit():
    verdict = limit_of_report(report([worker(build_s=0.01)], [trainer()]))
    assert (verdict.limit, verdict.busy) == ("trainers", 1.0)
    assert verdict.gains is not None


def test_workers_that_build_all_the_time_are_the_limit():
    verdict = limit_of_report(report([worker(build_s=0.05)], [trainer(waited_s=4.0)]))
    assert verdict.limit == "transforms"
    assert verdict.gains is not None
    assert verdict.gains.worker_more == pytest.approx(1.0, abs=0.05)


def test_a_job_without_heartbeats_is_nobodys():
    nothing = {"name": "x", "prefetch": 8, "lately": None}
    assert limit_of_report(report([nothing], [nothing])).limit == "nobody"


def test_gains_are_those_of_now_while_the_longer_time_mixes_two_jobs():
    mixed = worker(build_s=0.05)
    mixed["lately"]["30"] = worker(build_s=0.02)["lately"]["30"]
    verdict = limit_of_report(report([mixed], [trainer(waited_s=4.0)]))
    assert verdict.limit == "transforms"
    assert verdict.gains is not None


def test_a_rank_that_tells_of_longer_computation_is_named():
    ranks = [trainer("t0", computed_s=0.01), trainer("t1", computed_s=0.045)]
    verdict = limit_of_report(report([worker(build_s=0.001)], ranks))
    assert (verdict.limit, verdict.who) == ("rank", "t1")
    assert verdict.gains is not None
    assert verdict.gains.endless_loaders == pytest.approx(0.0, abs=0.03)


def test_ranks_in_step_that_do_not_tell_leave_the_rank_unknown():
    verdict = limit_of_report(report([worker(build_s=0.001)], [trainer("t0"), trainer("t1")]))
    assert (verdict.limit, verdict.is_rank_known) == ("trainers", False)


def test_trainers_of_a_queue_are_never_in_step():
    verdict = limit_of_report(report([worker(build_s=0.001)], [trainer("t0"), trainer("t1")], queue={"leased": 1}))
    assert verdict.is_rank_known


def test_a_rank_that_waits_for_data_does_not_make_the_steps_of_others_longer():
    # Both take 10 ms for a step of 50; one waits for data, the other for it.
    ranks = [trainer("t0", waited_s=4.0), trainer("t1", waited_s=0.5)]
    verdict = limit_of_report(report([worker(build_s=0.025, built=200)], ranks))
    assert verdict.limit == "transforms"
    assert verdict.gains is not None
    assert verdict.gains.endless_loaders == pytest.approx(4.0, abs=0.3)


def test_workers_without_cpu_make_the_host_the_limit():
    verdict = limit_of_report(report([worker(build_s=0.05, held_up_s=0.03)], [trainer(waited_s=4.0)]))
    assert verdict.limit == "host"


def test_workers_whose_quota_is_used_up_make_the_host_the_limit_and_the_sentence_says_so():
    verdict = limit_of_report(report([worker(build_s=0.05, throttled_s=3.0)], [trainer(waited_s=4.0)]))
    assert (verdict.limit, verdict.throttled) == ("host", pytest.approx(0.6))
    assert "CPU quota, used up 60 % of the time" in sentence(verdict)


def test_a_host_without_a_quota_is_called_full():
    verdict = limit_of_report(report([worker(build_s=0.05, held_up_s=0.03)], [trainer(waited_s=4.0)]))
    assert "which has no more CPU" in sentence(verdict)


def test_a_stream_that_nobody_reads_is_limited_by_nobody():
    job = report([worker(build_s=0.05)], [trainer(waited_s=4.0)])
    job["streams"]["dev"] = {"trainers": [trainer(batches=0)], "queue": None}
    job["streams"]["idle"] = {"trainers": [{"name": "x", "prefetch": 8, "lately": None}], "queue": None}
    limits = limits_of_streams(job)
    assert {name: limit.limit for name, limit in limits.by_stream.items()} == {
        "train": "transforms", "dev": "nobody", "idle": "nobody",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("workers", "trainers", "gain"),
    [
        # Trainers step for 10 ms and workers build for 50: five times the rate, if enough of them come.
        ([worker(build_s=0.05)], [trainer(waited_s=4.0)], pytest.approx(4.0, abs=0.3)),
        # A read takes 0.4 s and the window is 8 batches, which one worker reads half of at a time: 20 a second at most.
        (
            [worker(read_s=0.4, build_s=0.001, built=50)],
            [trainer(batches=50, waited_s=4.0)],
            pytest.approx(1.0, abs=0.1),
        ),
        ([worker(read_s=0.4, build_s=0.001)] * 2, [trainer(waited_s=4.0)], pytest.approx(0.0, abs=0.1)),
        ([worker(build_s=0.01)], [trainer()], 0.0),
        ([worker(build_s=0.01)], [trainer(waited_s=4.0)], None),
        ([], [trainer(waited_s=4.0)], None),
        ([worker()], [], None),
    ],
)
def test_what_several_times_as_many_workers_would_gain(workers, trainers, gain):
    assert limits_of_streams(report(workers, trainers)).workers_gain == gain


def test_how_long_wants_wait_is_a_mean_over_all_workers():
    assert queued_s_of_report(report([worker(), worker(built=300)], [])) == pytest.approx(0.02)
    assert queued_s_of_report(report([worker(built=0)], [])) is None
    assert queued_s_of_report(report([{"name": "w", "lately": None}], [])) is None
