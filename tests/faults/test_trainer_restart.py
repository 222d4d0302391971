"""The program that kills and restarts trainers, on one strategy; the others' kills are in tests/end_to_end."""

from __future__ import annotations

import pytest

from tests.faults.trainer_restart import restart


@pytest.mark.timeout(300)
def test_a_killed_run_with_central_variables_has_each_sample_once_an_epoch_in_its_model() -> None:
    found = restart(["central"], kills=1, seed=3)["central"]
    assert (found.lost, found.repeated, found.kills) == (0, 0, 1)
    assert found.steps > 10
