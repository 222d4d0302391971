"""The report: how a long one is cut, and the log lines for those who come and go."""

from __future__ import annotations

import json

import pytest

from loader_server.coordinator.report import Comings, stream_report, text_of, worker_report
from loader_server.coordinator.streams.stream_trainers import AttachedTrainer, StreamTrainers
from loader_server.coordinator.workers import RegisteredWorker
from loader_server.leases.lease_table import LeaseRules
from shared.events.trainer_fields import run_name
from shared.wire.message_parts import Cursor
from tests.support.coordinator import View, address, attach, beat


def report(*, workers: int = 0, culprits: int = 0, failing: int = 0, **trainers: int) -> dict[str, object]:
    return {
        "job": "digits",
        "streams": {
            name: {
                "attached": count,
                "trainers": [{"name": f"t{number:04d}"} for number in range(count)],
                "verifiers": [],
            }
            for name, count in trainers.items()
        },
        "workers": [{"name": f"w{number:04d}"} for number in range(workers)],
        "culprits": [{"identity": f"c{number:04d}"} for number in range(culprits)],
        "failing": [{"worker": f"w{number:04d}"} for number in range(failing)],
    }


def trainer(rank, *, trained, read, waited, heard_s=90.0):
    """A trainer of a world of two."""
    return AttachedTrainer(
        peer=b"", attach=attach(rank, 2), cursor=Cursor(0, 0, 2, "plan-1"), batches=100, heard_s=heard_s,
        trained=trained, read=read, waited_permille=waited,
    )  # fmt: skip


def test_a_stream_stands_where_its_last_rank_does_and_waits_like_the_one_that_waits_longest():
    stream = StreamTrainers(View(), group=4, trained=(1, 6))
    later = trainer(1, trained=(1, 8), read=(2, 9), waited=20.4)
    for one in (later, trainer(0, trained=(1, 6), read=(1, 13), waited=60.0, heard_s=91.96)):
        stream.add(one)
    found = stream_report(stream, 4, now_s=92.2)
    trainers = found.pop("trainers")
    assert found == {
        "evaluation": False, "group": 4, "epoch": 1, "number": 6, "read_epoch": 1, "read_number": 13, "batches": 101,
        "plan_digest": "plan-1", "native_code": {}, "waited_permille": 60, "results": None, "evaluations": [],
            "attached": 2,
    }  # fmt: skip
    assert trainers[1] == {
        "rank": 1, "replicas": 1, "world": 2, "name": "host:1", "run": run_name(1001), "epoch": 1, "number": 8,
        "read_epoch": 2, "read_number": 9, "waited_permille": 20, "prefetch": 0, "metrics": "",
        "lately": None, "silent_s": 2.2,
    }  # fmt: skip
    assert [(one["rank"], one["epoch"], one["silent_s"]) for one in trainers] == [(0, 1, 0.2), (1, 1, 2.2)]


def test_in_queue_mode_nobody_has_a_rank_or_a_position():
    stream = StreamTrainers(View(leases=LeaseRules(floor_s=30.0, tries=3)), group=1)
    for rank in (0, 1):
        stream.add(trainer(rank, trained=(1, 0), read=(1, 5 + rank), waited=20.0))
    found = stream_report(stream, 1, now_s=92.2)
    assert (found["read_epoch"], found["read_number"]) == (None, None)
    nothing = dict.fromkeys(("rank", "world", "number", "read_epoch", "read_number"))
    about = {
        "replicas": 1,
        "epoch": 1,
        "waited_permille": 20,
        "prefetch": 0,
        "metrics": "",
        "lately": None,
        "silent_s": 2.2,
    }
    named = [{"name": f"host:{rank}", "run": run_name(1000 + rank)} for rank in (0, 1)]
    assert found["trainers"] == [one | about | nothing for one in named]
    line = {"stream": "train", "trainer": "host:0", "run": run_name(1000)}
    lines = Comings().look({"workers": [], "streams": {"train": found}}, 0.0)
    assert lines[0] == ("trainer is there", line)


def test_of_a_stream_that_nobody_reads_nothing_is_known():
    found = stream_report(StreamTrainers(View(), trained=(0, 3)), 0, now_s=0.0)
    nothing = ("read_epoch", "read_number", "batches", "waited_permille")
    assert [found[key] for key in nothing] == [None] * len(nothing)
    assert (found["attached"], found["number"], found["trainers"]) == (0, 3, [])


def test_a_worker_is_told_of_by_its_last_heartbeat():
    worker = RegisteredWorker(peer=b"", address=address(), heard_s=5.0)
    silent = {"waiting": 0, "building": 0, "built": 0, "masked": 0, "kept": 0, "decoded": 0, "taken": 0}
    silent |= {"remote_bytes": 0, "remote_found": 0, "remote_waited": 0}
    about = {"name": worker.address.worker, "endpoint": worker.address.endpoint, "metrics": "", "lately": None}
    assert worker_report(worker, 5.26) == about | silent | {"silent_s": 0.3}
    worker.beat = beat()
    heard = {"waiting": 1, "building": 2, "built": 3, "masked": 4, "kept": 5, "decoded": 6, "taken": 2}
    heard |= {"remote_bytes": 7 * 2**20, "remote_found": 8, "remote_waited": 9}
    assert worker_report(worker, 5.0) == about | heard | {"silent_s": 0.0}


