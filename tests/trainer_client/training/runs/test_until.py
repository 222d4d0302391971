"""What a run is to do and what it has done: targets, totals, means, and the time that its ranks agree on."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import SettingsError
from trainer_client.training.runs.printed_lines import finished_line, spell_time
from trainer_client.training.runs.until import AgreedTime, NotedMeans, RunLimits, RunTotals, Until

THERE = RunTotals(epochs=5, steps=70, samples=900, seconds=10.0)


@pytest.mark.parametrize(
    ("until", "limits"),
    [
        (Until(epochs=75), RunLimits(epochs=75, steps=None, max_time_s=None)),
        (Until(epochs="+10"), RunLimits(epochs=15, steps=None, max_time_s=None)),
        (Until(epochs="75", steps="+30"), RunLimits(epochs=75, steps=100, max_time_s=None)),
        (Until(steps=0, max_time_s=2.5), RunLimits(epochs=None, steps=0, max_time_s=2.5)),
    ],
)
def test_a_plus_counts_from_what_is_there(until, limits):
    assert until.from_there(THERE) == limits


@pytest.mark.parametrize(
    ("limits", "since_s", "reason"),
    [
        (RunLimits(epochs=6, steps=71, max_time_s=9), 8.9, ""),
        (RunLimits(epochs=5, steps=71, max_time_s=9), 8.9, "5 epochs are reached"),
        (RunLimits(epochs=6, steps=70, max_time_s=9), 8.9, "70 steps are reached"),
        (RunLimits(epochs=6, steps=71, max_time_s=9), 9.0, "0:00:09 are over"),
        (RunLimits(epochs=4, steps=None, max_time_s=None), 1e9, "4 epochs are reached"),
    ],
)
def test_the_first_limit_that_is_reached_ends_it(limits, since_s, reason):
    assert limits.reached(THERE, since_s) == reason


@pytest.mark.parametrize("said", ["ten", "+", "-3", "", "+-1", "1.5", 2.0, True, "²"])
@pytest.mark.parametrize("name", ["epochs", "steps"])
def test_what_is_no_number_of_epochs_or_steps_is_refused(name, said):
    with pytest.raises(SettingsError, match=f'expected a number of {name}, or "[+]" and how many more, got'):
        Until(**{name: said})


def test_no_limit_at_all_and_no_time_are_refused():
    with pytest.raises(SettingsError, match="expected epochs, steps or max_time_s, got none of them"):
        Until()
    for seconds in (0, -1.0, math.inf, math.nan):
        with pytest.raises(SettingsError, match=rf"expected max_time_s above 0 and finite, got {seconds}\. "):
            Until(max_time_s=seconds)


def test_limits_and_totals_in_words():
    assert str(RunLimits(epochs=75, steps=100, max_time_s=90_000)) == "75 epochs or 100 steps or for 25:00:00"
    assert str(RunLimits(epochs=None, steps=0, max_time_s=None)) == "0 steps"
    line = finished_line(THERE.words(), 3 * 86_400 + 3_599.9, "5 epochs are reached")
    assert line == "FINISHED: 5 epochs, 70 steps, 900 samples, 72:59:59: 5 epochs are reached"
    assert THERE.words(is_share=True) == ["5 epochs", "70 steps", "900 samples here"]
    assert [spell_time(seconds) for seconds in (0, 59.99, 61, 86_400)] == ["0:00:00", "0:00:59", "0:01:01", "24:00:00"]


def test_totals_come_back_from_their_plain_values():
    assert RunTotals.of(THERE.state()) == THERE
    assert RunTotals.of({"epochs": 3}) == RunTotals(epochs=3)


def test_a_checkpoint_beyond_what_was_asked_for_is_no_run_that_reached_it():
    there = RunTotals(epochs=5, steps=110)
    assert Until(epochs=3).from_there(there).passed(there) == (
        "nothing was left to train, as the checkpoint has 5 epochs and 3 were asked for"
    )
    assert "has 110 steps and 100 were asked for" in Until(steps=100).from_there(there).passed(there)
    for until in (Until(epochs=5), Until(epochs="+0"), Until(steps=110), Until(max_time_s=3)):
        assert until.from_there(there).passed(there) == ""


# --- means that a loop notes, batch by batch ---

BATCHES = st.lists(st.tuples(st.integers(0, 9), st.floats(-9, 9)), max_size=12)


@given(BATCHES, st.sets(st.integers(0, 11)))
def test_means_are_over_rows_and_the_same_wherever_it_is_resumed(batches, restarts):
    whole, resumed = NotedMeans(), NotedMeans()
    for number, (rows, loss) in enumerate(batches):
        if number in restarts:
            resumed = NotedMeans.of(json.loads(json.dumps(resumed.state())))
        for one in (whole, resumed):
            one.add({"loss": loss}, rows)
    total = sum(rows for rows, _ in batches)
    assert whole.rows == resumed.rows == total
    assert whole.means() == resumed.means()
    if total:
        want = sum(rows * loss for rows, loss in batches) / total
        assert whole.means()["loss"] == pytest.approx(want, abs=1e-9)
    else:
        assert whole.means() == {}


def test_what_is_no_number_spoils_the_mean_unless_it_is_over_nothing():
    noted = NotedMeans()
    noted.add({"loss": math.nan}, 0)
    noted.add({"loss": 1.0, "accuracy": math.nan}, 4)
    means = noted.means()
    assert means["loss"] == 1
    assert math.isnan(means["accuracy"])


# --- ranks with clocks of their own end at the same step, and do not ask each other all the time ---

LIMIT_S = 3600.0


def ended(step_s, *, first_s=0.0):
    """At which step, and how often they asked."""
    asked, times = [], []

    def agree(spent_s):
        asked.append(spent_s)
        return spent_s

    time = AgreedTime(LIMIT_S, agree)
    spent_s = first_s
    for step in range(1, 10**6):
        spent_s += step_s(step)
        times.append(time.after(step, spent_s))
        if times[-1] >= LIMIT_S:
            return spent_s, len(asked)
    raise AssertionError


def test_it_ends_with_the_step_in_which_the_time_is_over():
    spent_s, asked = ended(lambda _step: 0.5)
    assert LIMIT_S <= spent_s < LIMIT_S + 0.5
    assert asked < 30


def test_a_slow_beginning_is_asked_about_a_little_more_often():
    spent_s, asked = ended(lambda _step: 0.5, first_s=60.0)
    assert LIMIT_S <= spent_s < LIMIT_S + 0.5
    assert asked < 60


def test_steps_that_become_slower_are_noticed_in_time():
    spent_s, _ = ended(lambda step: 0.5 if step < 5000 else 1.0)
    assert LIMIT_S <= spent_s < LIMIT_S + 1.0


def test_it_begins_anew():
    time = AgreedTime(LIMIT_S, lambda spent_s: spent_s)
    assert time.after(1, LIMIT_S) == LIMIT_S
    time.begin()
    assert (time.after(0, 5.0), time.after(1, 6.0)) == (0.0, 6.0)
