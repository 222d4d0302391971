"""Means that a loop notes, batch by batch."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.training.runs.noted import NotedMeans

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
