"""Figures of runs, of several runs together, against limits and against an older test."""

from __future__ import annotations

import pytest

from trainer_client.load_test.conductor import Measured
from trainer_client.load_test.delivery_audit import Discrepancies
from trainer_client.load_test.report.figures import (
    BETTER,
    TITLES,
    LoadLimits,
    broken,
    changes,
    curves_of,
    figures_of,
    shown,
    together,
)


def measured(**how):
    made = Measured(
        **{
            "steps": 100,
            "rows": 6400,
            "nbytes": 1_280_000,
            "wall_s": 2.0,
            "harness_cpu_s": 1.0,
            "audit": Discrepancies(lost=0, repeated=0),
            "compute_s": 9.0,
            "total_s": 10.0,
            "utilisations": {1: 0.8, 0: 1.0},
            **how,
        }
    )
    for time_us in (1000, 1000, 9000):
        made.waits.record(time_us)
        made.by_second.setdefault(0, type(made.waits)()).record(time_us)
    return made


def test_the_figures_of_a_run():
    figures = figures_of(measured(), trainers=2)
    assert figures["trainers"] == 2
    assert (figures["batches"], figures["batches_per_s"], figures["rows_per_s"]) == (100, 50.0, 3200)
    assert figures["mb_per_s"] == 0.64
    assert figures["utilisation"] == 0.9
    assert figures["wait_p50_ms"] == pytest.approx(1, rel=0.04)
    assert figures["wait_max_ms"] == 9.0
    assert figures["harness_cores"] == 0.5
    assert figures["loader_cores"] is None
    assert figures_of(measured(loader_cpu_s=3.0), 2)["loader_cores"] == 1.5
    assert figures_of(measured(compute_s=0.0), 2)["utilisation"] is None


def test_every_figure_has_a_title_and_a_place_in_the_report():
    assert set(figures_of(measured(), 1)) == set(TITLES)
    assert set(BETTER) < set(TITLES)


def test_what_is_drawn_is_in_order():
    curves = curves_of(measured(errors=["rank 3: gone"]))
    assert curves["utilisations"] == [1.0, 0.8]
    assert curves["by_second"][0]["batches"] == 3
    assert curves["wait_curve_ms"][-1][1] == 9.0
    assert curves["errors"] == ["rank 3: gone"]


def test_repeats_are_medians_but_faults_add_up():
    runs = [{"utilisation": use, "lost": lost, "loader_cores": None} for use, lost in ((0.9, 1), (0.5, 0), (0.8, 2))]
    assert together(runs) == {"utilisation": 0.8, "lost": 3, "loader_cores": None}


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (LoadLimits(), []),
        (LoadLimits(max_wait_p99_ms=9.0, min_utilisation=0.9, min_batches_per_s=50), []),
        (LoadLimits(max_wait_p99_ms=8.9), ["wait_p99_ms 9, expected at most 8.9"]),
        (LoadLimits(min_utilisation=0.91), ["utilisation 0.9, expected at least 0.91"]),
        (LoadLimits(min_batches_per_s=51), ["batches_per_s 50, expected at least 51"]),
    ],
)
def test_limits_are_kept_or_named(limits, said):
    assert broken(figures_of(measured(), 1), limits) == said


def test_faults_need_no_limit():
    figures = figures_of(measured(audit=Discrepancies(lost=2, repeated=1), errors=["a"]), 1)
    assert broken(figures, LoadLimits()) == [
        "1 errors, expected none",
        "2 lost, expected none",
        "1 repeated, expected none",
    ]


def test_a_limit_on_what_was_not_measured_is_broken():
    assert broken(figures_of(measured(compute_s=0.0), 1), LoadLimits(min_utilisation=0.1)) == [
        "utilisation not measured, expected at least 0.1"
    ]


def test_changes_know_which_way_is_better():
    before = {"utilisation": 0.8, "wait_p99_ms": 4.0, "lost": 0, "loader_cores": None, "batches_per_s": 10}
    now = {"utilisation": 0.9, "wait_p99_ms": 5.0, "lost": 0, "loader_cores": 1.0, "rows_per_s": 7}
    found = {change.name: (change.better, change.percent) for change in changes(before, now)}
    assert found == {
        "lost": (None, None),
        "utilisation": (True, pytest.approx(12.5)),
        "wait_p99_ms": (False, pytest.approx(25)),
    }


def test_figures_are_shown_for_people():
    assert [shown(value) for value in (None, 1234567, 0.25, 12.0)] == ["-", "1,234,567", "0.25", "12"]
