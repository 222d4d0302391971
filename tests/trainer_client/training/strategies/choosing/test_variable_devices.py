"""Where variables lie: every way of asking, and that bytes are spread evenly."""

from __future__ import annotations

import itertools

import pytest

from trainer_client.training.strategies.choosing.variable_devices import VARIABLES_ON, LeastLoaded, places_of_variables

TOWERS = [tuple(f"{kind}:{number}" for number in range(count)) for kind in ("CPU", "GPU") for count in (1, 2, 3, 4, 8)]


@pytest.mark.parametrize(("asked", "towers", "late"), [*itertools.product(VARIABLES_ON, TOWERS, (False, True))])
def test_variables_lie_where_it_was_asked_or_it_is_said_why_not(asked, towers, late):
    places, taken = places_of_variables(asked, towers, asynchronous=late)
    on_gpu = towers[0] == "GPU:0"
    want = asked
    if asked == "auto":
        want = "balanced" if on_gpu and not (late and len(towers) >= 4) else "cpu"
    elif asked == "gpu" and not on_gpu:
        want = "cpu"
    assert places == {"cpu": ("CPU:0",), "gpu": ("GPU:0",), "balanced": towers}[want]
    assert taken.partition(",")[0] == want
    assert taken == want or asked != want


def test_each_variable_goes_to_the_device_with_the_fewest_bytes():
    spread = LeastLoaded(["GPU:0", "GPU:1", "GPU:2"])
    assert [spread.place(size) for size in (5, 3, 4, 3, 1, 1)] == [
        "GPU:0", "GPU:1", "GPU:2", "GPU:1", "GPU:2", "GPU:0",
    ]  # fmt: skip
    assert spread.bytes_on == {"GPU:0": 6, "GPU:1": 6, "GPU:2": 5}
