"""What the coordinator said about what limits the job: for how long it held, and when it is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from shared.wire import messages as m
from trainer_client.core.heard_limits import HeardLimits, limit_of_span, limit_text


def answer(limit: str, window_gain: int | None = None) -> m.Limited:
    return m.Limited(limit=limit, who="", loaders_gain=None, worker_gain=None, window_gain=window_gain)


def heard(*limits: str, every_s: float = 0.5) -> HeardLimits:
    """Return what is known once these answers came, one every so many seconds from 0 on."""
    known = HeardLimits(2.0)
    for at, limit in enumerate(limits):
        known.hear(answer(limit), at * every_s)
    return known


def test_nothing_is_known_before_the_first_answer() -> None:
    known = HeardLimits(2.0)
    assert known.window_gain(0.0) is None
    assert known.of_span({}, 100.0, 0.0) is None
    assert known.of_span({}, 0.0, 0.0) is None


def test_a_span_has_the_limit_that_was_heard_for_longest() -> None:
    known = heard(*["trainers"] * 4, *["transforms"] * 9)
    assert known.of_span({}, 6.5, 6.0) == answer("transforms")
    assert known.of_span({}, 6.5, 1e9) == answer("transforms")


def test_what_was_heard_before_the_span_does_not_count() -> None:
    known = heard(*["transforms"] * 50)
    before = known.seconds
    for at in range(50, 60):
        known.hear(answer("wire"), at * 0.5)
    assert known.of_span(before, 5.0, 30.0) == answer("wire")


def test_the_first_answer_and_one_after_silence_count_for_a_timeout_at_most() -> None:
    known = heard("wire", "wire", every_s=100.0)
    assert known.seconds == {"wire": 4.0}


def test_a_span_is_unknown_if_the_coordinator_was_away_for_most_of_it() -> None:
    known = heard(*["wire"] * 10)  # 2 s for the first, and 4.5 s
    assert known.of_span({}, 13.0, 13.0) == answer("wire")
    assert known.of_span({}, 13.1, 13.1) is None


def test_a_span_too_short_for_an_answer_has_the_latest_one_while_it_is_fresh() -> None:
    known = heard("transforms", "reads")
    assert known.of_span(known.seconds, 0.3, 1.0) == answer("reads")
    assert known.of_span(known.seconds, 0.3, 2.5) is None


def test_nobody_is_the_limit_of_a_span_only_if_nothing_else_was_heard() -> None:
    assert limit_of_span({"nobody": 30.0, "wire": 0.5}) == "wire"
    assert limit_of_span({"nobody": 30.0, "wire": 0.0}) == "nobody"
    assert limit_of_span({"nobody": 1.0}) == "nobody"


def test_the_answer_of_a_span_is_the_latest_that_named_its_limit() -> None:
    known = HeardLimits(2.0)
    for at, gain in enumerate((100, 200, 300)):
        known.hear(answer("window", gain), float(at))
    known.hear(answer("wire"), 3.0)
    assert known.of_span({}, 5.0, 3.0) == answer("window", 300)


@pytest.mark.parametrize(("now_s", "gain"), [(1.0, 570), (2.9, 570), (3.0, None)])
def test_the_gain_of_a_larger_window_is_known_while_the_answer_is_fresh(now_s: float, gain: int | None) -> None:
    known = HeardLimits(2.0)
    known.hear(answer("window", 570), 1.0)
    assert known.window_gain(now_s) == gain
    assert known.limit_now(now_s) == ("" if gain is None else "window")


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"limit": "reads", "loaders_gain": 1300, "worker_gain": 390, "window_gain": 570},
         "reads in workers; twice the window +57 %, endless loaders +130 %"),
        ({"limit": "worker", "who": "vm-3", "loaders_gain": None, "worker_gain": 1, "window_gain": 1},
         "worker vm-3, far slower than the others; gain unknown"),
        ({"limit": "worker", "loaders_gain": None, "worker_gain": None, "window_gain": None},
         "workers, of which none builds a batch; gain unknown"),
        ({"limit": "nobody", "loaders_gain": None, "worker_gain": None, "window_gain": None},
         "nobody, no trainer reads; gain unknown"),
        ({"limit": "trainers", "loaders_gain": 10, "worker_gain": 0, "window_gain": 0},
         "trainers; endless loaders would gain nothing"),
    ],
)  # fmt: skip
def test_an_answer_in_words(told: dict[str, Any], text: str) -> None:
    assert limit_text(m.Limited(**{"who": "", **told})) == text
