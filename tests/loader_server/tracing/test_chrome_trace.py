"""The trace, against the rules of Chrome's format."""

from __future__ import annotations

import json
from collections import defaultdict

from loader_server.tracing.chrome_trace import chrome_trace
from loader_server.tracing.lives import lives_of
from shared.tracing.ring import StampKind
from tests.support.stamped_jobs import StampedProcess, plain_life

__all__ = ["refuse_bad_trace"]


def refuse_bad_trace(trace):
    """Raise AssertionError for a trace that breaks a rule of the format, or that a viewer would show wrongly."""
    named, rows, arrows = set(), defaultdict(list), defaultdict(list)
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "M", "s", "t", "f")
        assert type(event["pid"]) is type(event["tid"]) is int
        assert event["ts"] >= 0
        assert event["name"]
        if event["ph"] == "M":
            named.add((event["name"], event["pid"], event["tid"]))
        elif event["ph"] == "X":
            assert event["dur"] >= 0
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        else:
            arrows[event["id"]].append(event)
    for (pid, tid), spans in rows.items():
        assert ("process_name", pid, 0) in named
        assert ("thread_name", pid, tid) in named
        spans.sort()
        ends = [end for _, end in spans]
        assert all(begin >= end - 0.002 for (begin, _), end in zip(spans[1:], ends, strict=False)), "spans overlap"
    for steps in arrows.values():
        assert [step["ph"] for step in steps] == ["s", *"t" * (len(steps) - 2), "f"]
        assert [step["ts"] for step in steps] == sorted(step["ts"] for step in steps)
        assert all("bp" in step for step in steps if step["ph"] != "s")
        for step in steps:
            spans = rows[step["pid"], step["tid"]]
            assert any(begin <= step["ts"] <= end for begin, end in spans), "an arrow ends at no span"


def job(batches: int = 5):
    trainer, worker = StampedProcess("gpu-1:7", 100, "train"), StampedProcess("worker-3", 200)
    for number in range(batches):
        plain_life(trainer, worker, number=number, slot=number, begin_ms=1000.0 + 10 * number)
    return [trainer.gathered(), worker.gathered()]


def test_each_process_is_a_track_and_spans_that_overlap_have_rows_of_their_own():
    processes = job()
    trace = json.loads(json.dumps(chrome_trace(processes, lives_of(processes))))
    refuse_bad_trace(trace)
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert names == ["trainer train rank 0: gpu-1:7", "worker-3"]
    wanted = {event["tid"] for event in trace["traceEvents"] if event.get("cat") == "wanted" and event["ph"] == "X"}
    assert len(wanted) == 5


def test_an_arrow_leads_from_the_want_by_its_worker_to_the_step():
    processes = job(1)
    events = chrome_trace(processes, lives_of(processes))["traceEvents"]
    arrow = [(event["ph"], event["pid"], event["ts"]) for event in events if event["ph"] in "stf"]
    assert arrow == [("s", 1, 0.0), ("t", 2, 21_000.0), ("f", 1, 45_000.0)]
    spans = {event["cat"]: (event["ts"], event["dur"]) for event in events if event["ph"] == "X"}
    assert spans == {
        "wanted": (0.0, 43_000.0), "queued": (1000.0, 20_000.0), "building": (21_000.0, 18_000.0),
        "sending": (39_000.0, 3000.0), "ready": (44_000.0, 1000.0), "training": (45_000.0, 55_000.0),
    }  # fmt: skip


def test_a_batch_asked_twice_and_one_that_never_came():
    processes = job(2)
    trainer = StampedProcess("gpu-2:9", 101, "train", rank=1)
    trainer.at(StampKind.ASKED, 900, peer=999)
    plain_life(trainer, StampedProcess("worker-9", 299), slot=2)
    trainer.at(StampKind.ASKED, 2000, 8, peer=999)
    processes.append(trainer.gathered())
    trace = chrome_trace(processes, lives_of(processes))
    refuse_bad_trace(trace)
    assert trace["otherData"] == {"missing": {}, "clock_error_ms": {}}


def test_a_job_without_batches_is_a_trace_too():
    trainer = StampedProcess("gpu-1:7", 100, "train")
    trace = chrome_trace([trainer.gathered("no answer within 5 s")], [])
    refuse_bad_trace(trace)
    assert trace["otherData"]["missing"] == {"gpu-1:7": "no answer within 5 s"}


def two_hosts(*, pings: bool):
    processes = [StampedProcess("gpu-1:7", 100, "train"), StampedProcess("worker-3", 200)]
    other = StampedProcess("gpu-2:7", 101, "train", rank=1, boot="other", ahead_ms=5000)
    for trainer in (processes[0], other):
        plain_life(trainer, processes[1], number=trainer.process.rank, slot=trainer.process.rank)
    if pings:
        other.ping(StampKind.PINGED, 500, 1)
        processes[1].ping(StampKind.PING_CAME, 500.2, 1, peer=101)
        other.ping(StampKind.PONGED, 500.4, 1)
    return [process.gathered() for process in (*processes, other)]


def test_trainers_of_two_hosts_are_on_one_clock():
    processes = two_hosts(pings=True)
    trace = chrome_trace(processes, lives_of(processes))
    refuse_bad_trace(trace)
    begun = {event["pid"]: event["ts"] for event in trace["traceEvents"] if event.get("cat") == "wanted"}
    assert begun == {1: 0.0, 3: 0.0}
    assert trace["otherData"] == {"missing": {}, "clock_error_ms": {"gpu-2:7": 0.2}}


def test_a_trainer_whose_clock_is_not_known_is_left_out_and_named():
    processes = two_hosts(pings=False)
    trace = chrome_trace(processes, lives_of(processes))
    assert {event["pid"] for event in trace["traceEvents"] if event["ph"] == "X"} == {1, 2}
    assert trace["otherData"]["missing"] == {"gpu-2:7": "its clock could not be compared: no Ping is kept"}
