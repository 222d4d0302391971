"""How long a trainer may have a batch: by the slowest of the last 64."""

from __future__ import annotations

import pytest

from loader_server.leases.lease_trainer import Pace


def test_nobody_gets_less_than_the_floor():
    pace = Pace(10.0)
    pace.add(3.0)
    assert pace.deadline_s == 10.0
    pace.add(4.0)
    assert pace.deadline_s == pytest.approx(12.0)


def test_the_slowest_counts_among_the_last_64_and_no_longer():
    pace = Pace(1.0)
    for took_s in (5.0, *[1.0] * 63):
        pace.add(took_s)
    assert pace.deadline_s == pytest.approx(15.0)
    pace.add(1.0)
    assert pace.deadline_s == pytest.approx(3.0)
