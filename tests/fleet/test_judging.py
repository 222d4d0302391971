"""What counts as a fault of an engine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fleet.judging import Expected, faults_of

_EXPECTED = Expected(
    digest="aa", batches=10, longest_gap_s=2.5, found_within_s=5.0, right_within_s=60.0, most_changes=3
)


def _engine(**change: Any) -> dict[str, Any]:
    case = {"digest": "aa", "gap_s": 2.5, "lost": 0, "repeated": 0}
    return {"digest": "aa", "batches": 10, "lost_node": case, "moved_coordinator": case | {"found_s": 5.0}} | change


def _case(**change: Any) -> dict[str, Any]:
    return {"digest": "aa", "gap_s": 1.0, "lost": 0, "repeated": 0} | change


def _scale(**change: Any) -> dict[str, Any]:
    back = {"right_after_s": 60.0, "changes": 3, "reversals": 0}
    return back | change | {"back": back | change.get("back", {})}


def test_equal_digests_within_the_bounds_are_no_fault() -> None:
    least = {"digest": "aa", "batches": 10, "lost_node": _case()}
    slowly_back = _scale(back={"right_after_s": 100.0})
    ray = least | {"lost_coordinator": _case(), "scale": slowly_back, "submitted": {"digest": "aa"}}
    assert faults_of({"hosts": _engine(), "slurm": least, "ray": ray}, _EXPECTED) == []


def test_an_engine_with_a_reference_of_its_own_is_compared_with_that() -> None:
    case = _case(digest="cc")
    engine = {"reference": "cc", "digest": "cc", "batches": 10, "lost_node": case, "evicted_pod": case}
    assert faults_of({"kubernetes": engine}, _EXPECTED) == []
    assert len(faults_of({"kubernetes": engine | {"reference": "aa"}}, _EXPECTED)) == 3


@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        ({"error": "no daemon"}, "it failed: no daemon"),
        (_engine(digest="bb"), "undisturbed: digest bb instead of aa"),
        (_engine(batches=9), "undisturbed: 9 batches instead of 10"),
        (_engine(lost_node={}), "lost_node: not measured"),
        (_engine(lost_node=_case(digest="bb")), "lost_node: digest bb instead of aa"),
        (_engine(lost_node=_case(lost=1)), "lost_node: 1 batches lost"),
        (_engine(lost_node=_case(repeated=2)), "lost_node: 2 batches repeated"),
        (_engine(lost_node=_case(lost=None)), "lost_node: None batches lost"),
        (_engine(lost_node=_case(gap_s=2.6)), "lost_node: a gap of 2.6 s, more than 2.5 s"),
        (_engine(moved_coordinator=_case(found_s=5.1)), "moved_coordinator: found after 5.1 s, more than 5 s"),
        (_engine(evicted_pod=_case(repeated=1)), "evicted_pod: 1 batches repeated"),
        (_engine(moved_coordinator=_case(digest="bb")), "moved_coordinator: digest bb instead of aa"),
        (_engine(lost_coordinator=_case(lost=3)), "lost_coordinator: 3 batches lost"),
        (_engine(submitted={"digest": "bb"}), "submitted: digest bb instead of aa"),
        (_engine(scale=_scale(right_after_s=60.1)), "scale: right after 60.1 s, more than 60 s"),
        (_engine(scale=_scale(changes=4)), "scale: 4 changes, more than 3"),
        (_engine(scale=_scale(reversals=1)), "scale: 1 changes went back"),
        (_engine(scale=_scale(back={"changes": 5})), "scale back: 5 changes, more than 3"),
    ],
)
def test_each_fault_is_said(engine: dict[str, Any], fault: str) -> None:
    assert faults_of({"hosts": engine}, _EXPECTED) == [f"hosts, {fault}"]
