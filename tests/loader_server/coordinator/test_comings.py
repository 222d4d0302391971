"""Lines about who comes and goes, from one report after another; the clock is the test's."""

from __future__ import annotations

from loader_server.coordinator.comings import Comings


def report(*workers, trainers=()):
    return {
        "workers": [{"name": name, "endpoint": f"tcp://{name}:1"} for name in workers],
        "streams": {"train": {"trainers": [{"rank": rank, "name": f"gpu:{rank}"} for rank in trainers]}},
    }


W0 = {"worker": "w0", "endpoint": "tcp://w0:1"}


def test_each_worker_and_trainer_has_a_line_when_it_comes_and_when_it_goes():
    comings = Comings()
    assert comings.look(report(), 0.0) == []
    assert comings.look(report("w0", trainers=[1]), 1.0) == [
        ("trainer is there", {"stream": "train", "rank": 1, "trainer": "gpu:1"}),
        ("worker is there", W0),
    ]
    assert comings.look(report("w0", trainers=[1]), 2.0) == []
    assert comings.look(report(trainers=[1]), 40.0) == [("worker is gone", W0)]


def test_who_flaps_is_named_once_in_a_while_with_how_often():
    comings = Comings()
    lines = [line for now in range(60) for line in comings.look(report(*["w0"] * (now % 2)), float(now))]
    assert lines == [("worker is there", W0), ("worker is there", {**W0, "changes": 29})]


def test_who_went_within_the_pause_is_named_at_its_end():
    comings = Comings()
    comings.look(report("w0"), 0.0)
    assert comings.look(report(), 5.0) == []
    assert comings.look(report(), 29.9) == []
    assert comings.look(report(), 30.0) == [("worker is gone", {**W0, "changes": 1})]
    assert comings.look(report(), 90.0) == []
    assert comings._told_s == {}, "nothing is kept of those that stay away"


def test_a_crowd_has_some_lines_and_a_count():
    lines = Comings().look(report(*(f"w{number:03}" for number in range(300))), 0.0)
    assert len(lines) == 21
    assert lines[-1] == ("more came or went", {"count": 280})
