"""The line that tells how training is going, and whose figures it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainer_client.training.loop.teller import Figures, Rates, Scope, progress_line, seconds_left

RATES = Rates(steps_per_s=4.0, waiting=0.25, padding=0.125)


def test_one_process_has_all_figures():
    assert progress_line((0.5, 12), 2.5, RATES, 65) == (
        "epoch 0.50, step 12: loss 2.5000, 4.0 steps/s, waiting 25.0%, padding 12.5%, 0:01:05 left"
    )


@pytest.mark.parametrize(
    ("scope", "figures"),
    [
        (Scope.FEED, "loss 2.5000, 4.0 steps/s; this process: waiting 25.0%, padding 12.5%; 0:01:05 left"),
        (Scope.SHARE, "4.0 steps/s; this process: loss 2.5000, waiting 25.0%, padding 12.5%; 0:01:05 left"),
    ],
)
def test_where_there_are_several_it_says_what_is_of_this_one(scope, figures):
    assert progress_line((0.5, 12), 2.5, RATES, 65, scope) == f"epoch 0.50, step 12: {figures}"


def test_without_samples_there_is_no_loss():
    line = progress_line((1.0, 3), None, RATES, None)
    assert line == "epoch 1.00, step 3: no samples, 4.0 steps/s, waiting 25.0%, padding 12.5%"


def test_rates_are_what_lies_between_two_moments():
    before = Figures(at_s=10.0, steps=4, waited_s=1.0, sample_bytes=100, padded_bytes=200)
    now = Figures(at_s=12.0, steps=10, waited_s=2.0, sample_bytes=175, padded_bytes=300)
    assert Rates.between(before, now) == Rates(steps_per_s=3.0, waiting=0.5, padding=0.25)
    assert Rates.between(before, before).padding == 0.0


def test_the_first_limit_says_how_long_it_takes():
    assert seconds_left(2.0, (10, None, 60.0), epoch_steps=None) == 5.0
    assert seconds_left(2.0, (None, 1.5, None), epoch_steps=8) == 6.0
    assert seconds_left(0.0, (10, None, 60.0), epoch_steps=None) == 60.0
    assert seconds_left(0.0, (10, None, None), epoch_steps=None) is None


def test_a_line_says_what_limits_a_job_that_waits():
    line = progress_line((0.5, 12), 2.5, replace(RATES, limit="reads"), None)
    assert f"waiting {RATES.waiting:.1%} (limit: reads), padding" in line