@pytest.mark.fault(52)
class TestCutting:
    def test_a_short_one_is_whole(self):
        whole = report(workers=3, culprits=2, train=2)
        text = text_of(whole)
        assert json.loads(text) == whole | {"cut": {}}
        assert text_of(whole, most=len(text)) == text
        assert json.loads(text_of(whole, most=len(text) - 1))["cut"] != {}

    @pytest.mark.parametrize("most", [500, 1000, 3000, 18_000])
    def test_a_long_one_fits_and_says_what_it_lacks(self, most):
        whole = report(workers=300, culprits=400, failing=200, train=4, dev=500)
        text = text_of(whole, most)
        assert most - 100 < len(text) <= most
        cut = json.loads(text)
        lacking = {
            "workers": 300 - len(cut["workers"]),
            "culprits": 400 - len(cut["culprits"]),
            "failing": 200 - len(cut["failing"]),
            "trainers": 504 - sum(len(stream["trainers"]) for stream in cut["streams"].values()),
        }
        assert cut["cut"] == {key: count for key, count in lacking.items() if count}
        assert cut["streams"]["dev"]["attached"] == 500

    def test_short_lists_stay_whole_and_the_long_ones_share_the_rest(self):
        cut = json.loads(text_of(report(workers=5, culprits=1000, train=4, dev=1000), most=6000))
        assert len(cut["workers"]) == 5
        assert len(cut["streams"]["train"]["trainers"]) == 4
        assert len(cut["culprits"]) == pytest.approx(len(cut["streams"]["dev"]["trainers"]), rel=0.2)

    def test_what_it_is_cut_from_stays_as_it_is(self):
        whole = report(workers=300, dev=500)
        text_of(whole, most=500)
        assert whole == report(workers=300, dev=500)

    def test_verifiers_are_cut_as_trainers_are(self):
        whole = report(workers=3, train=5)
        whole["streams"]["train"]["verifiers"] = [{"name": f"v{number:04d}"} for number in range(500)]
        cut = json.loads(text_of(whole, 3000))
        assert len(cut["streams"]["train"]["trainers"]) == 5
        assert 0 < len(cut["streams"]["train"]["verifiers"]) == 500 - cut["cut"]["verifiers"]
        assert len(json.dumps(cut)) <= 3000


def present(*workers, trainers=(), waited=()):
    return {
        "workers": [{"name": name, "endpoint": f"tcp://{name}:1"} for name in workers],
        "streams": {
            "train": {
                "waited_permille": max(waited, default=None),
                "trainers": [
                    {"rank": rank, "name": f"gpu:{rank}", "run": "7", "waited_permille": waits}
                    for rank, waits in zip(trainers, waited or [None] * len(trainers), strict=True)
                ],
            }
        },
    }


W0 = {"worker": "w0", "endpoint": "tcp://w0:1"}


def test_each_worker_and_trainer_has_a_line_when_it_comes_and_when_it_goes():
    comings = Comings()
    assert comings.look(present(), 0.0) == []
    assert comings.look(present("w0", trainers=[1]), 1.0) == [
        ("trainer is there", {"stream": "train", "trainer": "gpu:1", "rank": 1, "run": "7"}),
        ("worker is there", W0),
    ]
    assert comings.look(present("w0", trainers=[1]), 2.0) == []
    assert comings.look(present(trainers=[1]), 40.0) == [("worker is gone", W0)]


def test_who_flaps_is_named_once_in_a_while_with_how_often():
    comings = Comings()
    lines = [line for now in range(60) for line in comings.look(present(*["w0"] * (now % 2)), float(now))]
    assert lines == [("worker is there", W0), ("worker is there", {**W0, "changes": 29})]


def test_who_went_within_the_pause_is_named_at_its_end():
    comings = Comings()
    comings.look(present("w0"), 0.0)
    assert comings.look(present(), 5.0) == []
    assert comings.look(present(), 29.9) == []
    assert comings.look(present(), 30.0) == [("worker is gone", {**W0, "changes": 1})]
    assert comings.look(present(), 90.0) == []
    assert comings._logged_s == {}, "nothing is kept of those that stay away"


def test_a_crowd_has_some_lines_and_a_count():
    lines = Comings().look(present(*(f"w{number:04}" for number in range(1300))), 0.0)
    assert len(lines) == 1001
    assert lines[-1] == ("more came or went", {"count": 300})


def test_waiting_that_begins_and_waiting_that_ends_are_a_line_each():
    comings, lines = Comings(), []
    waits = [None, 100, 240, 250, 900, 300, 110, *[120, 240] * 20, 100, 90, None]
    for now_s, waited in enumerate(waits):
        both = present(trainers=[0, 1], waited=[] if waited is None else [waited // 2, waited])
        lines += [(now_s, line) for line in comings.look(both, float(now_s)) if "wait" in line[0]]
    about = {"stream": "train", "trainer": "gpu:1", "rank": 1, "run": "7"}
    assert lines == [
        (3, ("trainers wait for data", {"waited": 0.25, **about})),
        (47, ("trainers wait for data no longer", {"stream": "train", "waited": 0.1, "seconds": 44.0})),
    ]
