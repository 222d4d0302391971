"""The program that kills and restarts trainers, on two strategies; the others' kills are in tests/end_to_end."""

from __future__ import annotations

import pytest

from tests.faults.trainer_restart import restart


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.heritage("T1")
def test_killed_runs_with_one_copy_of_variables_have_each_sample_once_an_epoch_in_their_models() -> None:
    histories = restart(["central", "async"], kills=1, seed=3)
    for found in histories.values():
        assert (found.lost, found.repeated, found.kills) == (0, 0, 1)
        assert found.steps > 10
