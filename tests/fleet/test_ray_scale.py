"""How changes of a job's number of workers are counted."""

from __future__ import annotations

import pytest

from tests.fleet.ray_scale import Looks


@pytest.mark.parametrize(
    ("numbers", "changes", "reversals"),
    [
        ([], 0, 0),
        ([1, 1, 1], 0, 0),
        ([1, 2, 4, 4], 2, 0),
        ([4, 4, 3, 1], 2, 0),
        ([1, 4, 3, 3, 4], 3, 2),
        ([1, 2, 1], 2, 1),
    ],
)
def test_changes_and_reversals(numbers: list[int], changes: int, reversals: int) -> None:
    looks = Looks(numbers)
    assert (len(looks.changes), looks.reversals) == (changes, reversals)
